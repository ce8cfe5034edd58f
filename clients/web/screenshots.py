"""Take screenshots of the page of a running server: `python clients/web/screenshots.py URL FOLDER`.

Uploads a book, asks about it, and writes page-WIDTH-light.png and page-WIDTH-dark.png for windows of 390, 768 and 1440 pixels, and the
pictures of the README: page-light.png and page-dark.png. Needs Playwright, Pillow and an installed Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

BOOK = Path(__file__).parents[2] / "tests" / "data" / "looking-glass.md"
NAME = "Through the Looking-Glass.txt"
QUESTION = "What does Humpty Dumpty sit on?"
SIZES = ((390, 844), (768, 1024), (1440, 900))
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def opened(browser: Browser, url: str, scheme: str, width: int, height: int) -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(url)
    return page


def taken(page: Page, file: Path) -> None:
    """Save a screenshot of `page` with 256 colours, which takes a third of the bytes."""
    page.mouse.move(0, 0)
    page.screenshot(path=file)
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def main(url: str, folder: Path) -> None:
    expect.set_options(timeout=900_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = opened(browser, url, "light", 1200, 750)
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose files").click()
        chooser.value.set_files({"name": NAME, "mimeType": "text/plain", "buffer": BOOK.read_bytes()})
        expect(page.get_by_placeholder("Ask about it", exact=True)).to_be_visible()
        page.locator("#question").fill(QUESTION)
        page.keyboard.press("Enter")
        expect(page.locator(".usage")).to_be_visible()
        talk = page.url
        page.locator(".evidence a").first.click()
        expect(page.locator("mark")).to_be_in_viewport()
        taken(page, folder / "page-light.png")
        page = opened(browser, f"{talk}/memory", "dark", 1200, 750)
        expect(page.locator(".context")).to_be_visible()
        taken(page, folder / "page-dark.png")
        for width, height in SIZES:
            for scheme in ("light", "dark"):
                page = opened(browser, talk, scheme, width, height)
                expect(page.locator(".usage")).to_be_visible()
                if width > 1000:
                    page.locator(".evidence a").first.click()
                    expect(page.locator("mark")).to_be_in_viewport()
                page.locator("h1").hover()
                page.evaluate("document.activeElement.blur()")
                taken(page, folder / f"page-{width}-{scheme}.png")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
