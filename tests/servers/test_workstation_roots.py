# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp-workstation`` and the roots that a client has, in both eras of MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import ListRootsResult, Root

from tests.mcp_results import first_text
from tests.servers.failures import refused
from tests.servers.workstation_harness import ERAS, Desk

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A root with a file."""
    made = Desk(tmp_path)
    (made.root / "file").write_text("file contents here")
    return made


def answering(uris: list[str]) -> Any:
    """A client that has the roots *uris*."""

    async def answer(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=uri) for uri in uris])

    return answer


@pytest.mark.parametrize("mode", ERAS)
async def test_the_roots_of_the_client_only_narrow(desk: Desk, mode: str) -> None:
    (desk.root / "project").mkdir()
    (desk.root / "project" / "file").write_text("of the project")
    roots = [(desk.root / "project").as_uri(), desk.outside.as_uri(), "file://elsewhere/etc"]
    async with desk.started(mode=mode, list_roots_callback=answering(roots)) as client:
        assert first_text(await client.call_tool("filesystem_read", {"path": "file"})) == "of the project"
        for path in (desk.root / "file", desk.outside / "secret"):
            error = await refused(client, "filesystem_read", path=str(path))
            assert f"may be touched: {desk.root}/project" in error.message


@pytest.mark.parametrize("mode", ERAS)
async def test_roots_elsewhere_leave_nothing(desk: Desk, mode: str) -> None:
    async with desk.started(mode=mode, list_roots_callback=answering([desk.outside.as_uri()])) as client:
        error = await refused(client, "filesystem_read", path=str(desk.outside / "secret"))
        assert "client's own roots are not in" in error.message


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_with_a_root_above_or_none_has_all_that_is_configured(desk: Desk, mode: str) -> None:
    for roots in ([desk.directory.as_uri()], []):
        async with desk.started(mode=mode, list_roots_callback=answering(roots)) as client:
            assert not (await client.call_tool("filesystem_read", {"path": "file"})).is_error


async def test_the_client_is_asked_again_when_its_roots_change(desk: Desk) -> None:
    (desk.root / "project").mkdir()
    roots = [(desk.root / "project").as_uri()]
    async with desk.started(list_roots_callback=answering(roots)) as client:
        await refused(client, "filesystem_read", path=str(desk.root / "file"))
        roots[:] = [desk.root.as_uri()]
        with pytest.warns(MCPDeprecationWarning, match="roots capability"):
            await client.send_roots_list_changed()
        assert not (await client.call_tool("filesystem_read", {"path": str(desk.root / "file")})).is_error


async def test_a_root_in_the_users_home(desk: Desk) -> None:
    (desk.home / "src").mkdir()
    (desk.home / "src" / "file").write_text("at home")
    async with desk.started("--root=~/src") as client:
        result = await client.call_tool("filesystem_read", {"path": str(desk.home / "src/file")})
    assert first_text(result) == "at home"


async def test_what_would_not_be_run_does_not_ask_for_roots(desk: Desk) -> None:
    asked = 0

    async def answer(_context: Any) -> ListRootsResult:
        nonlocal asked
        asked += 1
        return ListRootsResult(roots=[])

    async with desk.started(mode="2026-07-28", list_roots_callback=answer) as client:
        assert (await refused(client, "filesystem/format")).code == -32601
        assert (await refused(client, "filesystem_read", path=5)).code == -32602
        assert asked == 0
        assert not (await client.call_tool("filesystem_read", {"path": "file"})).is_error
        assert asked == 1
    assert [(line["tool"], line["ok"]) for line in desk.audit] == [
        ("filesystem/format", False), ("filesystem_read", False), ("filesystem_read", True)
    ]  # fmt: skip


async def test_a_call_that_asks_for_roots_counts_once(desk: Desk) -> None:
    async with desk.started(
        "--rate", "0.7", mode="2026-07-28", list_roots_callback=answering([desk.root.as_uri()])
    ) as client:
        for _ in range(2):
            assert not (await client.call_tool("filesystem_read", {"path": "file"})).is_error
        assert (await refused(client, "filesystem_read", path="file")).code == -32005
    assert [line["event"] for line in desk.audit] == ["end", "end", "held_back"]
