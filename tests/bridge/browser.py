# SPDX-License-Identifier: LGPL-2.1-or-later
"""The system's Chromium, which looks at the pages and must have nothing to complain about."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = os.environ.get("MCPD_REQUIRE_CHROMIUM") == "1"
PATIENCE_MS = 240_000
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1100, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1100, "height": 800}},
    "phone": {"color_scheme": "light", "viewport": {"width": 360, "height": 740}, "device_scale_factor": 2},
}
CONTRASTS = """() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const part = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const below = (node) => {
    for (; node; node = node.parentElement) {
      const found = parse(getComputedStyle(node).backgroundColor);
      if (found[3] > 0) return found;
    }
    return [255, 255, 255, 1];
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(below(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) weak.push(`${ratio.toFixed(2)}: ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return weak;
}"""
"""Texts that WCAG AA finds too hard to read."""


def _missing(what: str) -> None:
    if REQUIRED:
        pytest.fail(f"MCPD_REQUIRE_CHROMIUM=1, and there is no {what}")
    pytest.skip(f"needs {what}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, without a window."""
    try:
        from playwright.sync_api import sync_playwright  # may not be there
    except ImportError:
        _missing("playwright")
        raise
    if CHROMIUM is None:
        _missing("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser, *, expected: tuple[int, ...] = (), **options: Any) -> Iterator[Page]:
    """A page of its own; fails if its console, its scripts or its requests meet a fault but the statuses *expected*."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))

    def console(message: Any) -> None:
        if message.type in {"error", "warning"} and not any(f"status of {code} " in message.text for code in expected):
            faults.append(f"console: {message.text}")

    page.on("console", console)
    page.on("requestfailed", lambda request: faults.append(f"request: {request.url} {request.failure}"))
    page.on("request", lambda request: outside(page, request.url, faults))
    yield page
    context.close()
    assert not faults


def outside(page: Page, url: str, faults: list[str]) -> None:
    """Note a request to anywhere but loopback."""
    if not url.startswith(("http://127.0.0.1:", "http://localhost:", "https://127.0.0.1:", "data:")):
        faults.append(f"leaves the machine: {url} from {page.url}")


def keep(page: Page, name: str, directory: Path) -> None:
    """Keep a picture of all of *page*: in $MCPD_ARTIFACTS, or in *directory*."""
    kept = Path(os.environ.get("MCPD_ARTIFACTS") or directory)
    kept.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=kept / f"{name}.png", full_page=True)


def check_look(page: Page) -> None:
    """Everything can be read: enough contrast, and nothing beside the window."""
    assert page.evaluate(CONTRASTS) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    assert page.evaluate("document.title") != "owned"
