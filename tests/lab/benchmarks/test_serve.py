"""`everlong bench serve`: the load generator's figures, and the engine alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everlong_lab.benchmarks import serve
from everlong_lab.cli.bench import bench
from everlong_lab.harness.process import Process
from everlong_server.engine.device.requests import AnswerFinished
from tests.process import Server


def found(*requests: tuple[float | None, float | None], errors: int = 0) -> dict:
    """Return a guidellm document: 2 s, requests of 32 tokens with times to the first and between tokens in ms."""
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


def test_an_answer_without_times_is_done_and_no_good_one() -> None:
    turns = [found((900, 50), (None, None), (800, None))]
    figures = serve.figures(turns, first_ms=1000, token_ms=100)
    assert (figures["first_token_ms_p50"], figures["ms_per_token_p50"]) == (850, 50)
    assert (figures["tokens_per_second"], figures["goodput_per_second"]) == (3 * 32 / 2.0, 0.5)


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


def test_the_second_load_is_held_against_the_engine_by_itself() -> None:
    row = {
        "tokens": 1000, "streams": 32, "errors": 0, "tokens_per_second": 90.0, "tokens_per_second_by_ab": 96.0,
        "engine_alone_tokens_per_second": 100.0,
    }  # fmt: skip
    first, second, _ = serve.targets([row])
    assert ("guidellm's load" in first.name, first.value) == (True, 0.9)
    assert ("ab's load" in second.name, second.value, second.met) == (True, 0.96, True)


@pytest.mark.parametrize(
    ("says", "generated", "found"),
    [
        ("echo 'Time taken for tests:   2.500 seconds'", [100, 108], 2.5),
        ("echo 'Time taken for tests:   2.500 seconds'", [100, 107], "2 requests got 7 tokens, not 4 each"),
        (
            "echo 'apr_socket_recv: Connection refused (111)' >&2; exit 111",
            [0, 0],
            r"ab ended with 111: apr_socket_recv",
        ),
        ("true", [0, 0], "ab ended with 0: no output"),
    ],
)
def test_a_load_counts_only_if_each_request_was_answered_in_full(
    says: str, generated: list[int], found: float | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ab, told = tmp_path / "ab", iter(generated)
    ab.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\n{says}\n')
    ab.chmod(0o755)
    monkeypatch.setattr(serve, "_generated", lambda server: next(told))
    plan = serve.ServePlan("rmt", [1000], [2], 1, 1, 4, 1, 1, recall=False, guidellm="", ab=str(ab))
    server = Process(["never started"], ready="/", what="a server")
    asked = (plan, str(ab), server, "resp_1", 2, "Who?", tmp_path)
    if isinstance(found, float):
        assert serve._run_ab(*asked) == found
    else:
        with pytest.raises(serve.LoadGeneratorMissing, match=found):
            serve._run_ab(*asked)
    given = (tmp_path / "given").read_text().split()
    assert given[-1] == f"{str(server.http.base_url).rstrip('/')}/v1/responses"
    assert (given[given.index("-n") + 1], given[given.index("-c") + 1]) == ("2", "2")
    sent = json.loads(Path(given[given.index("-p") + 1]).read_text())
    assert (sent["input"], sent["max_output_tokens"], sent["stream"], sent["recall"]) == ("Who?", 4, True, False)


def test_what_was_generated_is_what_the_server_counts(server: Server) -> None:
    before, session = serve._generated(server), server.http.post("/v1/sessions", json={}).json()["id"]  # type: ignore[arg-type]
    body = {"content": "Who?", "max_tokens": 3, "ignore_eos": True}
    server.http.post(f"/v1/sessions/{session}/messages", json=body).raise_for_status()
    assert serve._generated(server) - before == 3  # type: ignore[arg-type]


def test_without_the_second_load_generator_it_says_how_to_get_it(tmp_path: Path) -> None:
    there = tmp_path / "guidellm"
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    done = CliRunner().invoke(bench, ["serve", "--guidellm", str(there), "--ab", "no-such-program"])
    assert done.exit_code == 1
    assert "apt-get install apache2-utils" in " ".join(done.stderr.split())


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
        """A runner that finishes the oldest answer once enough are running, or all are submitted."""

        def __init__(self) -> None:
            self.under_way: list[Any] = []
            self.most = self.submitted = 0

        def submit(self, answer: Any) -> None:
            self.submitted += 1
            self.under_way.append(answer)
            self.most = max(self.most, len(self.under_way))
            if len(self.under_way) == 3 or self.submitted > 7:
                self.under_way.pop(0).sink(AnswerFinished("length", "", None, [], 1, 1, 0.0))  # type: ignore[arg-type]
                while self.submitted == 10 and self.under_way:
                    self.under_way.pop(0).sink(AnswerFinished("length", "", None, [], 1, 1, 0.0))  # type: ignore[arg-type]

    runner, plan = Counting(), serve.ServePlan("rmt", [1000], [3], 1, 1, 4, 1, 1, recall=False, guidellm="")
    assert serve._run_engine(plan, runner, 10, 3, None, [1]) > 0  # type: ignore[arg-type]
    assert (runner.submitted, runner.most) == (10, 3)
