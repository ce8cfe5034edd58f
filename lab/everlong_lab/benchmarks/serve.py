"""`everlong bench serve`: many people ask at once about documents that were read. The load is guidellm's, over OpenAI's API.

A document is read and answered about once, over HTTP; every request of the load goes on from that answer by its id
(`previous_response_id`), which forks it: each is a session of its own behind a long document. In turns with it, the engine
without HTTP and Redis on the same prompts; and, to tell what HTTP costs from what guidellm does on the same cores, the same requests
by Apache's `ab`, which takes next to nothing of them.
"""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prometheus_client.parser import text_string_to_metric_families

from everlong_lab.corpora.text import packaged
from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target
from everlong_models import MemoryState, Model, SamplingParams
from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone
from everlong_server.engine.answering.grounding import BESIDE
from everlong_server.engine.device.requests import Answer, Delta, Failed, Finished
from everlong_server.engine.device.runner import Runner
from everlong_server.process.loading import load
from everlong_server.settings import Settings, load_settings

_PROMPT = 24
"""Tokens of a question, as guidellm makes them up."""


class LoadGeneratorMissing(Exception):
    """guidellm, or ab, is not there, or could not do its work; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What is measured: documents of `lengths` tokens, `streams` requests at a time (`rounds` times as many in each of
    `turns`, which the server and the engine alone take in turn), answers of `written` tokens. `first_ms`, `token_ms`: what
    an answer may take for its first token, and for each further one, to count as goodput. `recall`: passages go before the
    questions, as the server does it by itself."""

    memory: str
    lengths: Sequence[int]
    streams: Sequence[int]
    rounds: int
    turns: int
    written: int
    first_ms: float
    token_ms: float
    recall: bool
    guidellm: str
    ab: str | None = None


def run(plan: ServePlan, *, progress: Callable[[str], None]) -> Report:
    """Raises `LoadGeneratorMissing` before anything is measured if a load generator is not there."""
    if shutil.which(plan.guidellm) is None:
        raise LoadGeneratorMissing(
            f"no program {plan.guidellm!r}: python -m venv load && load/bin/pip install torch guidellm, "
            "then --guidellm load/bin/guidellm (an environment of its own: it brings its own versions)"
        )
    if plan.ab is not None and shutil.which(plan.ab) is None:
        raise LoadGeneratorMissing(f"no program {plan.ab!r}: apt-get install apache2-utils, then --ab ab")
    settings = load_settings().model_copy(update={"model": DEFAULT_BACKBONE, "memory": plan.memory})
    backbone = find_backbone(DEFAULT_BACKBONE, models_dir=settings.models_dir.expanduser(), progress=progress)
    model = load(settings, progress)
    whole, S = model.tokenizer.encode(packaged()), model.segment_length
    empty = model.memory.initial_state(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="evl") as folder, _engine(model, settings) as runner:
        server = Process.everlong(Path(folder) / "data", "--model", DEFAULT_BACKBONE, "--memory", plan.memory)
        server.start()
        try:
            for length in plan.lengths:
                progress(f"reading {length:,} tokens")
                document = (whole * -(-length // len(whole)))[:length]
                answered = _answered(server, model.tokenizer.decode(document))
                question = model.tokenizer.decode(whole[:_PROMPT])
                prompt = whole[: _read(plan, server, answered, question)]
                with torch.inference_mode():
                    text = torch.tensor([document[: length // S * S]], device=next(iter(empty.tensors.values())).device)
                    state = model.memory.read(text, empty)
                _alone(
                    plan, runner, runner.max_streams, runner.max_streams, state, prompt
                )  # what kernels do at their first use
                for streams in plan.streams:
                    loads, seconds, by_ab = [], 0.0, 0.0
                    for turn in range(plan.turns):
                        progress(f"{length:,} tokens, {streams} at a time, turn {turn + 1} of {plan.turns}")
                        loads.append(_load(plan, server, answered, streams, backbone, Path(folder) / "load.json"))
                        seconds += _alone(plan, runner, plan.rounds * streams, streams, state, prompt)
                        if plan.ab is not None:
                            by_ab += _plain(plan, plan.ab, server, answered, streams, question, Path(folder))
                    row = {"tokens": length, "streams": streams} | figures(loads, plan.first_ms, plan.token_ms)
                    row["read_for_an_answer"] = len(prompt)
                    written = plan.turns * plan.rounds * streams * plan.written
                    row["engine_alone_tokens_per_second"] = written / seconds
                    rows.append(row | ({"tokens_per_second_by_ab": written / by_ab} if by_ab else {}))
        finally:
            server.kill()
    return Report("serve", rows, targets(rows), _notes(plan))


def figures(loads: Sequence[dict[str, Any]], first_ms: float, token_ms: float) -> dict[str, Any]:
    """Of guidellm's documents, one a turn, together; percentiles are of requests. `errors`: requests that failed. An answer that came
    as one piece, or without any text, as random words' may, has no time for each token, or none at all, and is no good one.

    Raises `LoadGeneratorMissing` if no request came to its end.
    """
    done = [request for load in loads for request in load["requests"]["successful"]]
    errors, seconds = sum(len(load["requests"]["errored"]) for load in loads), sum(load["duration"] for load in loads)
    if not done:
        raise LoadGeneratorMissing(f"no request of guidellm's was answered, {errors} failed")
    first, each, read, written = (
        np.array([request[name] for request in done], dtype=float)
        for name in ("time_to_first_token_ms", "inter_token_latency_ms", "prompt_tokens", "output_tokens")
    )
    return {
        "prompt_tokens": round(float(read.mean())),
        "first_token_ms_p50": float(np.nanpercentile(first, 50)),
        "first_token_ms_p95": float(np.nanpercentile(first, 95)),
        "ms_per_token_p50": float(np.nanpercentile(each, 50)),
        "ms_per_token_p95": float(np.nanpercentile(each, 95)),
        "tokens_per_second": float(written.sum()) / seconds,
        "requests_per_second": len(done) / seconds,
        "goodput_per_second": int(((first <= first_ms) & (each <= token_ms)).sum()) / seconds,
        "errors": errors,
    }


def targets(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """Of 32 streams, where they were measured; and that nothing failed."""
    loads = {"tokens_per_second": "guidellm's load", "tokens_per_second_by_ab": "ab's load"}
    of_32 = [
        Target(
            f"{row['tokens']:,} tokens, 32 streams, {name}: tokens/s through HTTP ÷ of the engine alone",
            row[column] / row["engine_alone_tokens_per_second"],
            0.95,
            at_most=False,
        )
        for row in rows
        for column, name in loads.items()
        if row["streams"] == 32 and column in row
    ]
    return [*of_32, Target("requests that failed", float(sum(row["errors"] for row in rows)), 0.0, at_most=True)]


def _answered(server: Process, text: str) -> str:
    """The id of a response about a document of `text`."""
    document = server.read(text)
    content = [{"type": "input_file", "file_id": document["id"]}, {"type": "input_text", "text": "Who is the Count?"}]
    while True:
        response = server.http.post(
            "/v1/responses", json={"input": [{"role": "user", "content": content}], "max_output_tokens": 16}
        )
        if response.status_code == 409 and response.json()["error"]["code"] == "document_not_ready":
            time.sleep(0.05)  # a chat's documents are read anew, behind each other
            continue
        response.raise_for_status()
        return str(response.json()["id"])


def _read(plan: ServePlan, server: Process, answered: str, question: str) -> int:
    """Tokens that are read for a request like those of the load: what the state of the answer before does not hold."""
    body = {"previous_response_id": answered, "store": False, "input": question, "max_output_tokens": 1}
    response = server.http.post("/v1/responses", json=body if plan.recall else body | {"recall": False})
    response.raise_for_status()
    usage = response.json()["usage"]
    return int(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])


def _load(plan: ServePlan, server: Process, answered: str, streams: int, tokenizer: Path, file: Path) -> dict[str, Any]:
    """guidellm's figures for so many streams. Raises `LoadGeneratorMissing` with its last words."""
    body: dict[str, Any] = {"previous_response_id": answered, "store": False}
    if not plan.recall:
        body["recall"] = False
    options = {
        "backend": {
            "kind": "openai_http", "target": str(server.http.base_url), "model": DEFAULT_BACKBONE, "request_format": "/v1/responses",
            "validate_backend": False, "http2": False, "extras": {"body": body},
        },
        "tokenizer": {"kind": "huggingface_auto", "model": str(tokenizer)},
        "profile": {"kind": "concurrent", "streams": streams},
        "constraint": {"kind": "max_requests", "count": plan.rounds * streams},
        "data": {"kind": "synthetic_text", "prompt_tokens": _PROMPT, "output_tokens": plan.written},
        "output": {"kind": "json", "path": str(file)},
    }  # fmt: skip
    command = [plan.guidellm, "run", "--disable-console"]
    for name, value in options.items():
        command += [f"--{name}", json.dumps(value)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode or not file.is_file():
        words = (done.stderr or done.stdout).strip().splitlines()
        raise LoadGeneratorMissing(f"guidellm ended with {done.returncode}: {words[-1] if words else 'without a word'}")
    (found,) = json.loads(file.read_text())["benchmarks"]
    file.unlink()
    return dict(found)


def _plain(plan: ServePlan, ab: str, server: Process, answered: str, streams: int, question: str, folder: Path) -> float:
    """Seconds for the same requests by ab, streamed as guidellm's are. Raises `LoadGeneratorMissing` unless each was answered in full."""
    body = {
        "previous_response_id": answered, "store": False, "input": question, "max_output_tokens": plan.written, "ignore_eos": True,
        "stream": True,
    }  # fmt: skip
    file = folder / "request.json"
    file.write_text(json.dumps(body if plan.recall else body | {"recall": False}))
    many, before = plan.rounds * streams, _generated(server)
    url = str(server.http.base_url.join("/v1/responses"))
    # -l: answers differ in length, by their figures.
    command = [
        ab,
        "-q",
        "-l",
        "-s",
        "3600",
        "-n",
        str(many),
        "-c",
        str(streams),
        "-T",
        "application/json",
        "-p",
        str(file),
        url,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    took = re.search(r"^Time taken for tests: +([0-9.]+) seconds$", done.stdout, re.MULTILINE)
    if done.returncode or took is None:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise LoadGeneratorMissing(f"ab ended with {done.returncode}: {words[-1] if words else 'without a word'}")
    if (written := _generated(server) - before) != many * plan.written:
        raise LoadGeneratorMissing(f"ab's {many} requests got {written} tokens, not {plan.written} each")
    return float(took[1])


def _generated(server: Process) -> int:
    """Tokens that the server has generated."""
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    return int(next(sample.value for sample in samples if sample.name == "everlong_tokens_generated_total"))


@contextmanager
def _engine(model: Model, settings: Settings) -> Iterator[Runner]:
    """The runner by itself, as the server has it."""
    runner = Runner(
        model, max_streams=settings.max_streams, reading_share=settings.reading_share,
        max_stall=settings.max_decode_stall_ms / 1e3, graphs=settings.cuda_graphs,
    )  # fmt: skip
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()


def _alone(plan: ServePlan, runner: Runner, answers: int, streams: int, state: MemoryState, prompt: list[int]) -> float:
    """Seconds for so many answers, `streams` at a time, without HTTP and Redis, each behind `state` and `prompt`."""
    params = SamplingParams(max_tokens=plan.written, ignore_eos=True)
    events: queue.SimpleQueue[Delta | Finished | Failed] = queue.SimpleQueue()

    def submit() -> None:
        runner.submit(Answer(state, [], prompt, params, 0, events.put, BESIDE if plan.recall else None))

    began, waiting, left = time.perf_counter(), answers - min(answers, streams), answers
    for _ in range(answers - waiting):
        submit()
    while left:
        event = events.get()
        if isinstance(event, Failed):
            raise RuntimeError("the engine failed") from event.error
        if isinstance(event, Finished):
            left -= 1
            if waiting:
                waiting -= 1
                submit()
    return time.perf_counter() - began


def _notes(plan: ServePlan) -> list[str]:
    return [
        f"load: guidellm, /v1/responses, streamed; {plan.turns} turns of {plan.rounds} requests a stream, the engine alone "
        f"after each; prompts of {_PROMPT} made-up tokens, "
        f"answers of {plan.written}; each forks one answer behind the document",
        f"memory {plan.memory}, recall {'as the server has it' if plan.recall else 'off'}; goodput: requests per second with a "
        f"first token within {plan.first_ms:g} ms and {plan.token_ms:g} ms for each further one",
        "the load generator runs on the same machine and takes its share of it"
        + (
            ""
            if plan.ab is None
            else "; ab's, a program of little work, is the same requests and counts nothing but their time"
        ),
    ]
