# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pages in a real browser: how they look, that scripts and hostile servers do no harm, the test of a connection."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import FIXTURE, Bridge
from tests.bridge.browser import LOOKS, check_look, chromium, keep, visiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

ASK = re.compile("Ask the server( again)?")
SERVER = Path(__file__).parent / "fixtures" / "pages_server.py"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    arguments = [
        "--listen", "127.0.0.1:0", "--auth", "none",
        "--server", f"weather={sys.executable} {SERVER}", "--server", f"other={sys.executable} {FIXTURE}",
    ]  # fmt: skip
    bridge = Bridge(arguments, {}, tmp_path_factory.mktemp("bridge") / "log")
    try:
        yield bridge.url
    finally:
        bridge.close()


@pytest.mark.parametrize("look", LOOKS)
def test_the_list_of_servers(browser: Browser, url: str, look: str, tmp_path: Path) -> None:
    with visiting(browser, **LOOKS[look]) as page:
        page.goto(f"{url}/mcp")
        assert page.get_by_role("heading", name="MCP servers").is_visible()
        check_look(page)
        keep(page, f"servers-{look}", tmp_path)
        page.get_by_role("link", name="weather", exact=True).click()
        assert page.url == f"{url}/mcp/meta/weather"


@pytest.mark.parametrize("look", LOOKS)
def test_T14_2_the_page_of_a_server(browser: Browser, url: str, look: str, tmp_path: Path) -> None:
    with visiting(browser, **LOOKS[look]) as page:
        page.goto(f"{url}/mcp/weather")
        page.get_by_role("button", name=ASK).click()
        page.get_by_text("Tells the weather of the next days.").wait_for()
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        check_look(page)
        keep(page, f"server-{look}", tmp_path)
        assert page.get_by_text("<script>document.title='owned'</script>").first.is_visible()
        assert not page.locator("main img, main script, main a[href^='javascript:']").count()


def test_the_connection_test_speaks_both_eras(browser: Browser, url: str, tmp_path: Path) -> None:
    with visiting(browser, **LOOKS["light"]) as page:
        page.goto(f"{url}/mcp/meta/weather")
        page.get_by_role("button", name="Test the connection").click()
        results = page.locator("#probe-results .result")
        for result, revision in ((results.nth(0), "2025-11-25"), (results.nth(1), "2026-07-28")):
            result.get_by_text(re.compile(rf"Works: .*revision {revision}, \d+ ms")).wait_for()
            assert result.get_by_role("listitem").first.inner_text() == "forecast"
        check_look(page)
        keep(page, "connection-test", tmp_path)


def test_the_connection_test_says_what_is_wrong(
    browser: Browser, start_bridge: Callable[..., Bridge], tmp_path: Path
) -> None:
    url = start_bridge("--listen", "127.0.0.1:0", "--auth", "none", "--server", "gone=/no/such/program").url
    with visiting(browser, expected=(502,), **LOOKS["dark"]) as page:
        page.goto(f"{url}/mcp/meta/gone")
        page.get_by_role("button", name="Test the connection").click()
        page.get_by_text(re.compile(r"Failed after \d+ ms: .*/no/such/program")).first.wait_for()
        page.get_by_text("Connecting").wait_for(state="detached")
        check_look(page)
        keep(page, "connection-test-failed", tmp_path)


def test_everything_can_be_reached_with_the_keyboard(browser: Browser, url: str) -> None:
    with visiting(browser, **LOOKS["light"]) as page:
        page.goto(f"{url}/mcp/meta/other")
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            focused = "document.activeElement"
            seen.add(page.evaluate(f"{focused}.textContent.trim().split('\\n')[0]"))
            if page.evaluate(f"{focused}.id") == "probe-start":
                assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid"
                page.keyboard.press("Enter")
        page.locator("#probe-results .result").first.wait_for()
        page.get_by_text("Connecting").wait_for(state="detached")
        assert {"Skip to the content", "MCP bridge", "All servers", "Ask the server"} <= seen


def test_without_scripts_the_server_can_be_asked(browser: Browser, url: str) -> None:
    with visiting(browser, java_script_enabled=False, **LOOKS["phone"]) as page:
        page.goto(f"{url}/mcp/meta/weather")
        assert page.get_by_text("The test needs JavaScript.").is_visible()
        assert not page.get_by_role("button", name="Test the connection").is_visible()
        page.get_by_role("button", name=ASK).click()
        assert page.get_by_role("heading", name="Tools 4").is_visible()


@pytest.mark.parametrize("look", LOOKS)
def test_errors_are_pages(browser: Browser, url: str, look: str, tmp_path: Path) -> None:
    with visiting(browser, expected=(404,), **LOOKS[look]) as page:
        page.goto(f"{url}/mcp/meta/nobody")
        assert page.get_by_role("heading", name="Not found").is_visible()
        check_look(page)
        keep(page, f"error-{look}", tmp_path)
