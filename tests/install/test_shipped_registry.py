# SPDX-License-Identifier: LGPL-2.1-or-later
"""The registry that comes with mcpd: what it says, and that what it names can be installed and answers."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.formats.registry import parse_registry
from mcpd.model import SourceType
from mcpd.runtime import permissions
from tests.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.model import Entry

FILE = Path(__file__).parents[2] / "data/registry.json"
SOURCES = FILE.with_name("sources.list")
REGISTRY = parse_registry(json.loads(FILE.read_text()), FILE.name)
EXACT = re.compile(r"[0-9]+(\.[0-9]+)+((a|b|rc)[0-9]+|-[0-9a-z.]+)?")
LICENSES = {"MIT", "Apache-2.0"}

each = pytest.mark.parametrize("entry", REGISTRY.servers, ids=lambda entry: entry.id)


def test_it_is_a_registry_without_faults() -> None:
    assert not REGISTRY.problems
    assert len(REGISTRY.servers) >= 12
    assert len({entry.id for entry in REGISTRY.servers}) == len(REGISTRY.servers)
    assert dt.datetime.fromisoformat(REGISTRY.updated) >= dt.datetime(2026, 11, 23, tzinfo=dt.UTC)


def test_the_shipped_list_names_where_it_is_installed() -> None:
    lines = [line for line in SOURCES.read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["file:///usr/share/mcp/registry.json"]


def test_the_list_is_the_administrators_once_it_is_installed(tmp_path: Path) -> None:
    install = ["make", "--silent", f"--directory={FILE.parents[1]}", "install-files", f"DESTDIR={tmp_path}"]
    subprocess.run(install, check=True, capture_output=True)
    listed = tmp_path / "etc/mcp/sources.list"
    assert listed.read_text() == SOURCES.read_text()
    assert (tmp_path / "usr/share/mcp/registry.json").read_bytes() == FILE.read_bytes()
    listed.write_text("# none\n")
    subprocess.run(install, check=True, capture_output=True)
    assert listed.read_text() == "# none\n"


@each
def test_an_entry_says_what_a_software_centre_shows(entry: Entry) -> None:
    assert entry.name
    assert entry.summary == entry.summary.strip().rstrip(".")
    assert 0 < len(entry.summary) <= 80
    assert len(entry.description) > len("Works without an account")
    assert entry.author
    assert entry.license in LICENSES
    assert entry.categories[0] == "mcp"
    assert len(entry.categories) > 1
    assert entry.icon
    for url in (entry.homepage, entry.bug_url):
        assert url.startswith("https://")


@each
def test_an_entry_is_pinned_by_version_and_content(entry: Entry) -> None:
    assert entry.source
    assert entry.source.type in {SourceType.NPM, SourceType.PYPI}
    assert EXACT.fullmatch(entry.version)
    assert entry.source.version == entry.version
    assert re.fullmatch(r"[0-9a-f]{64}", entry.source.sha256)
    assert entry.stdio


@each
def test_an_entry_asks_for_little_and_keeps_secrets_secret(entry: Entry) -> None:
    asked = permissions.parse(
        entry.id,
        entry.permissions,
        {},
        sensitive={found.key for found in entry.configurable_properties if found.sensitive},
    )
    assert not asked.ignored
    assert not asked.devices
    assert not asked.bus_names
    assert not asked.installed
    assert asked.mcp is None
    # What is not the user's choice is nobody's home, and read at most.
    assert all(grant.path.startswith("/etc/") and not grant.writable for grant in asked.paths)
    for found in entry.configurable_properties:
        assert found.label
        assert found.description
        assert found.sensitive == bool(re.search("KEY|TOKEN", found.key))
        assert not found.sensitive or found.target == "env"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A machine on which the list has just been installed."""
    with Rig() as machine:
        listed = machine.home / "system/etc/mcp/sources.list"
        listed.parent.mkdir(parents=True)
        listed.write_text(SOURCES.read_text().replace("file:///usr/share/mcp/registry.json", FILE.as_uri()))
        machine.start_daemon()
        yield machine


def test_it_is_found_at_once(rig: Rig) -> None:
    """Nobody has to ask for a refresh first."""
    found = json.loads(rig.mcpctl("search", "--json", "browser").stdout)["servers"]
    assert {"playwright-mcp", "chrome-devtools-mcp"} <= {server["id"] for server in found}


@pytest.mark.parametrize(
    ("server", "tool", "arguments"),
    [
        ("mcp-server-time", "convert_time",
         {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
        ("server-everything", "get-sum", {"a": 20, "b": 22}),
        ("server-memory", "read_graph", {}),
    ],
)  # fmt: skip
def test_a_server_is_installed_as_the_registry_pins_it_and_answers(
    rig: Rig, server: str, tool: str, arguments: dict[str, object]
) -> None:
    """From the real PyPI and npm, built and started in the sandbox."""
    assert rig.mcpctl("refresh").returncode == 0
    done = rig.mcpctl("install", "--yes", server)
    assert done.returncode == 0, done.stderr
    tools = json.loads(rig.mcpctl("tools", "--json", server).stdout)["tools"]
    assert tool in {found["name"] for found in tools}
    called = rig.mcpctl("call", server, tool, json.dumps(arguments))
    assert called.returncode == 0, called.stderr
