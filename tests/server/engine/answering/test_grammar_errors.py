"""A grammar that fails while an answer is generated, as one of a schema that is too complex, is an error of the request's field."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from everlong_models import GrammarError, SamplingParams, Tool
from everlong_server.engine.answering.completions import Completions
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.evidence.templates import TEMPLATE
from everlong_server.engine.answering.tools import ToolUse
from everlong_server.engine.answering.turn import Turn, TurnRunner
from everlong_server.engine.answering.turn_context import TurnContext
from everlong_server.errors import InvalidRequest
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.records import Session
from everlong_server.store.tenants.quota import TokenCost

TOOLS = ToolUse((Tool("look", "", {"type": "object"}, False),))
SCHEMA = {"type": "string", "pattern": "a"}


class Engine:
    """Compiles every grammar, and generates nothing."""

    draining, typical_seconds = False, 1.0
    grammar = AsyncMock(return_value=Mock())
    tool_grammar = AsyncMock(return_value=Mock())
    cancel = Mock()

    def __init__(self) -> None:
        memory = Mock(vocab_size=256, visible_tokens=64, segment_length=64, remembered_tokens=None)
        memory.kept_tokens.return_value = []
        tokenizer = Mock(eos_ids=[0])
        tokenizer.encode.side_effect = lambda text: list(text.encode())
        tokenizer.decode.return_value = ""
        chat = SimpleNamespace(system=None, head=[], separator=[], turn=[], ask=[])
        tools = SimpleNamespace(
            open="<call>",
            writes_json=True,
            question_of=str,
            definitions=lambda tools: "",
            answer_text=lambda text, calls: text,
        )
        self.model = SimpleNamespace(
            name="model", fingerprint="0", memory=memory, tokenizer=tokenizer, chat=chat, tools=tools, probe=None, trained=None
        )  # fmt: skip

    @contextmanager
    def admit(self) -> Iterator[None]:
        yield

    async def answer(self, request: Any) -> AsyncGenerator[Any, None]:
        raise GrammarError("too complex")
        yield


class Quota:
    tenant = "ann"

    @asynccontextmanager
    async def stream(self, seconds: float) -> AsyncIterator[TokenCost]:
        yield TokenCost()


async def complete() -> None:
    completions = Completions(Engine(), Quota(), Metrics(), Tracing())  # type: ignore[arg-type]
    params = SamplingParams(json_schema=SCHEMA)
    async for _ in completions.complete([1], params, generate=True, score=None):
        pass


def answer(tools: ToolUse | None, **params: Any) -> Callable[[], Any]:
    @asynccontextmanager
    async def entered(turn: Turn) -> AsyncIterator[TurnContext]:
        yield TurnContext(Session("ses_1", "0", "model", ()), Mock(), (), (), AsyncMock())

    async def run() -> None:
        passages = Mock(located=AsyncMock(return_value=[]))
        turns = TurnRunner(
            Engine(), passages, Mock(with_tokens=AsyncMock(return_value=[])), Metrics(), Tracing(), Quota(),  # type: ignore[arg-type]
            max_message_chars=100, template=TEMPLATE,
        )  # fmt: skip
        turn = await turns.begin(entered, "Who?", SamplingParams(**params), Recall(0, 0), tools=tools)
        async for _ in turn.events:
            pass

    return run


@pytest.mark.parametrize(
    ("run", "field"),
    [
        (complete, "json_schema"),
        (answer(None, json_schema=SCHEMA), "json_schema"),
        (answer(TOOLS), "tools"),
        (answer(TOOLS, json_schema=SCHEMA), "json_schema"),
    ],
)
async def test_the_error_names_the_field(run: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: too complex$") as refused:
        await run()
    assert refused.value.param == field
