"""Tools through OpenAI's SDK for Node."""

from __future__ import annotations

from tests.process import Server
from tests.server.api.openai.test_node import node, run_checks
from tests.server.api.openai.tools.talk import MODEL

__all__ = ["node"]


def test_the_sdk_for_node(server: Server, node: str) -> None:
    run_checks(node, "tools.mjs", server, MODEL=MODEL)
