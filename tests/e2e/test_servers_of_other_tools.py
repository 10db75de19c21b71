# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that another tool put there, in every layout: each finds its manifest where it is started."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bench.servers import ECHO
from tests.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = f"""
import json, os
with open("manifest.json") as file:
    manifest = json.load(file)
assert manifest["config"] == {{"unit": "celsius"}}, manifest
{ECHO}"""
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
TRANSPORT = {"type": "stdio", "command": "python3", "args": ["server.py"]}


def entry(server_id: str, **more: Any) -> dict[str, Any]:
    unit = {"key": "unit", "label": "Unit", "default": "celsius"}
    return {
        "id": server_id,
        "name": server_id,
        "summary": "Says what it hears",
        "version": "1",
        "transports": [TRANSPORT],
        "configurableProperties": [unit],
    } | more


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as machine:
        elsewhere = machine.home / "elsewhere"
        for directory in (elsewhere, machine.installed / "listed"):
            (directory / "lib").mkdir(parents=True)
            (directory / "lib/main.py").write_text(PROGRAM)
            (directory / "server.py").symlink_to("lib/main.py")
        bare = {"type": "stdio", "command": "python3", "args": ["-c", PROGRAM]}
        servers = [
            entry("listed"),
            entry("listed-elsewhere", installDir=str(elsewhere)),
            entry("without-files", transports=[bare]),
        ]
        (machine.installed / "index.json").write_text(json.dumps({"servers": servers}))
        apart = machine.installed / "apart"
        apart.mkdir()
        (apart / "manifest.json").write_text(json.dumps(entry("apart", installDir=str(elsewhere))))
        machine.start_daemon()
        yield machine


@pytest.mark.parametrize("server_id", ["listed", "listed-elsewhere", "without-files", "apart"])
def test_a_server_finds_its_manifest_before_anything_is_written(rig: Rig, server_id: str) -> None:
    before = (rig.installed / "index.json").read_bytes()
    done = rig.mcpctl("call", server_id, "echo", "text=hello")
    assert (done.returncode, done.stdout.strip()) == (0, "hello"), done.stderr
    ran = rig.mcpctl("run", server_id, stdin=json.dumps(PING) + "\n")
    assert (ran.returncode, [json.loads(line)["id"] for line in ran.stdout.splitlines()]) == (0, [7]), ran.stderr
    assert (rig.installed / "index.json").read_bytes() == before
    assert not (rig.home / "elsewhere/manifest.json").exists(), "what is not mcpd's stays as it is"
    assert not (rig.installed / "listed/manifest.json").exists()


def test_a_server_changes_nothing_of_its_files(rig: Rig) -> None:
    """With room for the manifest its directory is another one, and what is in there still read-only."""
    script = "open('lib/main.py', 'a')"
    document = entry("writer", transports=[{"type": "stdio", "command": "python3", "args": ["-c", script]}])
    writer = rig.installed / "writer"
    writer.mkdir()
    (writer / "manifest.json").write_text(json.dumps(document | {"installDir": str(rig.home / "elsewhere")}))
    assert rig.mcpctl("tools", "writer").returncode != 0
    assert "Read-only file system" in rig.log("mcpd").read_text()
    assert (rig.home / "elsewhere/lib/main.py").read_text() == PROGRAM
