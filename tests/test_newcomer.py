"""From a clone to an answer: runs the first commands of README as they are, and uses the page in a real browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from everlong_client import Everlong
from everlong_lab.harness.ports import free_port
from tests.page.conftest import CHROMIUM, FLAGS
from tests.pages import ROOT, blocks, run_by
from tests.process import wait_for

BEGIN, AGAIN, CLIENT = run_by("tests/test_newcomer.py")
BOOK = ROOT / "tests" / "data" / "looking-glass.md"
LEAFLET = ROOT / "tests" / "data" / "campsite.md"
ANSWERS = {
    "What does Humpty Dumpty sit on?": "wall",
    "How many impossible things did the White Queen believe before breakfast?": r"\bsix\b",
    "What did Tweedledum buy yesterday?": "rattle",
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
}
"""The questions of the pages that a new user reads first, and patterns of right answers. The last two are asked without a text."""
FOLLOW_UPS = {"And of Italy?": "Rome"}
"""Questions about the answer before."""
WITHOUT_AN_ANSWER = {"How is the weather in Paris?", "Who was paid?"}
"""A question for a tool, and a query that texts are ranked by: the model answers neither."""


ABOUT_THE_LEAFLET = {
    "How many pitches are there?": "forty-?six|46",
    "Who lets people in late at night?": "Dora|Whitlock",
    "How deep is the lake?": r"\bnine\b|\b9\b",
    "When does the shop close on Sundays?": r"\bnoon\b|\b12\b",
    "Who is the butler at Baskerville Hall?": "does not say",
    "How did the Wizard leave Oz?": "does not say",
    "Who invented the telephone?": "does not say",
}
"""Questions about a short text. The search does not decide which of them the text answers."""
CONVERSATION = {
    "Can I bring my dog?": "yes|welcome",
    "When does the shop open?": "seven|7",
    "Does the shop sell newspapers?": "does not say",
    "How many people live in Iceland?": "does not say",
    "is there wifi": "does not say",
}
"""Messages of one conversation about it. Far from the limit of the model's probe, which a processor's rounding moves a little."""


def environment(folder: Path, port: int) -> dict[str, str]:
    """The environment of a new user, except pip's cache. ARGS is removed because `make test ARGS=…` exports it."""
    ours = ("EVERLONG_", "PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS", "ARGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
        "EVERLONG_DATA_DIR": str(folder / "data"),
        "EVERLONG_MODELS_DIR": str(folder / "models"),
        "EVERLONG_PORT": str(port),
    }


@contextmanager
def running(script: str, folder: Path, port: int) -> Iterator[None]:
    """Start `script`, wait until its server is ready, and end it with the block."""
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-ec", script], cwd=folder, env=environment(folder, port), stdout=out, stderr=out,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            return http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_for(ready, 1000, "for the server")
        yield
    finally:
        http.close()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wrong_answers(port: int) -> list[str]:
    """Ask the server the questions of the pages, and return those that it answers wrong, with their answers."""
    wrong = []
    with Everlong(f"http://127.0.0.1:{port}", timeout=300) as client:
        book, leaflet = (client.documents.wait(client.documents.upload(file).id) for file in (BOOK, LEAFLET))
        for question, pattern in ABOUT_THE_LEAFLET.items():
            answer = client.sessions.send(client.sessions.create([leaflet.id]).id, question, temperature=0).content
            if re.search(pattern, answer, re.IGNORECASE) is None:
                wrong.append(f"{question} {answer}")
        conversation = client.sessions.create([leaflet.id])
        for question, pattern in CONVERSATION.items():
            answer = client.sessions.send(conversation.id, question, temperature=0).content
            if re.search(pattern, answer, re.IGNORECASE) is None:
                wrong.append(f"{question} {answer}")
        for question, pattern in ANSWERS.items():
            session = client.sessions.create([book.id] if "capital" not in question else [])
            answer = client.sessions.send(session.id, question, temperature=0).content
            if re.search(pattern, answer, re.IGNORECASE) is None:
                wrong.append(f"{question} {answer}")
        for question, pattern in FOLLOW_UPS.items():
            answer = client.sessions.send(session.id, question, temperature=0).content
            if re.search(pattern, answer, re.IGNORECASE) is None:
                wrong.append(f"{question} {answer}")
    return wrong


def test_the_questions_of_the_pages_are_those_with_answers() -> None:
    asked = {
        question
        for page in ("README.md", "docs/guide/quickstart.md", "docs/guide/asking.md", "docs/guide/openai.md")
        for block in blocks(page)
        for question in re.findall(r"""(?<=["'])[A-Z][^"'\n]+\?(?=["'])""", block.code)
    }
    assert asked == {*ANSWERS, *FOLLOW_UPS, *WITHOUT_AN_ANSWER}


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.timeout(1200)
def test_from_a_clone_to_an_answer_with_evidence(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    assert AGAIN.code == BEGIN.code
    port, began = free_port(), time.monotonic()
    script = BEGIN.code.replace("…", str(ROOT))
    assert script != BEGIN.code
    with running(script, tmp_path, port), sync_playwright() as playwright:
        print(f"ready after {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose files").click()
        chooser.value.set_files(tmp_path / "everlong" / "tests" / "data" / "looking-glass.md")
        expect(page.get_by_placeholder("Ask about it", exact=True)).to_be_visible(timeout=120_000)
        page.locator("#question").fill("What does Humpty Dumpty sit on?")
        page.keyboard.press("Enter")
        expect(page.locator(".answer .usage")).to_be_visible(timeout=300_000)
        print(f"answered after another {time.monotonic() - began:.0f} s")
        assert "Humpty Dumpty" in (page.locator(".evidence").first.text_content() or "")
        browser.close()
        assert wrong_answers(port) == []
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        votes = re.findall(r"^everlong_votes_total.*(?:kept|replaced).* (\S+)$", metrics, re.MULTILINE)
        assert sum(map(float, votes)) > 0, "the model is not sure of every answer"
    done = subprocess.run(
        ["bash", "-ec", CLIENT.code], cwd=tmp_path / "everlong", capture_output=True, text=True, timeout=300, check=False,
        env=environment(tmp_path, port) | {"PATH": f"{tmp_path}/everlong/.venv/bin:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Successfully installed everlong-client" in done.stdout
