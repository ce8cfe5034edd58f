"""`ProbeTraining`: fit an `AnswerProbe` to prompts, by logistic regression on the values that one layer caches for a prompt's last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from everlong_lab.eval.answer_scores import missing
from everlong_lab.harness.progress import Progress
from everlong_lab.probe.prompts import LabelledPrompt
from everlong_models import AnswerProbes, Backbone, Model
from everlong_models.errors import DataError

try:  # before prompts are read for half an hour
    from torchmetrics.functional.classification import binary_auroc
except ImportError as error:
    raise missing(error) from error

_FOLDS = 8
_DECAY = 0.01
"""Weight of the squared distance from the first weights in the loss, for values of mean 0 and deviation 1."""


@dataclass(frozen=True, slots=True)
class ProbeQuality:
    """How well a probe tells prompts apart whose texts it did not learn from. `area`: under the ROC curve. `declined`: share of the prompts
    without an answer that it declines, where it declines `wrongly` of those that hold it."""

    area: float
    declined: float
    wrongly: float


def values_of(model: Model, prompts: Sequence[LabelledPrompt], layer: int, progress: Progress) -> Tensor:
    """Return the values (N, kv heads, head dim) of each prompt's last token in `layer`, float32, as the server caches them.

    A conversation is read once: its messages follow each other in the cache.
    """
    backbone, chat, found = model.memory.backbone, model.chat, list[Tensor]()
    assert isinstance(backbone, Backbone)
    for conversation in _conversations(prompts):
        progress(f"reading {conversation[0].source}", len(found) / len(prompts))
        tokens, ends = list(chat.head), list[int]()
        for prompt in conversation:
            # The server encodes the two separately.
            tokens += [*chain(*map(model.tokenizer.encode, (prompt.before, prompt.question))), *chat.ask]
            ends.append(len(tokens) - 1)
            if prompt is not conversation[-1]:
                tokens += [*model.tokenizer.encode(prompt.answer), *chat.turn]
        kv = backbone.new_kv(1, len(tokens))
        with torch.inference_mode():
            backbone.hidden(backbone.embed(torch.tensor([tokens], device=backbone.device)), kv=kv, keep=1)
        found += kv[0, layer, 1, :, ends].float().cpu().unbind(1)
    return torch.stack(found)


def _conversations(prompts: Sequence[LabelledPrompt]) -> list[list[LabelledPrompt]]:
    """Return the prompts, those of one conversation together."""
    found = list[list[LabelledPrompt]]()
    for prompt in prompts:
        if prompt.follows:
            found[-1].append(prompt)
        else:
            found.append([prompt])
    return found


class ProbeTraining:
    """Fits a probe. `values` (N, kv heads, head dim) of the prompts. Raises `DataError` for prompts of fewer than two texts."""

    def __init__(
        self,
        prompts: Sequence[LabelledPrompt],
        values: Tensor,
        *,
        wrongly: float,
        start: AnswerProbes | None = None,
        seed: int = 0,
    ) -> None:
        """`wrongly`: the share of the prompts with an answer that may be declined. `start`: earlier probes. The new one
        stays near to that for texts of a few pages, and its file keeps that for longer texts."""
        self._values, self._wrongly = values, wrongly
        self._long, self._start = None, (torch.zeros(values[0].numel()), 0.0)
        if start is not None:
            self._long, self._start = start.long, (start.few_pages.weight.flatten(), start.few_pages.bias)
        self._holds = torch.tensor([prompt.holds for prompt in prompts])
        sources = sorted({prompt.source for prompt in prompts})
        if len(sources) < 2:
            raise DataError("prompts about at least two texts are needed: each is held out once")
        order = np.random.default_rng(seed).permutation(len(sources))
        folds = {sources[number]: place % min(_FOLDS, len(sources)) for place, number in enumerate(order)}
        self._fold = torch.tensor([folds[prompt.source] for prompt in prompts])

    def fit(self) -> tuple[Tensor, float, ProbeQuality]:
        """Return weight (kv heads, head dim) and bias of a probe, and the quality of such probes on texts they did not learn from."""
        scores = torch.empty(len(self._values))
        for fold in self._fold.unique():
            held_out = self._fold == fold
            weight, bias = _regress(self._values[~held_out].flatten(1), self._holds[~held_out], *self._start)
            scores[held_out] = self._values[held_out].flatten(1) @ weight + bias
        limit = float(scores[self._holds].quantile(self._wrongly, interpolation="lower"))
        quality = ProbeQuality(
            area(scores, self._holds),
            float((scores[~self._holds] < limit).float().mean()),
            float((scores[self._holds] < limit).float().mean()),
        )
        weight, bias = _regress(self._values.flatten(1), self._holds, *self._start)
        return weight.view(self._values.shape[1:]), bias - limit, quality

    def save(self, layer: int, file: Path) -> ProbeQuality:
        """Fit a probe and write its file. Returns its quality."""
        weight, bias, quality = self.fit()
        file.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"layer": torch.tensor(layer), "weight": weight.contiguous(), "bias": torch.tensor(bias)}
        if self._long is not None:
            tensors |= {"long_weight": self._long.weight, "long_bias": torch.tensor(self._long.bias)}
        save_file(tensors, file)
        return quality


def area(scores: Tensor, holds: Tensor) -> float:
    """Return the area under the ROC curve: how often a prompt with the answer has a higher score than one without. Ties count half."""
    low, high = scores.double().aminmax()
    return float(binary_auroc((scores.double() - low) / (high - low).clamp_min(1e-12), holds.int()))  # it takes 0 to 1


def _regress(values: Tensor, holds: Tensor, start: Tensor, start_bias: float) -> tuple[Tensor, float]:
    """Return weight (D,) and bias of a logistic regression of `holds` (N,) on `values` (N, D), with the weight near to `start` (D,)."""
    mean, deviation = values.mean(0), values.std(0).clamp_min(1e-6)
    inputs, targets = ((values - mean) / deviation).double(), holds.double()
    # The same weight and bias for inputs of mean 0 and deviation 1.
    first = torch.cat([start * deviation, (start @ mean + start_bias).view(1)]).double()
    parameters = first.clone().requires_grad_(True)
    solver = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        scores = inputs @ parameters[:-1] + parameters[-1]
        total = F.binary_cross_entropy_with_logits(scores, targets) + _DECAY * (parameters - first)[:-1].square().sum()
        total.backward()
        return total

    solver.step(loss)
    weight = (parameters.detach()[:-1] / deviation).float()
    return weight, float(parameters.detach()[-1]) - float(weight @ mean)
