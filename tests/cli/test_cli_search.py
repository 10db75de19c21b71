# SPDX-License-Identifier: LGPL-2.1-or-later
"""search and show over the catalog: what is asked of mcpd, and what a person sees of sources and trust."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

REGISTRY = "https://registry.example/servers.json"
OTHER = "https://other.example/servers.json"


def entry(server_id: str, **said: Any) -> dict[str, Any]:
    return {"id": server_id, "name": server_id, "version": "1.0", "state": "available", "installable": True,
            "origin": REGISTRY, "verified": False} | said  # fmt: skip


def source(**said: Any) -> dict[str, Any]:
    return {"url": REGISTRY, "state": "ready", "file": "/f", "problem": "", "scope": "user"} | said


async def test_search_shows_whom_to_trust_and_what_is_unsupported(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.pages = [[
        entry("a", verified=True, summary="Does a"),
        entry("b", installable=False, problem="a container image", summary="Does b"),
        entry("c", state="updatable"),
        entry("d", installable=False, scope="system", problem="it is a server for the whole system"),
    ]]  # fmt: skip
    ended = await mcpctl("search")
    assert [line.split() for line in ended.out.splitlines()] == [
        ["ID", "VERSION", "STATE", "TRUST", "SUMMARY"],
        ["a", "1.0", "available", "verified", "Does", "a"],
        ["b", "1.0", "unsupported", "unverified", "Does", "b"],
        ["c", "1.0", "updatable", "unverified", "c"],
        ["d", "1.0", "system", "only", "unverified", "d"],
    ]
    assert ended.err == ""


async def test_every_filter_reaches_mcpd(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.sources = [source()]
    argv = ["--category", "Files", "--source", REGISTRY, "--installable", "--installed", "--updatable", "--limit", "3"]
    ended = await mcpctl("search", "read", "files", *argv)
    assert ended.code == 0
    assert mcpd.calls[0] == (
        "ListAvailable",
        {"text": "read files", "category": "Files", "source": REGISTRY, "installable": True, "installed": True,
         "updatable": True, "limit": 3},
        "",
    )  # fmt: skip
    assert ended.err == (
        "No servers match 'read files'.\n"
        "There may be more without --category and --source and --installable and --installed and --updatable.\n"
    )
    assert "'mcpctl refresh' updates the catalog" in (await mcpctl("search", "read")).err
    mcpd.sources = []
    assert "There are no registries to search" in (await mcpctl("search", "read")).err


async def test_a_large_limit_is_read_in_pages(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.pages = [[entry("a"), entry("b")], [entry("c")], [entry("d")]]
    ended = await mcpctl("search", "--limit", "3", "--json")
    assert [server["id"] for server in json.loads(ended.out)["servers"]] == ["a", "b", "c"]
    assert "Only the first 3 servers are shown" in ended.err
    assert [call[2] for call in mcpd.calls if call[0] == "ListAvailable"] == ["", "1"]
    assert "Only the first server is shown; --limit" in (await mcpctl("search", "--limit", "1")).err
    await mcpctl("search", "--limit", "2000")
    assert mcpd.calls[-2][1]["limit"] == 500


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"state": "offline", "problem": "no route", "age": 3 * 86400 + 60},
         f"{REGISTRY} could not be read (no route); its entries are 3 d old"),
        ({"state": "failed", "problem": "status 500", "age": 7300},
         f"{REGISTRY} could not be read (status 500); its entries are 2 h old"),
        ({"state": "failed", "problem": f"{REGISTRY}: status 500"},
         f"warning: {REGISTRY} could not be read (status 500); none of its entries are known"),
        ({"state": "refused", "problem": "it is older", "age": 7300},
         f"{REGISTRY} has new content that was refused (it is older); its entries are 2 h old"),
        ({"state": "partly", "problem": "b.json: not JSON", "age": 7300},
         f"{REGISTRY} could be read only in part (b.json: not JSON); its entries are 2 h old"),
        ({"state": "untrusted", "problem": "not signed"}, "is untrusted (not signed); none of its entries are shown"),
        ({"state": "invalid", "url": "", "problem": "no url"}, "/f is invalid (no url); none of its entries are shown"),
        ({"state": "new"}, "is still being read"),
    ],
)  # fmt: skip
async def test_search_says_of_which_source_it_shows_no_news(
    mcpctl: Mcpctl, mcpd: FakeMcpd, said: dict[str, Any], text: str
) -> None:
    age = said.pop("age", 0)
    mcpd.sources = [source(**said) | ({"updated": int(time.time()) - age} if age else {}), source(url=OTHER)]
    mcpd.pages = [[entry("a")]]
    ended = await mcpctl("search")
    assert ended.err.startswith("warning: ")
    assert text in ended.err
    assert (await mcpctl("search", "--source", OTHER)).err == ""


async def test_a_search_in_an_unknown_registry_names_what_lists_them(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.sources = [source()]
    ended = await mcpctl("search", "--source", OTHER)
    assert (ended.code, ended.out) == (4, "")
    assert ended.err == f"mcpctl: there is no registry {OTHER!r}; 'mcpctl source list' lists them\n"
    assert (await mcpctl("search", "--source", REGISTRY.replace("registry", "REGISTRY", 1))).code == 0


async def test_what_is_pinned_is_marked_in_tables_alone(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"]["pinned"] = True
    mcpd.pages = [[entry("calculator", state="installed", pinned=True)]]
    for argv in (["list"], ["search"]):
        assert "  installed, pinned  " in (await mcpctl(*argv)).out
        (shown,) = json.loads((await mcpctl(*argv, "--json")).out)["servers"]
        assert shown["state"] == "installed"


@pytest.mark.parametrize(
    "argv", [["show", "weather"], ["show", "weather", "--source", REGISTRY], ["install", "weather"]]
)
async def test_what_comes_of_a_registry_without_news_is_told(mcpctl: Mcpctl, mcpd: FakeMcpd, argv: list[str]) -> None:
    mcpd.servers["weather"] = {"id": "weather", "scope": "user"} if argv[0] == "install" else {}
    mcpd.servers = {key: server for key, server in mcpd.servers.items() if server}
    mcpd.pages = [[entry("weather")]]
    mcpd.sources = [source(state="offline", problem="no route"), source(url=OTHER, state="failed")]
    ended = await mcpctl(*argv)
    assert ended.code == 0
    assert f"warning: {REGISTRY} could not be read (no route)" in ended.err
    assert OTHER not in ended.err
    mcpd.pages = [[]]
    assert REGISTRY in (await mcpctl(*argv)).err, "it may be there, though nobody has it now"


async def test_show_asks_the_catalog_for_what_is_not_installed(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    offered = entry(
        "weather", verified=True, **{"signed-by": "example", "also-from": [OTHER]},
        source={"type": "npm", "package": "weather", "version": "1.0", "sha256": "ab"},
    )  # fmt: skip
    mcpd.pages = [[entry("weather-2")], [offered]]
    plain, as_json = await mcpctl("show", "weather"), await mcpctl("show", "weather", "--json")
    assert json.loads(as_json.out) == offered
    lines = [" ".join(line.split()) for line in plain.out.splitlines()]
    assert {"verified: yes", "signed-by: example", f"also-from: {OTHER}", "source: npm weather 1.0 ab"} <= set(lines)
    assert "ListAvailable" not in [call[0] for call in mcpd.calls]


async def test_show_of_another_source_passes_over_what_is_installed(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.pages = [[entry("calculator", version="9.0", origin=OTHER)]]
    assert json.loads((await mcpctl("show", "calculator", "--source", OTHER, "--json")).out)["version"] == "9.0"
    missing = await mcpctl("show", "calculator", "--source", REGISTRY)
    assert (missing.code, missing.err) == (4, "mcpctl: no registry offers 'calculator'\n")


async def test_what_waits_for_approval_is_told(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"]["pending-version"] = "2.0"
    for argv in (["list"], ["show", "calculator"], ["update", "--check"]):
        assert "'mcpctl approve calculator'" in (await mcpctl(*argv)).err
