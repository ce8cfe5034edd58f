"""Sampling against naive twins: filters, draws and penalties."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong_models.generate import sampling
from everlong_models.generate.sampling import Sampler, SamplingParams, sample_tokens
from everlong_models.kernels.cpu import thread_pool
from everlong_models.splitmix import GOLDEN, splitmix64

NEUTRAL = {"temperature": 1.0, "top_p": 1.0}


def sampler(seed: int = 0, context: list[int] | None = None, vocab: int = 8, **params: object) -> Sampler:
    return Sampler(SamplingParams(**(NEUTRAL | params)), seed, context or [], vocab)


WAYS = ("by operations", "compiled")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch) -> str:
    """The two implementations: PyTorch's operations (GPU) and the kernel (CPU)."""
    if request.param == "by operations":
        monkeypatch.setattr(sampling, "sample_tokens", sampling.sample_with_torch)
    return request.param


def left(way: str, scores: torch.Tensor, **params: object) -> torch.Tensor:
    """Return probabilities (V,), 0 for tokens that are filtered out."""
    p = SamplingParams(**(NEUTRAL | params))
    none = torch.zeros(len(scores), dtype=torch.float64)
    if way == "by operations":
        numbers = torch.tensor(
            [[p.temperature, min(p.top_k or len(scores), len(scores)), p.top_p, p.min_p]], dtype=torch.float64
        )
        ids, probabilities, known = sampling.filter_tokens(scores[None], numbers, len(scores))
        assert known.tolist() == [True]
        return none.index_add(0, ids[0], probabilities[0])
    how = np.array([[p.temperature, p.top_k, p.top_p, p.min_p]])
    ((_, count),), against_likeliest, ids = thread_pool.sample(scores[None], how, np.array([[0, 0]]))
    likeliest = torch.softmax(scores.double() / max(p.temperature, 1e-37), dim=-1).max()
    return none.index_add(0, ids[0, :count], against_likeliest[0, :count].double() * likeliest)


def naive_filter(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """The definitions, token by token."""
    scaled = [x / temperature for x in logits]
    total = sum(math.exp(x - max(scaled)) for x in scaled)
    p = [math.exp(x - max(scaled)) / total for x in scaled]
    if top_k:
        p = [x if sum(y > x for y in p) < top_k else 0.0 for x in p]
    if top_p < 1:
        kept, mass, whole = [0.0] * len(p), 0.0, sum(p)
        for i in sorted(range(len(p)), key=lambda i: -p[i]):
            if mass >= top_p * whole:
                break
            kept[i] = p[i]
            mass += p[i]
        p = kept
    return [x if x >= min_p * max(p) else 0.0 for x in p]


# Distinct scores some way apart, so that no comparison hangs on float32's last bit.
SCORES = st.lists(st.integers(-80, 80), min_size=2, max_size=12, unique=True).map(lambda xs: [x / 16 for x in xs])


class TestFilter:
    @settings(max_examples=200, deadline=None)
    @given(
        SCORES,
        st.sampled_from([0.1, 0.7, 1.0, 1.9]),
        st.integers(0, 14),
        st.sampled_from([0.03, 0.371, 0.777, 0.953, 1.0]),
        st.sampled_from([0.0, 0.0123, 0.31, 1.0]),
    )
    @pytest.mark.parametrize("sizes", [(), (1, 2), (3,), (6, 11), "compiled"], ids=str)
    def test_equals_the_naive_twin_for_any_number_of_examined_tokens(
        self, sizes, logits, temperature, top_k, top_p, min_p
    ):
        params = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        expected = torch.tensor(naive_filter(logits, **params), dtype=torch.float64)
        with mock.patch.object(sampling, "_LIKELIEST", sizes):
            found = left("compiled" if sizes == "compiled" else "by operations", torch.tensor(logits), **params)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)

    @pytest.mark.parametrize("way", WAYS)
    def test_each_by_hand(self, way):
        scores = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
        for params, stays in (
            ({"top_k": 2}, [0.4, 0.3, 0, 0]),
            ({"top_p": 0.69}, [0.4, 0.3, 0, 0]),
            ({"top_p": 0.71}, [0.4, 0.3, 0.2, 0]),
            ({"top_p": 1e-9}, [0.4, 0, 0, 0]),
            ({"top_p": 5e-324}, [0.4, 0, 0, 0]),  # 0 in float32
            ({"min_p": 0.6}, [0.4, 0.3, 0, 0]),
            ({"top_k": 3, "top_p": 0.7}, [0.4, 0.3, 0, 0]),  # 0.7 of the 0.9 that top_k left
            ({"temperature": 0.5}, [0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3, 0.01 / 0.3]),
        ):
            expected = torch.tensor(stays, dtype=torch.float64)
            torch.testing.assert_close(left(way, scores, **params), expected, msg=str(params), rtol=1e-6, atol=0)

    @pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0}])
    def test_the_narrowest_of_each_is_greedy(self, params, way):
        logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
        assert {sampler(seed, vocab=50, **params).sample(logits) for seed in range(20)} == {int(logits.argmax())}

    @pytest.mark.parametrize("sizes", [(), (1,), (2,), (3,)], ids=str)
    def test_ties(self, sizes, monkeypatch, way):
        monkeypatch.setattr(sampling, "_LIKELIEST", sizes)
        tied = torch.tensor([1.0, 3.0, 3.0, 3.0])
        assert sampler(temperature=0).sample(tied) == 1
        assert (left(way, tied, top_k=2) > 0).tolist() == [False, True, True, True]  # all three are equally likely
        assert (left(way, tied, top_p=0.5) > 0).tolist() == [False, True, True, False]  # the first of equals

    @pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-38, 1e-45, 1e-60, 5e-324])
    def test_a_tiny_temperature_is_greedy_and_never_nan(self, temperature, way):
        logits = torch.tensor([-40.0, 90.0, 80.0, 1e30, -math.inf])
        params = {"temperature": temperature, "top_k": 3, "top_p": 0.9, "min_p": 0.1}
        assert left(way, logits, **params).tolist() == [0, 0, 0, 1, 0]
        assert sampler(**params).sample(logits) == 3

    def test_half_precision_logits_are_sampled_in_float32(self):
        assert sampler().adjust(torch.zeros(4, dtype=torch.bfloat16)).dtype == torch.float32


class TestSampling:
    def test_frequencies_are_the_probabilities(self, way):
        p = torch.tensor([0.5, 0.25, 0.0, 0.15, 0.1])
        s, n = sampler(seed=7, vocab=5), 4000
        counts = torch.bincount(torch.tensor([s.sample(p.log()) for _ in range(n)]), minlength=5)
        assert counts[2] == 0
        possible = p > 0
        chi_square = float(((counts - n * p)[possible] ** 2 / (n * p)[possible]).sum())
        assert chi_square < 16.3  # 3 degrees of freedom: one seed in a thousand is worse

    def test_same_seed_same_answer(self, way):
        logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))

        def answer(seed: int) -> list[int]:
            s = sampler(seed, vocab=30)
            torch.rand(seed % 3 + 1)  # the global generator must not matter
            return [s.sample(row) for row in logits]

        assert answer(5) == answer(5)
        assert answer(2**63 - 1) == answer(2**63 - 1)
        assert len({tuple(answer(seed)) for seed in range(8)}) == 8

    @pytest.mark.parametrize("kept", [{}, {"top_p": 0.9}, {"top_k": 100}, {"min_p": 0.05}], ids=str)
    @pytest.mark.long
    def test_the_last_bits_of_the_logits_hardly_ever_matter(self, kept, way):
        """Rounding must hardly ever change a token. With a cumulative sum, 27 to 47 of these would change."""
        random, noise, draws = torch.Generator().manual_seed(0), 1e-3, 2000
        params = {"temperature": 1.0, "top_p": 1.0} | kept
        changed = 0
        for seed in range(draws):
            logits = torch.randn(500, generator=random)
            other = logits + noise * torch.randn(500, generator=random)
            changed += sampler(seed, vocab=500, **params).sample(logits) != sampler(seed, vocab=500, **params).sample(
                other
            )
        assert changed <= 10

    def test_the_last_token_can_be_sampled_and_none_beyond(self, way):
        s = sampler(vocab=2)
        assert {s.sample(torch.zeros(2)) for _ in range(50)} == {0, 1}
        assert s.sample(torch.tensor([-math.inf, 0.0])) == 1
        assert s.sample(torch.tensor([0.0, -math.inf])) == 0

    @pytest.mark.parametrize("edge", [2**-53, 0.5, 1 - 2**-53])
    def test_impossible_tokens_are_not_sampled_at_the_edges(self, edge, monkeypatch):
        monkeypatch.setattr(
            sampling, "uniform", lambda seeds, drawn, ids: torch.full(ids.shape, edge, dtype=torch.float64)
        )
        scores = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
        assert set(sampling.sample_with_torch([sampler(vocab=5)], scores)) <= {1, 3}

    @settings(max_examples=60, deadline=None)
    @given(
        st.sampled_from([2, 3, 31, 32, 33, 500, 5000]),
        st.sampled_from([0.1, 1.0, 10.0]),
        st.sampled_from(["as they are", "many equal", "half of them impossible"]),
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.01, 0.2, 1.0, 2.0]),
                st.sampled_from([0, 0, 1, 5, 300, 1_000_000]),
                st.sampled_from([1.0, 0.9, 0.5, 0.999, 1e-9, 5e-324]),
                st.sampled_from([0.0, 0.0, 0.05, 1.0]),
                st.integers(0, 2**63 - 1),
                st.integers(0, 10**6),
            ),
            min_size=1,
            max_size=4,
        ),
        st.integers(0, 2**32),
    )
    def test_the_kernel_and_pytorch_sample_the_same_tokens(self, vocab, size, kind, how, seed):
        scores = torch.randn(len(how), vocab, generator=torch.Generator().manual_seed(seed)) * size
        if kind == "many equal":
            scores = (2 * scores).round() / 2
        elif kind == "half of them impossible":
            scores[:, ::2] = -math.inf
        rows = []
        for temperature, top_k, top_p, min_p, own, drawn in how:
            rows.append(sampler(own, vocab=vocab, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p))
            rows[-1].generated = drawn
        assert sample_tokens(rows, scores) == sampling.sample_with_torch(rows, scores)

    @pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"top_p": 0.9}, {"top_k": 2, "top_p": 0.5}], ids=str)
    def test_nan_is_never_sampled_if_a_number_is_left(self, params):
        """A broken model may produce NaN. Sampling still returns a token, one whose score is a number if there is any."""
        for scores in ([math.nan] * 40, [-math.inf] * 40, [math.inf] * 40):
            assert 0 <= sampler(vocab=40, **params).sample(torch.tensor(scores)) < 40
        scores = torch.full((40,), math.nan)
        scores[17] = -3.0
        assert sampler(vocab=40, **params).sample(scores) == 17

    @pytest.mark.parametrize(
        ("scores", "how", "seeds"),
        [
            (torch.zeros(2, 8).double(), (2, 4), (2, 2)),
            (torch.zeros(2, 8, device="meta"), (2, 4), (2, 2)),
            (torch.zeros(2, 8), (1, 4), (2, 2)),
            (torch.zeros(2, 8), (2, 4), (2, 1)),
        ],
        ids=["type", "device", "how", "seeds"],
    )
    def test_wrong_types_and_shapes_are_refused(self, scores, how, seeds):
        """The kernel only receives addresses, so types and shapes are checked before."""
        with pytest.raises(ValueError, match=r"scores must be float32.*got scores torch\.float"):
            thread_pool.sample(scores, np.ones(how), np.zeros(seeds))

    def test_numbers_are_those_of_splitmix64(self):
        """Its authors' generator from the state 1234567: its first outputs, as published."""
        outputs = splitmix64(1234567 + torch.arange(1, 6) * GOLDEN)
        expected = (
            6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821
        )  # fmt: skip
        assert [int(x) % 2**64 for x in outputs] == list(expected)

    def test_random_numbers_of_seeds_steps_and_tokens_are_uncorrelated(self):
        n = 64
        seeds, drawn = (axis.flatten() for axis in torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij"))
        numbers = sampling.uniform(seeds, drawn, torch.arange(n).expand(n * n, -1)).reshape(n, n, n) - 0.5
        assert abs(float(numbers.mean())) < 4 * (1 / 12 / n**3) ** 0.5
        assert abs(float(numbers.var()) - 1 / 12) < 0.001
        for axis in range(3):
            neighbours = (numbers * numbers.roll(1, axis)).mean() * 12
            assert abs(float(neighbours)) < 4 / n**1.5, axis

    def test_a_rows_token_does_not_depend_on_other_rows(self, way):
        logits = torch.randn(7, 5000, generator=torch.Generator().manual_seed(0)) * 3
        how: list[dict[str, object]] = [
            {}, {"temperature": 0}, {"top_p": 0.9, "temperature": 0.2}, {"top_p": 0.99, "temperature": 2.0}, {"top_k": 5},
            {"top_k": 1000, "min_p": 0.01}, {"logit_bias": {3: 4.0}, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        ]  # fmt: skip

        def fresh() -> list[Sampler]:
            return [sampler(seed, [1, 2], 5000, **params) for seed, params in enumerate(how)]

        alone = [s.sample(row) for s, row in zip(fresh(), logits, strict=True)]
        for order in (range(7), [6, 3, 1], [2, 4, 0, 5]):
            rows = [fresh()[row] for row in order]
            scores = torch.stack([s.adjust(logits[row]) for s, row in zip(rows, order, strict=True)])
            assert sampling.sample_tokens(rows, scores) == [alone[row] for row in order]

    def test_logits_are_left_alone(self, way):
        logits = torch.randn(8)
        before = logits.clone()
        sampler(logit_bias={1: 5.0}, repetition_penalty=2.0, presence_penalty=1.0, context=[1]).sample(logits)
        assert torch.equal(logits, before)


class TestPenalties:
    LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.0, 3.0, -2.0, 1.0, 1.5])

    def test_repetition_divides_what_is_positive_and_multiplies_what_is_not(self):
        s = sampler(context=[0, 1, 3, 3], repetition_penalty=2.0)
        torch.testing.assert_close(s.adjust(self.LOGITS)[:4], torch.tensor([1.0, -2.0, 0.5, 0.0]))
        assert s.sample(torch.tensor([0.0] * 7 + [60.0])) == 7
        assert s.adjust(self.LOGITS)[7] == 0.75

    def test_presence_counts_once_and_frequency_each_time_and_neither_the_context(self):
        s = sampler(context=[1, 2], presence_penalty=0.5, frequency_penalty=-0.25)
        for token in (4, 4, 6, 4):
            s.sample(torch.full((8,), -1e4).index_fill(0, torch.tensor(token), 0.0))
        expected = self.LOGITS.clone()
        expected[4] += 3 * 0.25 - 0.5
        expected[6] += 0.25 - 0.5
        torch.testing.assert_close(s.adjust(self.LOGITS), expected)

    def test_bias_is_added_first(self):
        s = sampler(context=[2], logit_bias={2: 1.5, 5: -100}, repetition_penalty=4.0)
        expected = self.LOGITS.clone()
        expected[2], expected[5] = (0.5 + 1.5) / 4, -102
        torch.testing.assert_close(s.adjust(self.LOGITS), expected)

    def test_neutral_values_change_nothing(self):
        assert torch.equal(sampler(context=[1, 2, 3]).adjust(self.LOGITS), self.LOGITS)
        assert not sampler(context=[1, 2, 3]).adjusts

    @pytest.mark.parametrize(
        "changes",
        [{"logit_bias": {2: 1.0}}, {"repetition_penalty": 2.0}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0}],
        ids=lambda changes: next(iter(changes)),
    )
    def test_adjusts_is_true_if_something_changes(self, changes):
        s = sampler(context=[1, 2, 3], **changes)
        s.accept(4)
        assert s.adjusts
        assert not torch.equal(s.adjust(self.LOGITS), self.LOGITS)
