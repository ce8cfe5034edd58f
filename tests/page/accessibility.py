"""axe: what it finds wrong with the page."""

from __future__ import annotations

from importlib.resources import files as package_files

from playwright.sync_api import Page

AXE = package_files("axe_playwright_python") / "axe.min.js"
RUN = """async (options) => {
  const {violations} = await axe.run(document, {resultTypes: ["violations"], ...options});
  return violations.map(({id, nodes}) => [id, nodes.slice(0, 3).map(({html}) => html)]);
}"""


def complaints(page: Page, **options: object) -> list[tuple[str, list[str]]]:
    """Run axe and return the violated rules, each with up to three elements."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    return [(rule, elements) for rule, elements in page.evaluate(RUN, options)]


def complaints_in_both_schemes(page: Page) -> list[tuple[str, list[str]]]:
    """Run axe on the page in light and in dark, which differ in their colours only."""
    found = complaints(page)
    page.emulate_media(color_scheme="dark")
    found += complaints(page, runOnly=["color-contrast"])
    page.emulate_media(color_scheme="light")
    return found
