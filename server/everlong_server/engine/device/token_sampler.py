"""`TokenSampler`: samples the next token of every answer in the decode batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from everlong_models import CUDAGraphs, GraphedFunction
from everlong_models.generate.sampling import sample_from_logits, sample_tokens
from everlong_server.engine.device.requests import AnswerRequest


class TokenSampler:
    """Samples tokens on one device."""

    def __init__(self, graphs: CUDAGraphs | None) -> None:
        """`graphs`: CUDA graphs that record the sampling kernel; None runs it without graphs."""
        self._kernel = GraphedFunction(sample_from_logits, graphs, "sampling") if graphs is not None else None

    def sample(
        self, answers: Sequence[AnswerRequest], fail: Callable[[AnswerRequest, Exception], None]
    ) -> list[tuple[AnswerRequest, int]]:
        """Return each answer with its next token, from its logits. An answer whose sampler raises is passed to `fail`.

        Raises `AcceleratorError`, after which the device can compute nothing.
        """
        rows = [
            (answer, answer.sampler, answer.logits)
            for answer in answers
            if answer.sampler and answer.logits is not None
        ]
        if not rows:
            return []
        scores = torch.stack([logits for *_, logits in rows]).float()  # (rows, V), converted at once
        valid: list[int] = []
        for row, (answer, sampler, _) in enumerate(rows):
            try:
                if sampler.adjusts:
                    scores[row] = sampler.adjust(scores[row])
            except torch.AcceleratorError:
                raise
            except Exception as error:
                fail(answer, error)
            else:
                valid.append(row)
        if len(valid) < len(rows):
            rows, scores = [rows[row] for row in valid], scores[valid]
        tokens = sample_tokens([sampler for _, sampler, _ in rows], scores, self._kernel) if rows else []
        return [(answer, token) for (answer, *_), token in zip(rows, tokens, strict=True)]
