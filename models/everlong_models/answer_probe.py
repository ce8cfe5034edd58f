"""`AnswerProbe`: predicts from a prompt's KV cache whether its passages, or the conversation, hold the answer to its question.

    score = w · v + b    they hold the answer if score ≥ 0

v are the values (of attention) that one layer has cached for the last token of the prompt. A linear classifier on these values tells more than
the model's words: the model answers in any case (docs/research/lab-notes.md). A model folder can contain probes of its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import AdapterError
from everlong_models.weights import read_tensors

PROBE = "probe.safetensors"
"""The file in a model folder. Tensors: `layer` (), an integer, counted from 0; `weight` (kv heads, head dim) and `bias` () of the probe for texts of a
few pages; `long_weight` and `long_bias`, of the same shapes, of that for longer texts. Without these two, the first probe judges longer texts, too, and
declines only where its score is below -`_LONG_MARGIN`."""
_LONG = {"long_weight", "long_bias"}
_LONG_MARGIN = 1.0
"""A probe that learnt from short texts must be surer about longer ones (docs/research/lab-notes.md, "Refusing")."""


@dataclass(frozen=True, slots=True)
class AnswerProbe:
    """A linear classifier. `layer`: whose values it takes. `weight` (kv heads, head dim): w; `bias`: b."""

    layer: int
    weight: Tensor
    bias: float

    def holds_answer(self, values: Tensor) -> bool:
        """Return whether the passages hold the answer, for the `values` (kv heads, head dim) of the prompt's last token in `layer`."""
        return float((values.float().cpu() * self.weight).sum()) + self.bias >= 0


@dataclass(frozen=True, slots=True)
class AnswerProbes:
    """The probes of one model. `few_pages`: judges prompts about texts of a few pages. `long`: judges those about longer texts, with the same layer."""

    few_pages: AnswerProbe
    long: AnswerProbe


def load_probes(folder: Path, backbone: Backbone) -> AnswerProbes | None:
    """Load the probes of a model folder; None if the folder has none. Raises `AdapterError` if they are damaged or for another backbone."""
    file = folder / PROBE
    if not file.is_file():
        return None
    tensors = read_tensors(file)
    long = _LONG & tensors.keys()
    if missing := {"layer", "weight", "bias", *(_LONG if long else ())} - tensors.keys():
        raise AdapterError(f"{file}: missing tensors: {', '.join(sorted(missing))}")
    if tensors["layer"].dim() or tensors["layer"].is_floating_point():
        raise AdapterError(f"{file}: layer must be one integer")
    layer = int(tensors["layer"])
    few_pages = _probe(file, tensors, "", layer, backbone)
    if long:
        return AnswerProbes(few_pages, _probe(file, tensors, "long_", layer, backbone))
    return AnswerProbes(few_pages, replace(few_pages, bias=few_pages.bias + _LONG_MARGIN))


def _probe(file: Path, tensors: Mapping[str, Tensor], prefix: str, layer: int, backbone: Backbone) -> AnswerProbe:
    """Return the probe whose tensors have this prefix."""
    weight, bias, own = (
        tensors[f"{prefix}weight"].float(),
        tensors[f"{prefix}bias"],
        (backbone.kv_heads, backbone.head_dim),
    )
    if bias.dim():
        raise AdapterError(f"{file}: {prefix}bias must be one number")
    if tuple(weight.shape) != own or not 0 <= layer < backbone.layers:
        raise AdapterError(
            f"{file}: a probe of this backbone has a {prefix}weight of shape {own} and a layer below {backbone.layers}, "
            f"got {tuple(weight.shape)} and layer {layer}"
        )
    return AnswerProbe(layer, weight, float(bias))
