"""`convert`: a GGUF file to a folder in Hugging Face's format, or to that of `quantised_weights`."""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from everlong_models.backbone import quantised_weights
from everlong_models.backbone.folders import put
from everlong_models.backbone.gguf import families, neox_tokenizer
from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.catalogue.entry import entries
from everlong_models.errors import BackboneError
from everlong_models.quiet import without_progress_bars

_LAYOUT = 1
"""The version of folders with float weights that everlong read. It is part of the folder's name."""


def convert(
    name: str, file: Path, models_dir: Path, progress: Callable[[str], None], *, quantised: GGUFFile | None = None
) -> Path:
    """Convert the GGUF file of `name` to a folder, once: reading GGUF takes ten times as long.

    The folder is in Hugging Face format, in float32; for a `quantised` file it is that of `quantised_weights`, with the tokenizer.
    transformers reads the file where it reads all of it; the modules here read the others. Raises `BackboneError` for a file that neither
    reads right.
    """
    # Hash the whole file: after further training only the tensors differ, which follow the metadata. Hashing takes a
    # small part of the time that loading the conversion, several times as large, takes.
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    _require_official(name, file, digest)
    own = quantised or _read_here(file)
    key = hashlib.sha256(f"{file.name}:{digest}".encode()).hexdigest()
    target = models_dir / f"{file.stem}-{key[:12]}"
    if quantised is not None:
        target = target.with_name(f"{target.name}-q{quantised_weights.LAYOUT}")
    elif own is not None:
        target = target.with_name(f"{target.name}-f{_LAYOUT}")
    if (target / "config.json").is_file():
        return target
    progress(f"converting {file.name} (once, about 20 s)")
    models_dir.mkdir(parents=True, exist_ok=True)
    # Written to a scratch folder and renamed, so that a killed or concurrent conversion never leaves half a model.
    scratch = Path(tempfile.mkdtemp(dir=models_dir, prefix=".converting-"))
    try:
        try:
            source = {"gguf_file": file.name, "trust_remote_code": False}
            with without_progress_bars():
                tokenizer = _tokenizer_class(own).from_pretrained(file.parent, **source)
                if quantised is not None:
                    quantised_weights.write_folder(quantised, digest, scratch)
                elif own is not None:
                    _float_model(own).save_pretrained(scratch)
                else:
                    model, report = AutoModelForCausalLM.from_pretrained(
                        file.parent, dtype=torch.float32, output_loading_info=True, **source
                    )
                    _require_all(GGUFFile(file), model, report["missing_keys"])
                    _save_floats(model, scratch)
            _repair_tokenizer(tokenizer, file)
        except Exception as error:  # gguf, numpy and transformers raise all kinds of errors for a damaged file
            raise BackboneError(f"cannot read {file} as GGUF: {error}") from error
        tokenizer.save_pretrained(scratch)
        put(scratch, target)
        return target
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _read_here(file: Path) -> GGUFFile | None:
    """Return the file if transformers would refuse it or misread it; None if transformers should read it."""
    stored = GGUFFile(file)
    if not families.misread_by_transformers(stored):
        return None
    if (reason := families.unreadable_reason(stored)) is not None:
        raise BackboneError(
            f"{file} cannot be read: {reason}. transformers' reader would refuse the file, or ignore a part of it, such as scaled rotary "
            "positions"
        )
    return stored


def _tokenizer_class(own: GGUFFile | None) -> type[AutoTokenizer | PreTrainedTokenizerFast]:
    """Return the class that reads the tokenizer of a file. transformers chooses one only for architectures that it knows."""
    return AutoTokenizer if own is None or families.family_of(own).known else PreTrainedTokenizerFast


def _float_model(file: GGUFFile) -> PreTrainedModel:
    """Return transformers' model with the file's weights in float32."""
    config = families.config_of(file)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    tensors = dict(families.all_float_tensors(file, config))
    biases = {name: weights for name, weights in model.named_parameters() if name.endswith(".bias")}
    lacking = {name: torch.zeros(weights.shape) for name, weights in biases.items() if name not in tensors}
    report = model.load_state_dict(tensors | lacking, strict=False, assign=True)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if wrong := {*report.unexpected_keys, *(set(report.missing_keys) - tied)}:
        raise ValueError(f"its tensors are not those of {config.model_type}: {', '.join(sorted(wrong)[:3])}")
    model.tie_weights()
    return model


def _require_all(file: GGUFFile, model: PreTrainedModel, missing: Collection[str]) -> None:
    """Raise `ValueError` if transformers' reader has left out a tensor of the file, or found none for a weight of the model.

    The reader does not report tensors that it leaves out, so the total number of weights is compared. transformers has set missing biases to 0.
    """
    weights = model.state_dict()
    if lacking := sorted(
        name for name in missing if name in weights and (not name.endswith(".bias") or weights[name].any())
    ):
        raise ValueError(f"it lacks {', '.join(lacking[:3])}")
    found = {tensor.data_ptr(): tensor.numel() for name, tensor in weights.items() if name not in missing}
    stored = {name: math.prod(tensor.shape) for name, tensor in file.tensors.items()}
    if model.config.get_text_config().tie_word_embeddings:
        stored.pop("output.weight", None)
    if sum(stored.values()) != sum(found.values()):
        raise ValueError(
            f"it has {sum(stored.values()):,} numbers, of which transformers' reader has read {sum(found.values()):,}"
        )


def _require_official(name: str, file: Path, digest: str) -> None:
    """Raise `BackboneError` if `file` is not the one that the catalogue knows by `name`.

    A pull checks this, too, but a file can change afterwards, or come with another wheel.
    """
    if name in entries() and digest != entries()[name].sha256:
        raise BackboneError(
            f"{file} has the SHA-256 {digest}, and {name} must have {entries()[name].sha256}: delete the file, or reinstall the package "
            "that it belongs to. To use another file, give its path instead of the name"
        )


def _save_floats(model: PreTrainedModel, folder: Path) -> None:
    # Loading dequantised the tensors, but transformers refuses to save a model whose config says it is quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)


_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Names of the special tokens: transformers' → GGUF's."""


def _repair_tokenizer(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Restore what some versions of transformers' GGUF reader drop or get wrong.

    These are the special tokens (without the right end-of-turn token the chat format changes), and the digit rules: in the tokenizers of
    SmolLM and Granite every digit is a token of its own, and Falcon's splits off three digits at a time, and punctuation. For GPT-NeoX see
    `neox_tokenizer`.
    """
    from tokenizers import Regex  # noqa: PLC0415
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split  # noqa: PLC0415

    metadata = GGUFFile(file).metadata
    if metadata.get("general.architecture") == "gptneox":
        neox_tokenizer.restore(tokenizer, file)
    for name, key in _SPECIAL.items():
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(int(token)))
    split = metadata.get("tokenizer.ggml.pre")
    if split == "falcon":
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [
                Punctuation("contiguous"),
                ByteLevel(add_prefix_space=False, use_regex=True),
                Digits(individual_digits=False),
                Split(Regex("[0-9][0-9][0-9]"), "isolated"),
            ]
        )
    elif split in families.DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        )
