"""LoRA adapters in the format of the library PEFT: `adapter_config.json` and `adapter_model.safetensors`.

Every adapted layer computes W + (α/r) B A, or W + (α/√r) B A with `use_rslora`. Other kinds of adapters are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from everlong_models.backbone.text_part import text_name
from everlong_models.errors import AdapterError
from everlong_models.weights import first_error, read_tensors, wide

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_WHOLE = ("base_layer.weight", "embed_tokens.weight", "lm_head.weight")
"""Ends of the names of whole matrices. PEFT adds those that share a vocabulary with an adapted layer."""
_OTHER_KINDS = (
    "use_dora", "use_qalora", "use_bdlora", "kasa_config", "monteclora_config", "arrow_config", "alora_invocation_tokens",
    "layer_replication", "target_parameters", "trainable_token_indices", "modules_to_save", "lora_bias",
)  # fmt: skip
"""Fields that, if they are set, make something else than W + c B A of the backbone's linear layers."""
_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of `init_lora_weights` with which training also changed W, so that the adapter does not fit the published W."""


class _Config(BaseModel):
    """`adapter_config.json`. PEFT writes many more fields, most of which only matter for training."""

    model_config = ConfigDict(frozen=True, extra="allow")

    peft_type: Literal["LORA"]
    lora_alpha: float = Field(allow_inf_nan=False)
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool = False
    init_lora_weights: bool | str | None = True
    base_model_name_or_path: str | None = None

    def scale(self, layer: str, rank: int) -> float:
        """Return what the product B A of a layer is multiplied by."""
        patterns = self.alpha_pattern or {}
        found = next((alpha for key, alpha in patterns.items() if re.match(rf"(.*\.)?({key})$", layer)), None)
        alpha = self.lora_alpha if found is None else found
        return alpha / (rank**0.5 if self.use_rslora else rank)

    @property
    def unsupported_reason(self) -> str | None:
        """Return in words why this is not plain LoRA around published weights; None if it is."""
        fields = self.model_extra or {}
        if found := [name for name in _OTHER_KINDS if fields.get(name)]:
            return f"{', '.join(found)}: only plain LoRA is supported"
        if str(self.init_lora_weights).startswith(_CHANGING):
            return (
                f"init_lora_weights={self.init_lora_weights!r} also changed the backbone's weights: save the adapter again with PEFT's "
                "`path_initial_model_for_weight_conversion`"
            )
        return None


def adapter_folder(name: str, models_dir: Path) -> Path | None:
    """Return the folder of the adapter `name`: a folder, or one in `models_dir`, such as one pulled from the hub. None if there is none."""
    folders = Path(name).expanduser(), models_dir / name.replace("/", "--")
    return next((folder for folder in folders if (folder / ADAPTER_CONFIG).is_file()), None)


def find_adapter(name: str, models_dir: Path) -> Path:
    """Like `adapter_folder`. Raises `AdapterError` if there is none."""
    if (folder := adapter_folder(name, models_dir)) is not None:
        return folder
    raise AdapterError(
        f"no adapter {name!r}: not a folder with {ADAPTER_CONFIG}, and not in {models_dir} "
        "(for one of the Hugging Face hub, run: everlong models pull ORGANISATION/NAME)"
    )


def read_adapter(folder: Path, progress: Callable[[str], None] = lambda message: None) -> dict[str, Tensor]:
    """Return an adapter's low-rank updates as `attach_updates` takes them, with their scale in B.

    Tells `progress` which backbone the adapter was trained with. If that also reads pictures, only the updates of its decoder are
    returned, by the names that its layers have without the rest. Raises `AdapterError` for a damaged adapter, and for one that is not
    plain LoRA.
    """
    config, file, left_out = _read_config(folder), folder / ADAPTER_WEIGHTS, 0
    if not file.is_file():
        raise AdapterError(f"{folder} has no {ADAPTER_WEIGHTS}; other formats, such as pickle, are not read")
    updates, tensors = {}, read_tensors(file)
    reads_pictures = any("language_model." in name for name in tensors)
    for name, tensor in tensors.items():
        if (match := _TENSOR.fullmatch(name)) is None:
            hint = " (PEFT leaves out embeddings with save_embedding_layers=False)" if name.endswith(_WHOLE) else ""
            raise AdapterError(
                f"{file}: tensor {name!r} is not part of plain LoRA, the only kind that is supported{hint}"
            )
        layer, part = match.groups()
        scale = config.scale(layer, tensor.shape[1]) if part == "B" and tensor.dim() == 2 and tensor.numel() else 1.0
        inside = text_name(layer)
        if reads_pictures and inside == layer and layer != "lm_head":
            left_out += 1
            continue
        updates[f"lora.{inside}.{part}"] = tensor if scale == 1 else scale * wide(tensor)
    if not updates:
        raise AdapterError(f"{file} has no tensors")
    trained_with = config.base_model_name_or_path or "a backbone that it does not name"
    progress(f"adapter {folder.name}: {len(updates) // 2} layers, trained with {trained_with}")
    if left_out:
        progress(f"adapter {folder.name}: {left_out // 2} layers that only read pictures are left out")
    return updates


def _read_config(folder: Path) -> _Config:
    file = folder / ADAPTER_CONFIG
    try:
        config = _Config.model_validate_json(file.read_bytes())
        for pattern in config.alpha_pattern or {}:
            re.compile(pattern)
    except OSError as error:
        raise AdapterError(f"cannot read {file}: {error}") from error
    except ValidationError as error:
        raise AdapterError(f"{file}: {first_error(error)}") from error
    except re.error as error:
        raise AdapterError(f"{file}: alpha_pattern: {error}") from error
    if (reason := config.unsupported_reason) is not None:
        raise AdapterError(f"{file}: {reason}")
    return config
