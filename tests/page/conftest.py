"""Fixtures for tests of the page: a real browser and a real server, shared by all tests."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Locator,
    Page,
    ViewportSize,
    WebSocketRoute,
    expect,
    sync_playwright,
)

from tests.process import Server
from tests.server.tenants import new_key
from tests.tinymodel import STORY, make_model, make_tokenizer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
TEXT = STORY.read_text()[:8_000]
FIXED_LENGTH = """{
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (text) {
    const message = JSON.parse(text);
    if (message.type === "message.create") Object.assign(message, {max_tokens: window.tokens ?? 40, ignore_eos: true, stop_repetition: false, logit_bias: %s});
    send.call(this, JSON.stringify(message));
  };
}"""
"""Sets the number of tokens of each answer, which a test can change as `window.tokens`. A model with random weights would end
its answers at random tokens. The bias leaves words of letters only, which Markdown shows as they are."""
KNOWN_KEY = """if (location.origin === %s && !sessionStorage["everlong.tested"]) {
  localStorage["everlong.key"] = %s;
  sessionStorage["everlong.tested"] = "yes";
}"""
"""Gives each new tab the key. It can change or forget it."""
VIEWPORT: ViewportSize = {"width": 1280, "height": 800}
PLAIN = re.compile(r" ?[A-Za-z]+")
QUESTION = "What does the Red Queen say to Alice?"

expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of the module, not of the session: Playwright's event loop blocks other event loops in this thread until it stops."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def key_of(server: Server, tenant: str) -> str:
    """Create an API key of a tenant."""
    with ThreadPoolExecutor(1) as thread:  # because Playwright's event loop runs in this thread
        return thread.submit(new_key, server, tenant).result()


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with recall. It requires an API key, which its `http` client has and each browser gets."""
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=128)
    with Server(model, tmp_path_factory.mktemp("page"), recall_tokens=100, auth="keys") as server:
        server.start()
        server.http.headers["Authorization"] = f"Bearer {key_of(server, 'page')}"
        server.http.headers["X-Everlong-Client"] = "page"  # the page lists conversations of other programs apart
        yield server


@pytest.fixture(scope="session")
def key(own_server: Server) -> str:
    return own_server.http.headers["Authorization"].removeprefix("Bearer ")


@dataclass
class Tab:
    """A page of the browser, with the errors of its console."""

    page: Page
    server: Server
    errors: list[str] = field(default_factory=list)
    expected_errors: list[str] = field(default_factory=list)
    """Regular expressions of the errors that the test causes, also after its end."""

    @property
    def unexpected_errors(self) -> list[str]:
        """The errors that the test does not cause."""
        return [error for error in self.errors if not any(re.search(each, error) for each in self.expected_errors)]

    def open(self, place: str = "") -> Page:
        """Load the page again, at the address `place`."""
        address = f"{self.server.url}/#/{place}"
        if self.page.url.startswith(self.server.url):
            # Takes half as long as leaving the page and coming back.
            self.page.evaluate("(address) => history.replaceState(null, '', address)", address)
            self.page.reload()
        else:
            self.page.goto(address)
        expect(self.page.locator(".light.online")).to_be_attached()
        expect(self.page.locator(".sidebar footer")).not_to_contain_text("connecting")  # it has loaded its lists
        return self.page

    def ask(self, question: str) -> Locator:
        """Send a question and wait for the answer."""
        answers = self.page.locator(".answer .usage")
        before = answers.count()
        self.page.locator("#question").fill(question)
        self.page.keyboard.press("Enter")
        expect(answers).to_have_count(before + 1)
        return self.page.locator(".answer").last

    def choose(self, *files: Path, press: Callable[[], object] | None = None) -> None:
        """Choose files in the dialog that `press` opens."""
        with self.page.expect_file_chooser() as chooser:
            (press or self.page.get_by_role("button", name="Choose files").click)()
        chooser.value.set_files(files)


class HeldAnswer:
    """Holds back the events of an answer between the server and the page, from its second delta on."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._holding = True
        self._passed = ""
        self._held: list[str] = []
        page.route_web_socket(re.compile(r"/v1/sessions/\w+/stream"), self._connect)

    def _connect(self, socket: WebSocketRoute) -> None:
        self._socket = socket
        socket.connect_to_server().on_message(self._receive)

    def _receive(self, frame: str | bytes) -> None:
        frame = str(frame)
        if self._holding and (self._held or (_delta(frame) and self._passed)):
            self._held.append(frame)
        else:
            self._pass(frame)

    def _pass(self, frame: str) -> None:
        self._passed += _delta(frame)
        self._socket.send(frame)

    def text(self) -> str:
        """Wait until the page has received text and more is held back. Return the text that it has received."""
        deadline = time.monotonic() + 30
        while not any(map(_delta, self._held)):
            assert time.monotonic() < deadline, "the answer has fewer deltas than the test needs"
            self._page.wait_for_timeout(20)  # lets Playwright handle the frames
        return self._passed

    def pass_delta(self) -> None:
        """Pass the events up to the next delta."""
        while not _delta(frame := self._held.pop(0)):
            self._pass(frame)
        self._pass(frame)

    def pass_all(self) -> None:
        """Pass all events that are held back, and hold back none from now on."""
        while self._held:
            self._pass(self._held.pop(0))
        self._holding = False


def _delta(frame: str) -> str:
    """Return the text of a delta event, and an empty string for other events."""
    event = json.loads(frame)
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


@pytest.fixture(scope="session")
def plain_bias() -> str:
    """The `logit_bias` that forbids all tokens but those that match `PLAIN`, as JSON."""
    tokenizer = make_tokenizer()
    texts = {id: tokenizer.decode([id]) for id in range(len(tokenizer))}
    return json.dumps({id: -100 for id, text in texts.items() if not PLAIN.fullmatch(text)})


@pytest.fixture(scope="module")
def new_context(browser: Browser, own_server: Server, key: str, plain_bias: str) -> Callable[..., BrowserContext]:
    """Makes browser contexts. They know the key, unless `storage_state` says what they know."""

    def make(**options: Any) -> BrowserContext:
        context = browser.new_context(**{"viewport": VIEWPORT, "reduced_motion": "reduce", **options})
        context.add_init_script(FIXED_LENGTH % plain_bias)
        if "storage_state" not in options:  # for a state, Playwright loads a page first
            context.add_init_script(KNOWN_KEY % (json.dumps(own_server.url), json.dumps(key)))
        return context

    return make


@pytest.fixture(scope="module")
def shared_context(new_context: Callable[..., BrowserContext], own_server: Server) -> BrowserContext:
    """The context of one tab of each test. A page of the server that stays open keeps the browser's process for it, without which
    the next page would take twice as long to load."""
    context = new_context()
    page = context.new_page()
    page.goto(own_server.url)
    page.goto("about:blank")
    return context


@pytest.fixture
def new_tab(
    new_context: Callable[..., BrowserContext], shared_context: BrowserContext, server: Server
) -> Iterator[Callable[..., Tab]]:
    """Makes tabs: `new_tab(color_scheme="dark")`. Answers have `tokens` tokens. Fails for console errors that no test expects (`expected_errors`).

    The first tab without other options is in the shared context, and each other one in a context of its own.
    """
    contexts: list[BrowserContext] = []
    tabs: list[Tab] = []

    def make(tokens: int = 40, viewport: ViewportSize = VIEWPORT, **options: Any) -> Tab:
        context = new_context(viewport=viewport, **options) if options or shared_context in contexts else shared_context
        contexts.append(context)
        tab = Tab(context.new_page(), server)
        tab.page.set_viewport_size(viewport)
        tab.page.add_init_script(f"window.tokens ??= {tokens}")
        tab.page.on("console", lambda entry: tab.errors.append(entry.text) if entry.type == "error" else None)
        tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
        # Registered early: Playwright registers it asynchronously, and without it the browser closes a file dialog at once.
        tab.page.on("filechooser", lambda chooser: None)
        tab.page.on("dialog", lambda dialog: tab.errors.append(f"dialog: {dialog.message}"))
        tabs.append(tab)
        return tab

    yield make
    for context in contexts:
        if context is not shared_context:
            context.close()
    first, *others = shared_context.pages
    for page in others:
        page.close()
    cleared = {"origin": server.url, "storageTypes": "local_storage"}
    shared_context.new_cdp_session(first).send("Storage.clearDataForOrigin", cleared)
    assert [error for tab in tabs for error in tab.unexpected_errors] == []


@pytest.fixture
def tab(new_tab: Callable[..., Tab]) -> Tab:
    return new_tab()


@pytest.fixture(scope="session")
def own_talk(own_server: Server) -> str:
    document = own_server.read(TEXT, filename="looking-glass.md")
    session = str(own_server.session(document["id"])["id"])
    answer = own_server.say(session, QUESTION, max_tokens=30, temperature=0, ignore_eos=True)
    assert answer["evidence"]
    return session


@pytest.fixture
def talk(own_talk: str, server: Server) -> Iterator[str]:
    """A session with one question, its answer, and evidence. All tests share it: one that asks more needs a fork."""
    yield own_talk
    messages = server.http.get(f"/v1/sessions/{own_talk}/messages").json()["data"]
    assert len(messages) == 2, "the test changed the session of all tests"
