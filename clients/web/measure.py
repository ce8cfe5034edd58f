"""Measure how smooth the page of a running server is: `python clients/web/measure.py URL`.

Creates 10,000 conversations and uploads a text of 100 MB, measures the largest contentful paint and the times between frames in
Chromium, prints them as a table, and deletes what it made. Needs Playwright and an installed Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
NAME = "measured.txt"
LINE = "The Walrus and the Carpenter were walking close at hand.\n"
PAINT = """() => new Promise(resolve => new PerformanceObserver(list => resolve(list.getEntries().at(-1).startTime))
  .observe({type: "largest-contentful-paint", buffered: true}))"""
WATCH = """() => {
  window.gaps = [];
  let last = performance.now();
  const next = () => { const now = performance.now(); gaps.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""
SEARCH = """([words, found]) => new Promise(resolve => {
  new MutationObserver((_, observer) => {
    if (document.querySelector(".conversations [role=status]")?.textContent !== found) return;
    observer.disconnect();
    resolve();
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
  const box = document.querySelector("input[type=search]");
  box.value = words;
  box.dispatchEvent(new Event("input", {bubbles: true}));
})"""
"""Without Playwright's `expect`, which searches the whole page for a text again and again and so delays frames itself."""
SCROLL = """async (selector) => {
  const box = document.querySelector(selector);
  for (let n = 0; n < 240; n++) {
    box.scrollTop += 150;
    await new Promise(requestAnimationFrame);
  }
}"""


def main(url: str, conversations: int, megabytes: int) -> None:
    expect.set_options(timeout=300_000)
    made: list[str] = []
    with httpx.Client(base_url=url, timeout=60) as http, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            report("largest contentful paint, empty", [paint(browser, url)])
            made += [f"sessions/{id}" for id in create(http, conversations)]
            report(f"largest contentful paint, {conversations:,} conversations", [paint(browser, url)])
            page = opened(browser, url)
            page.evaluate(SEARCH, ["Number", f"{conversations:,} conversations found"])
            report(f"frames while a search loads {conversations:,} conversations", gaps(page))
            for _ in range(5):
                page.get_by_role("button", name="Older conversations").click()
                page.evaluate(SCROLL, ".conversations")
            report("frames while hundreds of them are shown and scrolled", gaps(page))
            page.get_by_role("searchbox", name="Search conversations").press_sequentially(" 77", delay=200)
            report("frames while a word is typed into the search", gaps(page))
            made += upload(page, megabytes)
            report(f"frames while {megabytes} MB are uploaded", gaps(page))
            page.get_by_role("link", name=f"Read {NAME}").first.click()
            expect(page.locator(".reader .words")).to_contain_text("Walrus")
            gaps(page)
            for share in (0.2, 0.9, 0.5):
                slider = page.get_by_role("slider", name="Position in the text")
                slider.evaluate(
                    "(slider, share) => { slider.value = slider.max * share; slider.dispatchEvent(new Event('change')); }",
                    share,
                )
                page.wait_for_load_state("networkidle")
                page.evaluate(SCROLL, ".reader .text")
            report("frames while its text is read in three places", gaps(page))
        finally:
            browser.close()
            for path in made:
                http.delete(f"/v1/{path}")


def create(http: httpx.Client, number: int) -> list[str]:
    """Create conversations with a question and an answer, and return their ids."""
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]

    def one(n: int) -> str:
        body = {"messages": past, "title": f"Number {n}"}
        return str(http.post("/v1/sessions", json=body, headers={"X-Everlong-Client": "page"}).json()["id"])

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(one, range(number)))


def upload(page: Page, megabytes: int) -> list[str]:
    """Upload a text from the page. Return the paths of the document and of its conversation."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(LINE * (megabytes * 1024**2 // len(LINE)))
        file.flush()
        named = Path(file.name).with_name(NAME)
        named.unlink(missing_ok=True)
        named.hardlink_to(file.name)
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose files").click()
        chooser.value.set_files(named)
        expect(page.locator("h1")).to_have_text(NAME)
        named.unlink()
    session = page.url.rsplit("/", 1)[-1]
    document = page.evaluate(
        "id => fetch(`/v1/sessions/${id}`).then(answer => answer.json()).then(({documents}) => documents[0])", session
    )
    return [f"sessions/{session}", f"documents/{document}"]


def opened(browser: Browser, url: str) -> Page:
    """Open the page, and watch its frames once its first lists are shown."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto(url)
    expect(page.locator(".light.online")).to_be_attached()
    page.wait_for_load_state("networkidle")
    page.evaluate(WATCH)
    return page


def paint(browser: Browser, url: str) -> float:
    """Return the largest contentful paint of a first visit, in milliseconds."""
    page = opened(browser, url)
    milliseconds = float(page.evaluate(PAINT))
    page.context.close()
    return milliseconds


def gaps(page: Page) -> list[float]:
    """Return the milliseconds between the frames since the last call."""
    return [float(gap) for gap in page.evaluate("gaps.splice(0)")]


def report(what: str, milliseconds: list[float]) -> None:
    """Print a row: the median, the 99th percentile and the longest."""
    ordered = sorted(milliseconds)
    late = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    sys.stdout.write(f"| {what} | {statistics.median(ordered):.0f} | {late:.0f} | {ordered[-1]:.0f} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=100)
    given = parser.parse_args()
    main(given.url, given.conversations, given.megabytes)
