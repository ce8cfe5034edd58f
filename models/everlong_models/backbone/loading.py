"""Find and load backbones: a name of the catalogue, a local folder, a GGUF file, or a name on the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from everlong_models.backbone import quantised_weights
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.folders import is_complete, put
from everlong_models.backbone.gguf.conversion import convert
from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.backbone.number_formats.on_load import Method, gguf_bytes
from everlong_models.backbone.number_formats.weight_format import digest, weight_format
from everlong_models.backbone.recurrent.families import FAMILIES
from everlong_models.backbone.recurrent.model import Recurrent, recurrent_kernels
from everlong_models.backbone.text_part import text_part
from everlong_models.catalogue.entry import entries, unknown_name
from everlong_models.catalogue.machine import require_memory, weights_needed
from everlong_models.catalogue.pull import pull as pull_entry
from everlong_models.errors import BackboneError, ConfigError
from everlong_models.kernels.cpu.quantised_matrix import has_kernels
from everlong_models.parallel import Ranks, own_bytes
from everlong_models.quiet import without_progress_bars
from everlong_models.text.tokenizer import Tokenizer

DEFAULT_BACKBONE = "smollm2-135m-instruct"
Progress = Callable[[str], None]


def load_backbone(
    name: str,
    *,
    models_dir: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    one_copy: bool = False,
    gpu_quantize: Method | None = None,
    ranks: Ranks | None = None,
    progress: Progress = lambda message: None,
) -> tuple[Backbone, Tokenizer]:
    """Load the backbone `name` in inference mode, and its tokenizer.

    `name`: a name of the catalogue or the hub, which is pulled if it was not before, a folder in Hugging Face format, or a
    `.gguf` file. `models_dir` holds converted and pulled models. `dtype` defaults to float32 on a CPU, bfloat16 elsewhere.
    `one_copy`: on a CPU, keep the weights of a GGUF file only as the file has them, if the kernels support that
    (`quantised_weights.unsupported_reason`): such a backbone is optimised already, and cannot be trained. The backbone of the
    packaged models is small, and keeps its float weights and its fingerprint.
    `gpu_quantize`: quantise the linear layers by torchao while loading (see `number_formats.on_load`), which excludes `one_copy`. It has no
    effect on a checkpoint that is quantised already. `ranks`: load only the part of this process.
    Raises `BackboneError`, which names the file or folder, and `ConfigError` for a device that does not exist.
    """
    device = resolve_device(device)
    if device.type == "cpu" and (size := _gguf_bytes(name)) is not None:
        require_memory(name, size)
    one_copy = one_copy and gpu_quantize is None
    if one_copy and device.type == "cpu" and dtype in (None, torch.float32) and name != DEFAULT_BACKBONE:
        path = _gguf(name, models_dir, progress)
        quantised = None if path is None else _load_quantised(name, path, models_dir, progress)
        if quantised is not None:
            return quantised
    model, tokenizer, files = _load_weights(name, models_dir, device, dtype, progress, gpu_quantize, ranks)
    return Backbone(model, digest=files, ranks=ranks).eval(), tokenizer


def load_recurrent(
    name: str,
    *,
    models_dir: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    gpu_quantize: Method | None = None,
    progress: Progress = lambda message: None,
) -> tuple[Recurrent, Tokenizer]:
    """Like `load_backbone`, for models with recurrent layers. Tells `progress` how these are computed."""
    model, tokenizer, files = _load_weights(name, models_dir, resolve_device(device), dtype, progress, gpu_quantize)
    backbone = Recurrent(model, digest=files).eval()
    progress(f"recurrent layers are computed by {recurrent_kernels(backbone.device)}")
    return backbone, tokenizer


def _load_weights(
    name: str,
    models_dir: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    progress: Progress,
    gpu_quantize: Method | None,
    ranks: Ranks | None = None,
) -> tuple[PreTrainedModel, Tokenizer, str | None]:
    """Load `name` with transformers. Arguments and errors: see `load_backbone`.

    Returns also the SHA-256 of the files, if the fingerprint covers them rather than the tensors.
    """
    folder = find_backbone(name, models_dir=models_dir, progress=progress)
    if not (folder / "config.json").is_file():
        raise BackboneError(f"{folder} holds a LoRA adapter: serve it as BACKBONE+{name}")
    # bfloat16 matmuls are far slower than float32 ones on most CPUs.
    dtype = dtype or (torch.float32 if device.type == "cpu" else torch.bfloat16)
    shared = {} if ranks is None else _join(ranks, folder, device)
    held = weight_format(folder, device, dtype, gpu_quantize)
    if ranks is not None and held.packed:
        raise BackboneError(f"{folder}: weights of the kind {held.name} cannot be spread over {ranks.size} processes")
    held.require_memory(folder, device, parts=1 if ranks is None or device.type == "cpu" else ranks.size)
    progress(f"loading {name} ({device}, {held.name}): {held.bytes / 1e9:.2f} GB of weights")
    if held.rows_mix:
        progress(f"{name}: with {held.name} in 8 bits, an answer changes slightly with the other answers of its batch")
    try:
        with without_progress_bars():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                **{**text_part(folder), **held.loads, **shared},
            )
    except Exception as error:  # transformers, safetensors and tokenizers raise all kinds of errors for damaged files
        raise BackboneError(f"cannot load the backbone in {folder}: {error}") from error
    if not isinstance(model, PreTrainedModel):
        raise BackboneError(f"{folder} does not hold a causal language model")
    if missing := sorted(report["missing_keys"]):  # transformers would continue with random values in their place
        raise BackboneError(f"the weights in {folder} lack {', '.join(missing[:5])} ({len(missing)} tensors in all)")
    if unused := sorted(name for name in report["unexpected_keys"] if _is_part_of(model, name)):
        raise BackboneError(
            f"the weights in {folder} have tensors that {type(model).__name__} does not use: {', '.join(unused[:5])} ({len(unused)} in all)"
        )
    model.requires_grad_(False)
    tokenizer = load_tokenizer(folder)
    # Some models end an answer with a token of its own, which only the generation config names.
    ends = getattr(model.generation_config, "eos_token_id", None)
    tokenizer.add_eos_ids(() if ends is None else ends if isinstance(ends, list) else [ends])
    files = digest(folder) if held.by_files else None
    if not held.packed:
        model.to(device)
    if ranks is not None:
        progress(f"tensor parallelism: {own_bytes(model) / 1e9:.3g} GB of weights in each of {ranks.size} processes")
    return model, tokenizer, files


def _join(ranks: Ranks, folder: Path, device: torch.device) -> dict[str, Any]:
    """Connect the processes that share the model in `folder`, and return what `from_pretrained` needs to load one part of it."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # see `_load_weights`
        raise BackboneError(f"cannot load the backbone in {folder}: {error}") from error
    return ranks.join(config, device)


def _is_part_of(model: PreTrainedModel, name: str) -> bool:
    """Return whether the tensor `name` belongs to a layer that the model has, such as a bias or a scale; whole parts may be left out."""
    modules = dict(model.named_modules())
    for prefix in ("", f"{model.base_model_prefix}."):
        parent = f"{prefix}{name}"
        while parent and parent not in modules:
            parent = parent.rpartition(".")[0]
        if parent and any(True for _ in modules[parent].parameters(recurse=False)):
            return True
    return False


def _load_quantised(name: str, path: Path, models_dir: Path, progress: Progress) -> tuple[Backbone, Tokenizer] | None:
    """Load the GGUF file of `name` with one copy of its weights. Return None if that is not supported."""
    file = GGUFFile(path)
    reason = quantised_weights.unsupported_reason(file)
    if reason is None and not has_kernels():
        reason = "a processor without vector instructions"
    if reason is not None:
        progress(f"{path.name}: {reason} needs a second copy of the weights, in float32")
        return None
    folder = convert(name, path, models_dir, progress, quantised=file)
    progress(f"loading {path.name} (cpu, quantised)")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        weights = quantised_weights.read_folder(folder, config)
    except (OSError, ValueError, LookupError, SafetensorError) as error:
        raise BackboneError(
            f"cannot load {folder}, converted from {path}: {error}. Delete it to convert again"
        ) from error
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if (rotary := getattr(model.base_model, "rotary_emb", None)) is not None:  # GPT-2 has none
        model.base_model.rotary_emb = type(rotary)(config)
    model.requires_grad_(False)
    return Backbone(model, weights).eval(), load_tokenizer(folder)


def weight_bytes(
    name: str,
    *,
    models_dir: Path,
    device: torch.device | str = "cpu",
    one_copy: bool = False,
    gpu_quantize: Method | None = None,
) -> int | None:
    """Estimate how many bytes of memory the weights of the backbone `name` take; None if it must be pulled from the hub first.

    `device`, `one_copy`, `gpu_quantize`: as for `load_backbone`. For a name of the catalogue, `gpu_quantize` is not counted: such a model
    takes less. Raises `BackboneError` for a name that cannot be found, and for a quantisation that cannot be computed here.
    """
    on_cpu, path = torch.device(device).type == "cpu", Path(name).expanduser()
    found = None if name in entries() else _gguf(name, models_dir, lambda message: None)
    file = None if found is None else GGUFFile(found)
    once = on_cpu and one_copy and gpu_quantize is None and name != DEFAULT_BACKBONE
    once = once and (file is None or quantised_weights.unsupported_reason(file) is None)
    if once and (size := _gguf_bytes(name)) is not None:
        return weights_needed(size)
    folder = path if path.is_dir() else models_dir / name.replace("/", "--")
    dtype = torch.float32 if on_cpu else torch.bfloat16
    packed = gpu_quantize is not None
    if name in entries():
        size, packed = entries()[name].parameters * dtype.itemsize, False
    elif file is not None:
        size = gguf_bytes({name: tensor.shape for name, tensor in file.tensors.items()}, gpu_quantize, dtype)
    elif folder.is_dir():
        held = weight_format(folder, torch.device(device), dtype, gpu_quantize)
        size, packed = held.bytes, held.packed
    elif "/" in name:
        return None
    else:
        raise unknown_name(name)
    return size * _CPU_BYTES // dtype.itemsize if on_cpu and not packed else size


_CPU_BYTES = 5
"""Bytes of a weight on a CPU: in float32 for prefill, and in 8 bits for decoding."""


def has_own_memory(name: str, *, models_dir: Path, progress: Progress = lambda message: None) -> bool:
    """Return whether `name` is a model whose own recurrent state can be the memory. Pulls it from the hub if necessary.

    Raises `BackboneError` for a name that cannot be found.
    """
    if _gguf_bytes(name) is not None:
        return False
    try:
        config = json.loads((find_backbone(name, models_dir=models_dir, progress=progress) / "config.json").read_text())
        return config.get("text_config", config)["model_type"] in FAMILIES
    except (OSError, ValueError, LookupError, TypeError):  # loading reports a damaged config
        return False


def _gguf_bytes(name: str) -> int | None:
    """Return the size of the GGUF file that `name` stands for, also before it is pulled; None if it stands for none."""
    path = Path(name).expanduser()
    if path.exists():
        return path.stat().st_size if path.is_file() else None
    return entries()[name].bytes if name in entries() else None


def resolve_device(device: torch.device | str) -> torch.device:
    """Return the named device. Raises `ConfigError` if it does not exist or cannot compute (`meta`)."""
    try:
        made = torch.ones((), device=device)
        made.item()
    except (RuntimeError, AssertionError) as error:  # what torch raises
        raise ConfigError("device", str(device), str(error).splitlines()[0]) from error
    return made.device


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in `folder`. Raises `BackboneError`."""
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    except BackboneError:
        raise
    except Exception as error:  # see `load_backbone`
        raise BackboneError(f"cannot load the tokenizer in {folder}: {error}") from error


def find_backbone(name: str, *, models_dir: Path, progress: Progress = lambda message: None) -> Path:
    """Return the folder of `name` in Hugging Face format. Converts a GGUF file or pulls from the hub if necessary."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not is_complete(path):
            raise BackboneError(f"{path} is a folder without config.json: not a model in Hugging Face format")
        return path
    if (file := _gguf(name, models_dir, progress)) is not None:
        return convert(name, file, models_dir, progress)
    pulled = models_dir / name.replace("/", "--")
    if "/" not in name and not pulled.exists():
        raise unknown_name(name)
    return pulled if is_complete(pulled) else pull(name, models_dir=models_dir, progress=progress)


def _gguf(name: str, models_dir: Path, progress: Progress) -> Path | None:
    """Return the GGUF file of `name`; None for a name of another kind. Pulls a model of the catalogue if necessary."""
    if name in entries():
        return pull_entry(entries()[name], models_dir, progress)
    path = Path(name).expanduser()
    if path.suffix != ".gguf" or path.is_dir():
        return None
    if not path.is_file():
        raise BackboneError(f"no GGUF file {path}")
    return path


def pull(name: str, *, models_dir: Path, progress: Progress = lambda message: None) -> Path:
    """Download `name` from the Hugging Face hub into `models_dir`. Returns the folder. Safetensors only, never pickle."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only a pull talks to the hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    target = models_dir / name.replace("/", "--")
    # Downloaded into a scratch folder and renamed when complete, so that an interrupted pull is never taken for a model.
    # The scratch folder has a fixed name: the next pull resumes there.
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
            f"no backbone {name!r}: not a folder, not a GGUF file, not pulled before, and the hub pull failed ({error})"
        ) from error
    put(scratch, target)
    return target


def architecture(backbone: Backbone | Recurrent) -> str:
    """Return the backbone's architecture as canonical JSON, without the fields that do not change what it computes."""
    config = backbone.model.config.to_diff_dict()
    for key in (
        "_name_or_path",
        "_model_name_or_path",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "distributed_config",
    ):
        config.pop(key, None)
    return json.dumps(config, sort_keys=True, default=str)
