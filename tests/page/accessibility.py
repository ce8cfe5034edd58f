"""axe: what it finds wrong with the page."""

from __future__ import annotations

from importlib.resources import files as package_files

from playwright.sync_api import Page

AXE = package_files("axe_playwright_python") / "axe.min.js"


def complaints(page: Page, **options: object) -> list[tuple[str, list[str]]]:
    """Run axe and return the violated rules, each with up to three elements."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("(options) => axe.run(document, options)", options)
    return [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found["violations"]]
