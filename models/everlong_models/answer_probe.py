"""`AnswerProbe`: predicts from a prompt's KV cache whether its passages, or the conversation, hold the answer to its question.

    score = w · v + b    they hold the answer if score ≥ 0

v are the values (of attention) that one layer has cached for the last token of the prompt. A linear classifier on these values tells more than
the model's words: the model answers in any case (docs/research/lab-notes.md). A model folder can contain a probe of its model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import AdapterError
from everlong_models.weights import read_tensors

PROBE = "probe.safetensors"
"""The file in a model folder. Tensors: `layer` (), an integer, counted from 0; `weight` (kv heads, head dim); `bias` ()."""


@dataclass(frozen=True, slots=True)
class AnswerProbe:
    """A linear probe of one model. `weight` (kv heads, head dim): w; `bias`: b."""

    layer: int
    weight: Tensor
    bias: float

    def stricter(self, margin: float) -> AnswerProbe:
        """Return a probe that declines only where the score is more than `margin` below 0."""
        return replace(self, bias=self.bias + margin)

    def holds_answer(self, values: Tensor) -> bool:
        """Return whether the passages hold the answer, for the `values` (kv heads, head dim) of the prompt's last token in `layer`."""
        return float((values.float().cpu() * self.weight).sum()) + self.bias >= 0


def load_probe(folder: Path, backbone: Backbone) -> AnswerProbe | None:
    """Load the probe of a model folder; None if the folder has none. Raises `AdapterError` if it is damaged or for another backbone."""
    file = folder / PROBE
    if not file.is_file():
        return None
    tensors = read_tensors(file)
    if missing := {"layer", "weight", "bias"} - tensors.keys():
        raise AdapterError(f"{file}: missing tensors: {', '.join(sorted(missing))}")
    if any(tensors[name].dim() for name in ("layer", "bias")) or tensors["layer"].is_floating_point():
        raise AdapterError(f"{file}: layer must be one integer, and bias one number")
    layer, weight, own = int(tensors["layer"]), tensors["weight"].float(), (backbone.kv_heads, backbone.head_dim)
    if tuple(weight.shape) != own or not 0 <= layer < backbone.layers:
        raise AdapterError(
            f"{file}: a probe of this backbone has a weight of shape {own} and a layer below {backbone.layers}, "
            f"got {tuple(weight.shape)} and layer {layer}"
        )
    return AnswerProbe(layer, weight, float(tensors["bias"]))
