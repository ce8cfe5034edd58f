"""Agents of other projects call a tool and use its result: their examples in docs/guide/openai.md run unchanged against a real server.

The model is tiny and has random weights, so its words mean nothing: a forced choice makes it call the tool, and the grammar of the
server fills in the arguments. tests/compat/tool_questions.py measures real models. The first run installs the programs into this
folder, from agents.txt and package-lock.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.test_compat import installed, node, run
from tests.pages import run_by
from tests.process import Server
from tests.server.api.openai.tools.talk import bias
from tests.tinymodel import make_tool_model

__all__ = ["node"]
pytestmark = [pytest.mark.slow, pytest.mark.docs, pytest.mark.timeout(1200)]

EXAMPLES = {(block.heading, block.language): block for block in run_by("tests/compat/test_agents.py")}


@pytest.fixture(scope="module")
def agents() -> Path:
    """The folder with the installed Python programs."""
    return installed("agents")


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_tool_model(tmp_path_factory.mktemp("model"))
    with Server(model, tmp_path_factory.mktemp("agents")) as server:
        server.start()
        yield server


def example(heading: str, language: str, server: Server) -> str:
    code = EXAMPLES[heading, language].code
    return code.replace("http://127.0.0.1:8080", server.url).replace("qwen2.5-coder-1.5b-reader", "tiny-tools")


def calls(lines: list[str]) -> int:
    """Return how often the tool of an example was called."""
    return sum(line.startswith("asked about ") for line in lines)


@pytest.mark.parametrize("kind", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
def test_openai_agents(server: Server, agents: Path, kind: str) -> None:
    code = example("OpenAI Agents SDK", "python", server).replace("OpenAIResponsesModel", kind)
    # The SDK takes an answer that was cut off for an error, and a random model ends none by itself.
    ended = f'max_tokens=400, extra_body={{"logit_bias": {bias(server, end=30)}}}'
    code = code.replace("max_tokens=60", ended)
    lines = run(agents / "python", "-c", code)
    assert calls(lines) == 1
    assert len(lines) > 1, "an answer follows"
    streamed = code.replace("print(Runner.run_sync(agent, question, max_turns=3).final_output)", STREAMED)
    assert streamed != code
    lines = run(agents / "python", "-c", streamed)
    assert calls(lines) == 1
    assert "tool_called" in lines
    assert "tool_output" in lines


STREAMED = """
import asyncio

async def main():
    streamed = Runner.run_streamed(agent, question, max_turns=3)
    async for event in streamed.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name)
    print(streamed.final_output)

asyncio.run(main())
"""


@pytest.mark.parametrize("responses", [False, True])
def test_langchain(server: Server, agents: Path, responses: bool) -> None:
    code = example("Agents of LangChain", "python", server)
    code = code.replace("max_tokens=60", f"max_tokens=400, use_responses_api={responses}")
    lines = run(agents / "python", "-c", code)
    assert calls(lines) >= 1, "a random model may call it several times at once"
    assert len(lines) > 1, "an answer follows"


@pytest.mark.parametrize("stream", [False, True])
def test_vercel_ai_sdk(server: Server, node: str, stream: bool) -> None:
    code = example("Tools with the Vercel AI SDK", "js", server).replace("maxOutputTokens: 60", "maxOutputTokens: 400")
    if stream:
        code = code.replace("generateText", "streamText").replace("console.log(text)", "console.log(await text)")
    lines = run(node, "--input-type=module", "-e", code)
    assert calls(lines) == 1, "parallel_tool_calls reaches the server"
    assert len(lines) > 1, "an answer follows"
