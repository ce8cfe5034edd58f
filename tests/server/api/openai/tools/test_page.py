"""The example of the page about OpenAI's API, with the tiny model."""

from __future__ import annotations

import subprocess
import sys

from tests.pages import run_by
from tests.process import Server


def test_the_example_calls_a_tool_and_answers(server: Server) -> None:
    (block,) = run_by("tests/server/api/openai/tools/test_page.py")
    assert "http://127.0.0.1:8080" in block.code
    code = block.code.replace("http://127.0.0.1:8080", server.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
