# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl export: installed servers for others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import NotFound
from mcpd.formats.registry import parse_registry
from mcpd.formats.server_json import entry_of, is_server_json

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.bus.transport import Frame
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

ENTRIES = {
    server_id: {
        "id": server_id,
        "name": server_id.title(),
        "summary": "Does something",
        "version": "1.0",
        "transports": [{"type": "stdio", "command": server_id}],
        "source": {"type": "pypi", "package": server_id, "version": "1.0"},
        "permissions": ["network"],
    }
    for server_id in ("calculator", "time")
}


@pytest.fixture
def exporting(mcpd: FakeMcpd, monkeypatch: pytest.MonkeyPatch) -> FakeMcpd:
    """An mcpd with two servers, and one whose entry cannot be told."""

    def get_entry(_frame: Frame, server_id: str) -> list[Any]:
        if server_id not in ENTRIES:
            raise NotFound(f"{server_id} has no entry")
        return [json.dumps(ENTRIES[server_id])]

    monkeypatch.setattr(mcpd, "_GetEntry", get_entry, raising=False)
    mcpd.servers = {name: mcpd.servers["calculator"] | {"id": name} for name in (*ENTRIES, "script")}
    return mcpd


async def test_all_servers_of_the_scope_as_a_registry(mcpctl: Mcpctl, exporting: FakeMcpd) -> None:
    ended = await mcpctl("export")
    assert ended.code == 0
    assert "skipped script: script has no entry" in ended.err
    registry = parse_registry(json.loads(ended.out), "export")
    assert registry.updated.endswith("Z")
    assert [entry.to_json() for entry in registry.servers] == list(ENTRIES.values())
    assert not registry.problems
    assert exporting.calls[0] == ("ListServers", {"scope": "user"})


async def test_what_is_exported_cannot_steer_a_terminal(
    mcpctl: Mcpctl, exporting: FakeMcpd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENTRIES, "time", ENTRIES["time"] | {"summary": "\x9b2J \u202e \u00e4"})
    for format_ in ("registry", "server.json"):
        shown = await mcpctl.on_terminal("export", "time", "--format", format_, environ={"PYTHONUTF8": "1"})
        assert "\\u009b2J \\u202e \u00e4" in shown
        assert not {"\x9b", "\u202e"} & set(shown)
        piped = await mcpctl("export", "time", "--format", format_)
        assert "\x9b2J \u202e \u00e4" in piped.out


async def test_servers_that_are_named(mcpctl: Mcpctl, exporting: FakeMcpd, tmp_path: Path) -> None:
    target = tmp_path / "registry.json"
    ended = await mcpctl("export", "time", "-o", str(target))
    assert (ended.code, ended.out) == (0, f"Wrote {target} (1 server).\n")
    assert [entry["id"] for entry in json.loads(target.read_text())["servers"]] == ["time"]
    assert [call[0] for call in exporting.calls] == ["GetEntry"]


async def test_a_server_json(mcpctl: Mcpctl, exporting: FakeMcpd) -> None:
    ended = await mcpctl("export", "time", "--format", "server.json")
    document = json.loads(ended.out)
    assert is_server_json(document)
    assert entry_of(document, "export").to_json() == ENTRIES["time"]
    assert len(exporting.calls) == 1


async def test_server_json_of_several_into_a_directory(mcpctl: Mcpctl, exporting: FakeMcpd, tmp_path: Path) -> None:
    ended = await mcpctl("export", "--format", "server.json", "-o", str(tmp_path))
    assert ended.code == 0
    names = {path.name for path in tmp_path.glob("*.json")}
    assert names == {f"{server_id}.server.json" for server_id in ENTRIES}
    refused = await mcpctl("export", "--format", "server.json")
    assert (refused.code, refused.out) == (2, "")
    assert "not 2; specify one server, or an existing directory" in refused.err
    assert len(exporting.calls) == 8


@pytest.mark.usefixtures("exporting")
async def test_what_is_imported_is_exported_again(mcpctl: Mcpctl, tmp_path: Path) -> None:
    target = tmp_path / "registry.json"
    await mcpctl("export", "-o", str(target))
    ended = await mcpctl("import", str(target), "--dry-run", "--json")
    assert [server["entry"] for server in json.loads(ended.out)["servers"]] == list(ENTRIES.values())


async def test_a_bundle_that_was_installed_from_a_file(
    mcpctl: Mcpctl, exporting: FakeMcpd, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = ENTRIES["time"] | {"source": {"type": "mcpb", "sha256": "a" * 64}}
    monkeypatch.setitem(ENTRIES, "time", brought)
    ended = await mcpctl("export", "time")
    assert json.loads(ended.out)["servers"] == [brought]
    assert (ended.code, f".mcpb file (sha256 {'a' * 64})" in ended.err) == (0, True)
    assert (await mcpctl("export", "calculator")).err == ""
    assert len(exporting.calls) == 2


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"type": "local", "path": "/srv/it"}, "its files are in /srv/it on this machine"),
        (
            {"type": "archive", "url": "file:///srv/it.zip", "sha256": "a" * 64},
            "at file:///srv/it.zip on this",
        ),
        ({"type": "archive", "url": "https://x.example/it.zip", "sha256": "a" * 64}, ""),
    ],
    ids=["local", "file", "https"],
)
async def test_what_others_cannot_install_is_warned_of(
    mcpctl: Mcpctl, exporting: FakeMcpd, monkeypatch: pytest.MonkeyPatch, source: dict[str, str], said: str
) -> None:
    monkeypatch.setitem(ENTRIES, "time", ENTRIES["time"] | {"source": source})
    ended = await mcpctl("export", "time")
    assert (ended.code, bool(ended.err), said in ended.err) == (0, bool(said), True)
    assert len(exporting.calls) == 1


async def test_nothing_to_export(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers = {}
    ended = await mcpctl("export")
    assert ended.code == 4
    assert "no servers are installed" in ended.err


async def test_a_server_that_is_not_there(mcpctl: Mcpctl, exporting: FakeMcpd) -> None:
    ended = await mcpctl("export", "nobody")
    assert (ended.code, ended.out) == (4, "")
    # The second one is for an id like it.
    assert [call[0] for call in exporting.calls] == ["GetEntry", "ListServers"]
