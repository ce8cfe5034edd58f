"""Sampling parameters: the limits of each field, and what is refused."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
from pydantic import ValidationError

from everlong_models.generate.sampling import MAX_LOGIT_BIAS, MAX_STOP_LENGTH, MAX_STOP_STRINGS, SamplingParams


class TestParams:
    RANGES: ClassVar = {  # field: inside, outside
        "max_tokens": ([1, 1_000_000], [0, -1, 1_000_001, 1.5]),
        "temperature": ([0, 2], [-0.01, 2.01]),
        "top_p": ([1e-9, 1], [0, -1, 1.01]),
        "top_k": ([0, 1_000_000], [-1, 1_000_001, 1.5]),
        "min_p": ([0, 1], [-0.1, 1.01]),
        "repetition_penalty": ([0.01, 10], [0, -1, 10.1]),
        "presence_penalty": ([-2, 2], [-2.1, 2.1]),
        "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
        "seed": ([None, 0, 2**63 - 1], [-1, 2**63, 0.5]),
        "top_logprobs": ([0, 20], [-1, 21]),
        "stop": (
            [None, "x", ["x"] * MAX_STOP_STRINGS, "x" * MAX_STOP_LENGTH],
            ["", [""], ["x"] * (MAX_STOP_STRINGS + 1), "x" * (MAX_STOP_LENGTH + 1), 5, [5]],
        ),
        "stop_token_ids": ([[], [0]], [[-1], [0] * (MAX_STOP_STRINGS + 1), 3, ["x"]]),
        "logit_bias": (
            [{}, {0: 100, 1: -100}],
            [{-1: 0}, {0: 101}, {0: -101}, {0: math.nan}, {0: math.inf}, dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1)],
        ),
        "ignore_eos": ([True], [3, "perhaps"]),
        "logprobs": ([True], [3, "perhaps"]),
        "stop_repetition": ([True, False], [3, "perhaps"]),
        "json_schema": ([None, {}, {"type": "object"}], ["object", [1], 3]),
    }

    def test_every_field_is_tested(self):
        assert set(self.RANGES) == set(SamplingParams.model_fields)

    @pytest.mark.parametrize("field", RANGES)
    def test_limits(self, field):
        inside, outside = self.RANGES[field]
        for value in inside:
            SamplingParams(**{field: value})
        for value in outside:
            with pytest.raises(ValidationError, match=field):
                SamplingParams(**{field: value})

    @pytest.mark.parametrize(
        "field", [f for f in RANGES if f not in ("stop", "ignore_eos", "logprobs", "json_schema", "stop_repetition")]
    )
    @pytest.mark.parametrize(
        "value",
        [math.nan, math.inf, -math.inf, "many", [[]], {"a": 1}, object()],
        ids=lambda value: str(value).split(" at ")[0],
    )
    def test_no_number(self, field, value):
        with pytest.raises(ValidationError, match=field):
            SamplingParams(**{field: value})

    def test_unknown_fields_are_errors(self):
        with pytest.raises(ValidationError, match="temprature"):
            SamplingParams(temprature=0.5)

    def test_a_single_stop_string_is_a_list_of_one(self):
        assert SamplingParams(stop="\n\n").stop == ("\n\n",)
        assert SamplingParams(stop=None).stop == ()

    def test_frozen(self):
        with pytest.raises(ValidationError):
            SamplingParams().temperature = 1
