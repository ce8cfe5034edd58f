"""Sorting by frequency: the sequences, their answers, and the score."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from everlong_lab.eval.seeds import SeededModel
from everlong_lab.eval.sorting import sorting
from everlong_lab.tasks.sorting import Sorting, SortingConfig, by_frequency, drifting
from everlong_lab.tasks.task import Setting
from everlong_lab.train.learner import LearnerRecipe, make_learner
from everlong_models.errors import ConfigError
from everlong_models.memories.state import MemoryState
from everlong_models.model import load_model
from everlong_models.text.tokenizer import Tokenizer

V, S = 5, 8


def task(seed: int = 0, symbols: int = V, segment_length: int = S) -> Sorting:
    config = SortingConfig(symbols=symbols)
    tokenizer = Tokenizer(Sorting.make_tokenizer(config, Path()))
    return Sorting(config, Setting(tokenizer, segment_length, Path(), seed))


class Oracle:
    """A model that answers by counting all symbols, or only those from `since` on."""

    segment_length = S
    vocab_size = V + 1

    def __init__(self, since: int = 0) -> None:
        self.since = since

    def initial_state(self, rows: int = 1) -> MemoryState:
        return MemoryState({"read": torch.zeros(rows, 0, dtype=torch.int64)})

    def read(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        return MemoryState({"read": torch.cat([state["read"], tokens], dim=1)})

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        seen = state["read"][:, self.since :].numpy()
        assert (tokens[:, 0] == V).all(), "the answer's segment begins with the separator"
        scores = torch.zeros(*tokens.shape, V + 1)
        for row, answer in enumerate(by_frequency(seen, V)):
            scores[row, torch.arange(V), torch.from_numpy(answer)] = 9.0
        return scores


def naive(line: list[int], symbols: int) -> list[int]:
    counts, first = Counter(line), {symbol: line.index(symbol) for symbol in line}
    return sorted(range(symbols), key=lambda symbol: (-counts[symbol], first.get(symbol, len(line)), symbol))


@pytest.mark.parametrize("length", [0, 3, 20, 400])
def test_the_answer_is_a_naive_count(length: int) -> None:
    random = np.random.default_rng(length)
    sequence = random.integers(0, 7, (30, length))
    assert by_frequency(sequence, 8).tolist() == [naive(line, 8) for line in sequence.tolist()]


def test_documents_are_sequence_separator_answer() -> None:
    batch = task().batch(3, rows=4, segments=6)
    L = 6 * S
    assert batch.tokens.shape == (4, L + 1 + V)
    assert batch.lengths.tolist() == [L + 1 + V] * 4
    assert batch.fresh
    assert (batch.tokens[:, :L] < V).all()
    assert (batch.tokens[:, L] == V).all()
    assert batch.tokens[:, L + 1 :].tolist() == [naive(line, V) for line in batch.tokens[:, :L].tolist()]
    targets = torch.arange(L + 1 + V) > L
    assert (batch.targets == targets).all()


def test_the_distribution_drifts_from_one_mixture_to_another() -> None:
    """Over many sequences of one seed, the symbols at t have the frequencies (1 − α) p_0 + α p_1."""
    length, rows = 20_000, 6
    sequence = drifting(np.random.default_rng(1), rows, length, V)
    weights = np.random.default_rng(1).integers(1, 10, (2, rows, V))
    p = weights / weights.sum(-1, keepdims=True)
    for part in range(5):
        piece = sequence[:, part * length // 5 : (part + 1) * length // 5]
        found = np.stack([np.bincount(line, minlength=V) / piece.shape[1] for line in piece])
        alpha = (part + 0.5) / 5
        np.testing.assert_allclose(found, (1 - alpha) * p[0] + alpha * p[1], atol=0.03)


def test_every_row_has_distributions_of_its_own() -> None:
    frequencies = [np.bincount(line, minlength=V) for line in drifting(np.random.default_rng(0), 8, 2000, V)]
    assert np.std(np.stack(frequencies), axis=0).min() > 50


def test_batches_follow_from_seed_and_step_alone() -> None:
    one, other = task(), task()
    other.batch(0, 2, 2)
    assert torch.equal(one.batch(7, 2, 3).tokens, other.batch(7, 2, 3).tokens)
    assert not torch.equal(one.batch(7, 2, 3).tokens, one.batch(8, 2, 3).tokens)
    assert not torch.equal(one.batch(7, 2, 3).tokens, task(seed=1).batch(7, 2, 3).tokens)


def test_held_out_documents_are_the_same_for_all_and_never_trained_on() -> None:
    held_out = torch.cat([batch.tokens for batch in task(seed=0).held_out(5, 2, rows=2)])
    assert len(held_out) == 5
    assert torch.equal(held_out, torch.cat([batch.tokens for batch in task(seed=3).held_out(5, 2, rows=2)]))
    trained = {tuple(row) for step in range(50) for row in task().batch(step, 4, 2).tokens.tolist()}
    assert not trained & {tuple(row) for row in held_out.tolist()}


def test_accuracy_is_the_share_of_right_positions() -> None:
    assert task().evaluate(Oracle(), samples=5, segments=3)["accuracy"] == 1.0
    # By hand: whoever has counted the last segment only.
    right = count = 0
    for batch in task().held_out(5, 3):
        for row in batch.tokens.tolist():
            right += sum(map(int.__eq__, naive(row[2 * S : 3 * S], V), row[3 * S + 1 :]))
            count += V
    found = task().evaluate(Oracle(since=2 * S), samples=5, segments=3)
    assert found["accuracy"] == pytest.approx(right / count)
    assert 0.2 < found["accuracy"] < 0.9


def test_counting_a_window_only_gets_worse_as_it_shrinks() -> None:
    ten = task(symbols=10, segment_length=16)
    found = [ten.window_accuracy(samples=40, segments=64, window=window) for window in (1024, 256, 64, 0)]
    assert found[0] > 0.95  # all but what ties decide
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.4


def test_a_segment_must_hold_the_answer() -> None:
    with pytest.raises(ConfigError, match="segment_length=5: must hold the separator and 5 symbols, 6 tokens"):
        task(segment_length=V)
    task(segment_length=V + 1)


def test_a_trained_model_can_be_loaded(tmp_path: Path) -> None:
    """A tokenizer of symbols has no chat format; loading must still work."""
    options = {"segment_length": S, "width": 8, "layers": 1, "heads": 1, "feed_forward": 8, "memory_length": S}
    recipe = LearnerRecipe(memory="transformer_xl", options=options, learn="all")
    learner = make_learner(
        recipe,
        made_tokenizer=Sorting.make_tokenizer(SortingConfig(symbols=V), Path()),
        models_dir=tmp_path,
        device=torch.device("cpu"),
        seed=0,
    )
    learner.save(tmp_path / "sorter", "")
    loaded = load_model(str(tmp_path / "sorter"), models_dir=tmp_path)
    made = SeededModel("", loaded.memory, loaded.tokenizer)
    assert sorting([made], lengths=[2 * S], samples=2)[0]["symbols"] == 2 * S
