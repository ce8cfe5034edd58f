"""`Drafting`: how many tokens of each answer are guessed and verified in a decode step. `prompt_lookup` makes the guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from everlong_models.generate.prompt_lookup import Chances, PromptLookup, best_width
from everlong_server.engine.device.requests import AnswerRequest

_MOST = 7
"""By default. Steps have 1, 2, 4 or 8 positions of an answer then."""
_ROW_COST_ON_CPU, _ROW_COST_ON_GPU = 0.3, 0.05
"""On a busy machine with two cores and AVX-512, with Qwen2.5 0.5B and 1.5B in four bits: 0.1 to 0.3 for two positions, 0.1 to 0.23 for four,
0.16 to 0.27 for eight (docs/research/performance.md). The other figure is not measured: a GPU is bound by reading the weights for dozens of positions."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """`most`: guesses of an answer in a step. `row_cost`: see `best_width`. `max_rows`: positions of all answers in a step with guesses."""

    most: int
    row_cost: float
    max_rows: int
    chances: Chances = field(default_factory=Chances)

    @classmethod
    def of(cls, most: int | None, *, on_cpu: bool) -> Drafting | None:
        """Return what suits the device, with `most` guesses (None: by default); None if nothing is guessed."""
        most = _MOST if most is None else most
        if not most:
            return None
        return cls(most, _ROW_COST_ON_CPU, 16) if on_cpu else cls(most, _ROW_COST_ON_GPU, 64)

    def begin(self, answer: AnswerRequest) -> None:
        """Prepare to guess the tokens of an answer whose prompt is in its open segment, or was read before.

        Forced tokens count as a part of the context, so that they are guessed.
        """
        if answer.lookup is None:
            context = max(answer.open[answer.hidden_open :], answer.prompt, key=len)
            answer.lookup = PromptLookup([*context, *answer.forced], self.chances)

    def width(self, answers: Sequence[AnswerRequest], room: int) -> int:
        """Return how many positions the next step should have for each answer: its sampled token, and guesses.

        `room`: positions that are left in the fullest segment.
        """
        most = min(self.most + 1, room, self.max_rows // len(answers))
        if most < 2:
            return 1
        return best_width([_expected(answer, most - 1) for answer in answers], row_cost=self.row_cost, most=most)


def _expected(answer: AnswerRequest, most: int) -> list[float]:
    """Return the tokens that a step gives by the number of guesses. The last token of an answer needs no step after it."""
    useful = max(0, min(most, answer.params.max_tokens - answer.generated - 1))
    return [1.0] if answer.lookup is None else answer.lookup.expected(useful)
