"""`everlong bench serve`: many people ask at once about documents that were read. The load is guidellm's, over OpenAI's API.

A document is read and answered about once, over HTTP; every request of the load goes on from that answer by its id
(`previous_response_id`), which forks it: each is a session of its own behind a long document. Beside it, the engine without
HTTP and Redis on the same prompts.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from everlong_models import MemoryState, Model, SamplingParams
from everlong_models.loading import DEFAULT_BACKBONE, find_backbone, load_tokenizer
from everlong_models.tasks.text import packaged
from everlong_server import services
from everlong_server.bench.process import Process
from everlong_server.bench.report import Report, Target
from everlong_server.engine.grounding import BESIDE
from everlong_server.engine.items import Answer, Delta, Failed, Finished
from everlong_server.engine.runner import Runner
from everlong_server.settings import load_settings

_PROMPT = 24
"""Tokens of a question, as guidellm makes them up."""


class LoadGeneratorMissing(Exception):
    """guidellm is not there, or could not do its work; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: documents of `lengths` tokens, `streams` requests at a time (`rounds` times as many in all), answers
    of `written` tokens. `first_ms`, `token_ms`: what an answer may take for its first token, and for each further one, to
    count as goodput. `recall`: passages go before the questions, as the server does it by itself."""

    memory: str
    lengths: Sequence[int]
    streams: Sequence[int]
    rounds: int
    written: int
    first_ms: float
    token_ms: float
    recall: bool
    guidellm: str


def run(plan: Plan, *, progress: Callable[[str], None]) -> Report:
    """Raises `LoadGeneratorMissing` before anything is measured if guidellm is not there."""
    if shutil.which(plan.guidellm) is None:
        raise LoadGeneratorMissing(
            f"no program {plan.guidellm!r}: python -m venv load && load/bin/pip install torch guidellm, "
            "then --guidellm load/bin/guidellm (an environment of its own: it brings its own versions)"
        )
    backbone = find_backbone(DEFAULT_BACKBONE, models_dir=load_settings().models_dir.expanduser(), progress=progress)
    tokenizer = load_tokenizer(backbone)
    whole = tokenizer.encode(packaged())
    rows: list[dict[str, Any]] = []
    read: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        server = Process.everlong(Path(folder) / "data", "--model", DEFAULT_BACKBONE, "--memory", plan.memory)
        server.start()
        try:
            for length in plan.lengths:
                progress(f"reading {length:,} tokens")
                answered = _answered(server, tokenizer.decode((whole * -(-length // len(whole)))[:length]))
                read[length] = _read(plan, server, answered, tokenizer.decode(whole[:_PROMPT]))
                for streams in plan.streams:
                    progress(f"{length:,} tokens, {streams} at a time")
                    found = _load(plan, server, answered, streams, backbone, Path(folder) / "load.json")
                    rows.append({"tokens": length, "streams": streams} | figures(found, plan.first_ms, plan.token_ms))
        finally:
            server.kill()
    progress("the engine alone")
    settings = load_settings().model_copy(update={"model": DEFAULT_BACKBONE, "memory": plan.memory})
    model = services.load(settings, progress)
    S, empty = model.segment_length, model.memory.initial_state(1)
    device = next(iter(empty.tensors.values())).device
    newest = BESIDE if plan.recall else None
    for length in plan.lengths:
        text = torch.tensor([(whole * -(-length // len(whole)))[: length // S * S]])
        with torch.inference_mode():
            state = model.memory.read(text.to(device), empty)
        prompt = whole[: read[length]]
        for row in (row for row in rows if row["tokens"] == length):
            progress(f"the engine alone: {length:,} tokens, {row['streams']} at a time")
            row["read_for_an_answer"] = len(prompt)
            row["engine_alone_tokens_per_second"] = _engine_alone(plan, model, row["streams"], state, prompt, newest)
    return Report("serve", rows, targets(rows), _notes(plan))


def figures(found: dict[str, Any], first_ms: float, token_ms: float) -> dict[str, Any]:
    """Of one benchmark in guidellm's document. `errors`: requests that failed."""
    metrics, requests = found["metrics"], found["requests"]
    first, between = (
        metrics[name]["successful"]["percentiles"] for name in ("time_to_first_token_ms", "inter_token_latency_ms")
    )
    good = sum(
        each["time_to_first_token_ms"] <= first_ms and each["inter_token_latency_ms"] <= token_ms
        for each in requests["successful"]
    )
    prompts = [each["prompt_tokens"] for each in requests["successful"]]
    return {
        "prompt_tokens": round(sum(prompts) / max(1, len(prompts))),
        "first_token_ms_p50": first["p50"],
        "first_token_ms_p95": first["p95"],
        "ms_per_token_p50": between["p50"],
        "ms_per_token_p95": between["p95"],
        "tokens_per_second": sum(each["output_tokens"] for each in requests["successful"]) / found["duration"],
        "requests_per_second": len(requests["successful"]) / found["duration"],
        "goodput_per_second": good / found["duration"],
        "errors": len(requests["errored"]),
    }


def targets(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """Of 32 streams, where they were measured; and that nothing failed."""
    of_32 = [
        Target(
            f"{row['tokens']:,} tokens, 32 streams: tokens/s through HTTP ÷ of the engine alone",
            row["tokens_per_second"] / row["engine_alone_tokens_per_second"],
            0.95,
            at_most=False,
        )
        for row in rows
        if row["streams"] == 32
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


def _read(plan: Plan, server: Process, answered: str, question: str) -> int:
    """Tokens that are read for a request like those of the load: what the state of the answer before does not hold."""
    body = {"previous_response_id": answered, "store": False, "input": question, "max_output_tokens": 1}
    response = server.http.post("/v1/responses", json=body if plan.recall else body | {"recall": False})
    response.raise_for_status()
    usage = response.json()["usage"]
    return int(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])


def _load(plan: Plan, server: Process, answered: str, streams: int, tokenizer: Path, file: Path) -> dict[str, Any]:
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


def _engine_alone(
    plan: Plan, model: Model, streams: int, state: MemoryState, prompt: list[int], newest: int | None
) -> float:
    """Tokens per second of the runner by itself: as many answers, each behind `state` and `prompt`, as many at once as the
    server has. `newest`: see `Answer`."""
    settings = load_settings()
    runner = Runner(
        model, max_streams=settings.max_streams, reading_share=settings.reading_share,
        max_stall=settings.max_decode_stall_ms / 1e3, graphs=settings.cuda_graphs,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=plan.written, ignore_eos=True)

    def generate(answers: int) -> None:
        events: list[queue.SimpleQueue[Delta | Finished | Failed]] = [queue.SimpleQueue() for _ in range(answers)]
        for each in events:
            runner.submit(Answer(state, [], prompt, params, 0, each.put, newest))
        for each in events:
            while isinstance(event := each.get(), Delta):
                pass
            if isinstance(event, Failed):
                raise RuntimeError("the engine failed") from event.error

    runner.start()
    try:
        generate(runner.max_streams)  # what kernels do at their first use; the server has answered before, too
        began = time.perf_counter()
        generate(plan.rounds * streams)
        return plan.rounds * streams * plan.written / (time.perf_counter() - began)
    finally:
        runner.stop()


def _notes(plan: Plan) -> list[str]:
    return [
        f"load: guidellm, /v1/responses, streamed; {plan.rounds} requests a stream, prompts of {_PROMPT} made-up tokens, "
        f"answers of {plan.written}; each forks one answer behind the document",
        f"memory {plan.memory}, recall {'as the server has it' if plan.recall else 'off'}; goodput: requests per second with a "
        f"first token within {plan.first_ms:g} ms and {plan.token_ms:g} ms for each further one",
        "the load generator runs on the same machine and takes its share of it",
    ]
