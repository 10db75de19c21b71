# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

import pytest

from mcpd.paths import Scope, from_environment

VARIABLES = (
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "MCP_ROOT",
    "MCP_USER_SOURCES_PATH",
    "MCP_USER_INSTALL_DIR",
    "MCP_SYSTEM_SOURCES_PATH",
    "MCP_SYSTEM_INSTALL_DIR",
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")


def test_user_paths_by_default() -> None:
    user = from_environment().user
    assert user.sources_list == Path("/home/somebody/.config/mcp/sources.list")
    assert user.sources_dir == Path("/home/somebody/.config/mcp/sources.list.d")
    assert user.installed == Path("/home/somebody/.local/share/mcp/installed")
    assert user.secrets == Path("/home/somebody/.local/share/mcp/secrets")
    assert user.cache == Path("/home/somebody/.cache/mcp")
    assert user.state == Path("/home/somebody/.local/state/mcp")
    assert user.generations == Path("/home/somebody/.local/share/mcp/generations")


def test_system_paths_by_default() -> None:
    paths = from_environment()
    assert paths.system.sources_list == Path("/etc/mcp/sources.list")
    assert paths.system.installed == Path("/usr/share/mcp/installed")
    assert paths.system.secrets == Path("/var/lib/mcp/secrets")
    assert paths.system.cache == Path("/var/cache/mcp")
    assert paths.system.runtime == Path("/run/mcp")
    assert paths.vendor == Path(__file__).parents[2] / "data/share/servers"
    assert (paths.layout(Scope.SYSTEM), paths.layout(Scope.USER)) == (paths.system, paths.user)


def test_xdg_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG_HOME", "DATA_HOME", "STATE_HOME", "CACHE_HOME", "RUNTIME_DIR"):
        monkeypatch.setenv(f"XDG_{name}", f"/x/{name}")
    user = from_environment().user
    assert user.sources_list == Path("/x/CONFIG_HOME/mcp/sources.list")
    assert user.settings == Path("/x/CONFIG_HOME/mcp/mcpd.toml")
    assert user.installed == Path("/x/DATA_HOME/mcp/installed")
    assert user.overlay == Path("/x/DATA_HOME/mcp/overlay")
    assert user.state == Path("/x/STATE_HOME/mcp")
    assert user.cache == Path("/x/CACHE_HOME/mcp")
    assert user.runtime == Path("/x/RUNTIME_DIR/mcp")


def test_each_path_of_the_format_has_an_override(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_USER_SOURCES_PATH", "/o/user.list")
    monkeypatch.setenv("MCP_USER_INSTALL_DIR", "~/servers")
    monkeypatch.setenv("MCP_SYSTEM_SOURCES_PATH", "relative.list")
    monkeypatch.setenv("MCP_SYSTEM_INSTALL_DIR", "/o/installed")
    paths = from_environment()
    assert paths.user.sources_list == Path("/o/user.list")
    assert paths.user.sources_dir == Path("/o/user.list.d")
    assert paths.user.installed == Path("/home/somebody/servers")
    assert paths.system.sources_list == tmp_path / "relative.list"
    assert paths.system.installed == Path("/o/installed")
    assert paths.system.generations == Path("/o/generations")


def test_mcp_root_moves_the_whole_system_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_ROOT", "/image")
    paths = from_environment()
    system = paths.system
    for path in (system.sources_list, system.settings, system.installed, system.secrets, system.state, system.cache):
        assert path.is_relative_to("/image")
    assert system.runtime == Path("/image/run/mcp")
    assert paths.vendor == Path("/image/usr/share/mcp/servers")
    assert paths.user.installed == Path("/home/somebody/.local/share/mcp/installed")


def test_generations_lie_beside_what_installed_really_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MCP_ROOT", str(tmp_path))
    installed = tmp_path / "usr/share/mcp/installed"
    installed.parent.mkdir(parents=True)
    installed.symlink_to("/var/lib/mcp/installed")
    assert from_environment().system.generations == Path("/var/lib/mcp/generations")


def test_looking_for_paths_makes_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    from_environment()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory_of_the_system_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(path: Path) -> Path:
        return tmp_path if path == Path("/usr/share/mcp/servers") else path

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scandir(nothing(path)))
    assert from_environment().vendor == Path(__file__).parents[2] / "data/share/servers"
    (tmp_path / "com.example.one").mkdir()
    assert from_environment().vendor == Path("/usr/share/mcp/servers")


def test_a_wheel_has_the_servers_and_scripts_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Path(__file__).parents[2]
    targets = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    shutil.copytree(checkout / "data/share", tmp_path / targets["wheel"]["force-include"]["data/share"])
    monkeypatch.setattr("mcpd.paths.__file__", str(tmp_path / "mcpd/paths.py"))
    monkeypatch.setattr("mcpd.paths._has_entries", lambda path: path.is_relative_to(tmp_path) and path.exists())
    found = from_environment()
    assert {"date", "echo", "jq", "markdown"} <= {path.stem for path in found.vendor_scripts.iterdir()}
    assert found.vendor_mcps.exists()
    assert (found.vendor / "workstation/manifest.json").exists()


def test_what_cannot_be_looked_at_is_as_good_as_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever the system says of it: an ordinary user has no right to look below some directories.
    monkeypatch.setenv("MCP_VENDOR_DIR", f"/{'x' * 300}")
    assert from_environment().vendor == Path(__file__).parents[2] / "data/share/servers"
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.setenv("MCP_USER_INSTALL_DIR", str(tmp_path / "circle"))
    assert from_environment().user.generations.name == "generations"
    monkeypatch.setenv("MCP_USER_INSTALL_DIR", "~nobody-is-called-so/x")
    assert from_environment().user.installed.name == "x"
