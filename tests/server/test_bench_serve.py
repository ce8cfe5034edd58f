"""`everlong bench serve`: what is made of the load generator's figures, and the engine that they are held against."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from everlong_server.bench import serve
from everlong_server.cli.bench import bench
from everlong_server.engine.items import Finished


def found(*requests: tuple[float, float], errors: int = 0) -> dict:
    """A benchmark of guidellm's document: 2 s, requests of 32 tokens with first token and time between tokens in ms."""
    return {
        "duration": 2.0,
        "requests": {
            "successful": [
                {
                    "prompt_tokens": 600,
                    "output_tokens": 32,
                    "time_to_first_token_ms": first,
                    "inter_token_latency_ms": each,
                }
                for first, each in requests
            ],
            "errored": [{}] * errors,
        },
    }


def test_figures_are_per_second_of_all_turns_and_goodput_is_what_was_quick_enough() -> None:
    turns = [found((900, 50), (1100, 50), errors=1), found((900, 150), (800, 50))]
    figures = serve.figures(turns, first_ms=1000, token_ms=100)
    assert figures["tokens_per_second"] == 4 * 32 / 4.0
    assert figures["requests_per_second"] == 1.0
    assert figures["goodput_per_second"] == 0.5
    assert (figures["first_token_ms_p50"], figures["ms_per_token_p50"]) == (900, 50)
    assert (figures["first_token_ms_p95"], figures["ms_per_token_p95"]) == pytest.approx((1070, 135))
    assert (figures["prompt_tokens"], figures["errors"]) == (600, 1)


def test_a_load_without_one_answer_has_no_figures() -> None:
    with pytest.raises(serve.LoadGeneratorMissing, match="2 failed"):
        serve.figures([found(errors=2)], first_ms=1000, token_ms=100)


def test_thirty_two_streams_are_held_against_the_engine_and_nothing_may_fail() -> None:
    row = {"tokens": 1000, "errors": 0, "tokens_per_second": 90.0, "engine_alone_tokens_per_second": 100.0}
    of_32, failed = serve.targets([row | {"streams": 4}, row | {"streams": 32}])
    assert (of_32.value, of_32.met) == (0.9, False)
    assert failed.met
    (failed,) = serve.targets([row | {"streams": 4, "errors": 1}])
    assert not failed.met


def test_without_the_load_generator_it_says_how_to_get_it() -> None:
    done = CliRunner().invoke(bench, ["serve", "--guidellm", "no-such-program"])
    assert done.exit_code == 1
    assert "pip install torch guidellm" in " ".join(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--streams", "0"], ["--streams", "many"], ["--lengths", "20"]])
def test_numbers_that_are_none_are_named(arguments: list[str]) -> None:
    done = CliRunner().invoke(bench, ["serve", *arguments])
    assert done.exit_code == 1
    assert " ".join(arguments) in " ".join(done.stderr.split())


def test_the_engine_alone_has_no_more_answers_at_once_than_the_load() -> None:
    class Counting:
        """A runner that ends the oldest answer when as many as it was told are under way, or all are there."""

        def __init__(self) -> None:
            self.under_way: list[Any] = []
            self.most = self.submitted = 0

        def submit(self, answer: Any) -> None:
            self.submitted += 1
            self.under_way.append(answer)
            self.most = max(self.most, len(self.under_way))
            if len(self.under_way) == 3 or self.submitted > 7:
                self.under_way.pop(0).sink(Finished("length", "", None, [], 1, 1, 0.0))  # type: ignore[arg-type]
                while self.submitted == 10 and self.under_way:
                    self.under_way.pop(0).sink(Finished("length", "", None, [], 1, 1, 0.0))  # type: ignore[arg-type]

    runner, plan = Counting(), serve.Plan("rmt", [1000], [3], 1, 1, 4, 1, 1, recall=False, guidellm="")
    assert serve._alone(plan, runner, 10, 3, None, [1]) > 0  # type: ignore[arg-type]
    assert (runner.submitted, runner.most) == (10, 3)
