"""`RerankerTraining`: trains an encoder to rank the sentences of a question's passages.

A step takes eight questions. For each, it scores the sentences of passages with the answer and of passages without it. The loss is the
negative log of the right sentences' share in a softmax over all these scores (listwise ranking: Cao et al., 2007). The best wrong passages
of the search are always among them; others are drawn at random. Token and position embeddings are not trained. A copy of the model in
bfloat16 computes the scores and the gradients; the gradients update float32 weights (mixed precision: Micikevicius et al., 2018).

There is no dropout, and the seed and the number of the step decide what is drawn. So a resumed run ends with the same weights as one that
was not interrupted.
"""

from __future__ import annotations

import copy
import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from everlong_lab.harness.files import replacing
from everlong_lab.rerank.examples import Candidate, Example
from everlong_models.errors import RunError
from everlong_models.text.reranker import PairTokenizer, TokenScorer, batch, sentence_tokens

_QUESTIONS = 8
"""Questions of a step."""
_NEAREST, _OTHERS = 4, 5
"""Wrong passages of a question: the best of the search, and others at random."""
_ROWS = 16
"""Passages in a batch. They have similar lengths, to limit padding, and can belong to several questions."""
_HELD_OUT = 9
"""One text in this many is held out. Its questions measure the training."""
_RANK = 64
"""Rank of the updates that are saved for each matrix (docs/research/lab-notes.md compares it with whole matrices)."""


@dataclass(frozen=True, slots=True)
class Step:
    """`loss`: mean over the questions of the negative log of the right sentences' share."""

    number: int
    of: int
    loss: float


class RerankerTraining:
    """Trains on `examples`, a part of whose texts is held out. `encoder`: a folder in Hugging Face format.

    `rounds`: how often each example is used. `checkpoint`: a file to continue from, if it exists, and to save to. Raises `RunError` if it
    is damaged or of another run, and for too few examples.
    """

    def __init__(
        self, encoder: Path, examples: Sequence[Example], *, rounds: int = 2, lr: float = 1e-4, seed: int = 0, device: str = "cpu",
        checkpoint: Path | None = None,
    ) -> None:  # fmt: skip
        texts = sorted({example.text for example in examples})
        held_out = set(texts[::_HELD_OUT])
        self.held_out = [example for example in examples if example.text in held_out]
        learnt = [example for example in examples if example.text not in held_out]
        order = random.Random(seed)  # noqa: S311 - for samples
        self._order = [n for _ in range(rounds) for n in order.sample(range(len(learnt)), len(learnt))]
        if not self.total:
            raise RunError(
                f"{len(learnt)} questions, {rounds} times each, are too few: a step takes {_QUESTIONS}, and one text in {_HELD_OUT} is held out"
            )
        self._learnt = learnt
        self._seed = seed
        self._lr = lr
        self._device = torch.device(device)
        torch.manual_seed(seed)
        self.model = TokenScorer(encoder).to(self._device)
        self._start = {name: weight.detach().clone() for name, weight in self.model.encoder.named_parameters()}
        self.model.encoder.embeddings.requires_grad_(False)
        self._low = copy.deepcopy(self.model).to(torch.bfloat16)
        self._tokenizer = PairTokenizer(encoder)
        head = list(self.model.head.parameters())
        body = [weight for weight in self.model.encoder.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW([{"params": body}, {"params": head}], lr=lr, weight_decay=0.01)
        self._checkpoint = checkpoint
        self._done = 0
        if checkpoint is not None and checkpoint.exists():
            self._restore(checkpoint)
        self._update_low()

    @property
    def total(self) -> int:
        """The number of steps."""
        return len(self._order) // _QUESTIONS

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self._done >= self.total

    def steps(self, *, stop: Callable[[], bool] = lambda: False) -> Iterator[Step]:
        """Train until all steps are done, or `stop` returns True.

        Saves a checkpoint then, and every five minutes. A caller that does not exhaust the iterator loses the steps since the last one.
        """
        saved = time.monotonic()
        while not self.finished and not stop():
            yield self._step()
            if time.monotonic() - saved > 300:
                self.save_checkpoint()
                saved = time.monotonic()
        self.save_checkpoint()

    def _step(self) -> Step:
        step = self._done
        rate = self._lr * min(1.0, (step + 1) / 30) * (1 - step / self.total)
        for group, factor in zip(self._optimizer.param_groups, (1, 10), strict=True):
            group["lr"] = rate * factor
        self._low.zero_grad(set_to_none=True)
        asked = []
        for place in range(step * _QUESTIONS, (step + 1) * _QUESTIONS):
            example, chosen = self._learnt[self._order[place]], random.Random(f"{self._seed} {place}")  # noqa: S311
            asked.append((example.question, _drawn(example, chosen)))
        losses = [loss for scored in self._scores(asked) if (loss := _loss(*scored)) is not None]
        total = torch.stack(losses).sum() / _QUESTIONS if losses else torch.zeros(())
        if losses:
            total.backward()
        for weight, low in zip(self.model.parameters(), self._low.parameters(), strict=True):
            weight.grad = None if low.grad is None else low.grad.float()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._update_low()
        self._done += 1
        return Step(self._done, self.total, float(total.detach()))

    @torch.no_grad()
    def _update_low(self) -> None:
        for weight, low in zip(self.model.parameters(), self._low.parameters(), strict=True):
            low.copy_(weight)

    def _scores(self, asked: Sequence[tuple[str, Sequence[Candidate]]]) -> list[tuple[Tensor, Tensor]]:
        """Return the scores and labels, [sentences] each, of all sentences that are read, for each question with its passages."""
        rows, owners = list[Any](), list[tuple[int, Candidate]]()
        for n, (question, candidates) in enumerate(asked):
            rows += self._tokenizer.encode(question, [candidate.text for candidate in candidates])
            owners += [(n, candidate) for candidate in candidates]
        of_tokens = dict[int, Tensor]()
        order = sorted(range(len(rows)), key=lambda n: len(rows[n]))
        for start in range(0, len(order), _ROWS):
            numbers = order[start : start + _ROWS]
            read = self._low(*batch([rows[n] for n in numbers]).to(self._device)).float()
            of_tokens.update(zip(numbers, read, strict=True))
        scores, labels = [list[Tensor]() for _ in asked], [list[int]() for _ in asked]
        for n, (question_number, candidate) in enumerate(owners):
            for places, label in zip(sentence_tokens(rows[n], candidate.sentences), candidate.labels, strict=True):
                if len(places):
                    scores[question_number].append(of_tokens[n][torch.from_numpy(places)].mean())
                    labels[question_number].append(label)
        return [(torch.stack(a), torch.tensor(b, device=self._device)) for a, b in zip(scores, labels, strict=True)]

    @torch.no_grad()
    def score(self) -> float:
        """Return the mean, over held-out questions, of 1 ÷ the rank of the best right sentence among all sentences of the question."""
        ranks = []
        for example in self.held_out:
            ((scores, labels),) = self._scores([(example.question, example.candidates)])
            scores, labels = scores[labels >= 0], labels[labels >= 0]
            if bool((labels == 1).any()):
                ranks.append(1 / (1 + int((scores > scores[labels == 1].max()).sum())))
        return float(np.mean(ranks)) if ranks else 0.0

    def save(self, file: Path) -> None:
        """Write the changes of the encoder's weights in bfloat16, as `Reranker` loads them."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                continue
            weight = parameter.detach().cpu()
            start = self._start.get(name.removeprefix("encoder."))
            if start is None or weight.dim() < 2:
                tensors[name] = weight.bfloat16()
                continue
            u, s, v = torch.linalg.svd(weight - start.cpu(), full_matrices=False)
            root = s[:_RANK].sqrt()
            tensors[f"{name}.A"] = (root[:, None] * v[:_RANK]).bfloat16().contiguous()
            tensors[f"{name}.B"] = (u[:, :_RANK] * root).bfloat16().contiguous()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as part:
                save_file(tensors, part)
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot write the reranker to {file}: {error}") from error

    def save_checkpoint(self) -> None:
        """Write the checkpoint, if there is a file for it."""
        if self._checkpoint is None:
            return
        state = {
            "done": self._done,
            "of": self._of(),
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        try:
            with replacing(self._checkpoint) as part:
                torch.save(state, part)
        except (OSError, RuntimeError) as error:
            raise RunError(f"cannot write the checkpoint {self._checkpoint}: {error}") from error

    def _restore(self, file: Path) -> None:
        try:
            state: dict[str, Any] = torch.load(file, map_location=self._device, weights_only=True)
            same = state["of"] == self._of()
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, LookupError, TypeError) as error:
            raise RunError(f"{file} is damaged, or no checkpoint of the reranker: {error}") from error
        if not same:
            raise RunError(
                f"{file} is a checkpoint of another run: give the same questions, --rounds, --lr and --seed, or another --checkpoint"
            )
        self._done = state["done"]
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _of(self) -> list[float]:
        """Return what a checkpoint must have in common with this run."""
        return [len(self._learnt), len(self.held_out), len(self._order), self._lr, self._seed]


def _loss(scores: Tensor, labels: Tensor) -> Tensor | None:
    """Return the loss of a question with these sentences; None if no token of its answer is read."""
    scores, labels = scores[labels >= 0], labels[labels >= 0]
    if not bool((labels == 1).any()):
        return None
    share = torch.logsumexp(scores, 0) - torch.logsumexp(scores[labels == 1], 0)
    return share + 0.1 * nn.functional.binary_cross_entropy_with_logits(scores, labels.float())


def _drawn(example: Example, chosen: random.Random) -> list[Candidate]:
    """Return the passages of a question that compete in a step: up to two that tell the answer, and some that do not."""
    right = [candidate for candidate in example.candidates if 1 in candidate.labels]
    wrong = [candidate for candidate in example.candidates if 1 not in candidate.labels]
    others = wrong[_NEAREST:]
    return [*right[:2], *wrong[:_NEAREST], *chosen.sample(others, min(_OTHERS, len(others)))]
