"""Other clients of OpenAI's API: their examples in docs/guide/openai.md run unchanged against a real server.

The first run installs them into this folder, from requirements.txt and package-lock.json.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks, run_by
from tests.process import Server

pytestmark = [pytest.mark.slow, pytest.mark.docs, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parent
EXAMPLES = {block.heading: block for block in run_by("tests/compat/test_compat.py")}
MODEL = "tiny-rmt"


def example(heading: str, server: Server) -> str:
    """Return the code block under that heading, with this server's address and model."""
    return fitting(EXAMPLES[heading].code, server)


def fitting(code: str, server: Server) -> str:
    return code.replace("http://127.0.0.1:8080", server.url).replace("smollm2-135m-reader", MODEL)


def run(*command: str | Path, **more: str) -> list[str]:
    """Run the command and return the lines of its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTHON"))}
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", **more}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=FOLDER / "node", timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return done.stdout.splitlines()


def installed(name: str) -> Path:
    """Return the folder of the programs that NAME.txt lists, installed into a folder of their own."""
    venv, wanted = FOLDER / name / ".venv", (FOLDER / f"{name}.txt").read_text()
    done = venv / "installed.txt"
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True, timeout=120)
        pip = [venv / "bin" / "pip", "install", "-q", "-r", FOLDER / f"{name}.txt"]
        subprocess.run(pip, check=True, capture_output=True, timeout=800)
        done.write_text(wanted)
    return venv / "bin"


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder with the installed Python programs."""
    return installed("requirements")


@pytest.fixture(scope="module")
def node() -> str:
    found, npm = shutil.which("node"), shutil.which("npm")
    if found is None or npm is None:
        pytest.skip("Node is not installed")
    folder = FOLDER / "node"
    lock, installed = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, capture_output=True, timeout=240)
    return found


def test_litellm(server: Server, programs: Path) -> None:
    code = example("LiteLLM", server)
    assert run(programs / "python", "-c", code)[-1].split()[-1].isdigit()
    typed = code.replace("litellm.completion(**served", 'litellm.completion(**served | {"model": "openai/gpt-5"}')
    with pytest.raises(AssertionError, match="NotFoundError"):
        run(programs / "python", "-c", typed)


def test_llm(server: Server, programs: Path, tmp_path: Path) -> None:
    (models,) = [block for block in blocks("docs/guide/openai.md") if block.title]
    (tmp_path / models.title).write_text(fitting(models.code, server))
    home = {"LLM_USER_PATH": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    assert run("bash", "-c", 'dirname "$(llm logs path)"', **home) == [str(tmp_path)]
    chats = {*server.redis.scan_iter("{everlong}:chat:*")}
    assert run("bash", "-ec", example("llm", server), **home)
    new = [server.redis.hget(key, "messages") for key in {*server.redis.scan_iter("{everlong}:chat:*")} - chats]
    assert sorted(new) == [b"2", b"4"], "the second call continues the first conversation"


def test_langchain(server: Server, programs: Path) -> None:
    assert run(programs / "python", "-c", example("LangChain", server))


def test_vercel_ai_sdk(server: Server, node: str) -> None:
    assert int(run(node, "--input-type=module", "-e", example("Vercel AI SDK", server))[-1]) > 0


OTHER_APIS = """
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";

const url = { baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" };
const openai = createOpenAI(url);
for (const provider of [openai, openai.chat, openai.completion, createAnthropic(url)]) {
  const asked = { model: provider("smollm2-135m-reader"), prompt: "What is the capital of France?", maxOutputTokens: 30 };
  const streamed = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  for (const { text, usage } of [await generateText(asked), { text: await streamed.text, usage: await streamed.usage }]) {
    console.log(text.length > 0, usage.inputTokens > 0);
  }
}
"""


def test_vercel_ai_sdk_with_other_apis(server: Server, node: str) -> None:
    """Vercel's own clients of Responses, chats, completions and Anthropic's messages."""
    lines = run(node, "--input-type=module", "-e", fitting(OTHER_APIS, server))
    assert [line for line in lines if line.startswith(("true", "false"))] == ["true true"] * 8
