# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where everything lies: scopes → directories, each one overridable.

System paths follow the FHS, user paths the XDG base directory specification (through platformdirs).
``MCP_SYSTEM_INSTALL_DIR``, ``MCP_SYSTEM_SOURCES_PATH``, ``MCP_USER_INSTALL_DIR`` and ``MCP_USER_SOURCES_PATH``
override one path each, as other implementations of the format know them. ``MCP_ROOT`` moves the whole
system scope below a directory, for tests and image builds.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from platformdirs.unix import Unix

HOME_VARIABLE: Final = "MCP_USER_HOME"
"""Names the user's home to a server, whose own HOME is the directory that it may write."""
CONFINED_VARIABLE: Final = "MCPD_CONFINED"
"""Is ``1`` for a server that runs in mcpd's sandbox."""


VENDOR_VARIABLE: Final = "MCP_VENDOR_DIR"
"""Overrides where the servers are that the system's packages bring."""


class Scope(StrEnum):
    """Whom a server is installed for."""

    USER = "user"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of one scope."""

    scope: Scope
    sources_list: Path
    settings: Path
    installed: Path
    """Holds ``index.json`` and one symlink ``<id>`` per installed server."""
    secrets: Path
    state: Path
    """Parent of the directories that servers may write, one per id."""
    cache: Path
    runtime: Path
    overlay: Path
    """A user's own values for system-installed servers; unused in the system scope."""
    scripts: Path
    """Files that are script servers."""
    contents: Path
    """What content ids of the mcps map stand for."""
    orchestration: Path
    """Holds the signed configurations of MCP clients, their keys and drafts."""
    deployments: Path
    """What client files held before mcpctl changed them; unused in the system scope."""

    @property
    def signing_keys(self) -> Path:
        """Holds the key that they are signed with, and its public half."""
        return self.orchestration / "keys"

    @property
    def sources_dir(self) -> Path:
        """``sources.list.d``, beside ``sources.list``."""
        return self.sources_list.with_name(self.sources_list.name + ".d")

    @property
    def trusted_keys(self) -> Path:
        """``keys.d``: the public keys, in PEM, whose signatures are trusted."""
        return self.settings.with_name("keys.d")

    @property
    def clients(self) -> Path:
        """Holds descriptions of MCP clients."""
        return self.settings.with_name("clients")

    @property
    def client_profiles(self) -> Path:
        """Holds profiles of their configurations."""
        return self.settings.with_name("client-profiles")

    @property
    def policy(self) -> Path:
        """What configurations of clients may hold."""
        return self.settings.with_name("policy.toml")

    @property
    def mcps(self) -> Path:
        """The mcps map."""
        return self.settings.with_name("mcps.json")

    @property
    def mcps_dir(self) -> Path:
        """Holds further files of it."""
        return self.settings.with_name("mcps.d")

    @property
    def generations(self) -> Path:
        """Parent of ``<id>/<n>/``, beside the directory that ``installed`` really is."""
        # Path.resolve() raises where symlinks go round in a circle.
        return Path(os.path.realpath(self.installed)).parent / "generations"


@dataclass(frozen=True, slots=True)
class Paths:
    """Both scopes and the read-only vendor layer."""

    user: Layout
    system: Layout
    vendor: Path
    """``<id>/manifest.json`` of bundled servers and of those from distribution packages."""
    home: Path

    @property
    def vendor_clients(self) -> Path:
        """The descriptions of MCP clients that the system's packages bring."""
        return self.vendor.with_name("clients")

    @property
    def vendor_profiles(self) -> Path:
        """The profiles of their configurations that the system's packages bring."""
        return self.vendor.with_name("client-profiles")

    @property
    def vendor_mcps(self) -> Path:
        """The mcps map that the system's packages bring."""
        return self.vendor.with_name("mcps.json")

    @property
    def vendor_scripts(self) -> Path:
        """The script servers that the system's packages bring."""
        return self.vendor.with_name("scripts")

    @property
    def vendor_contents(self) -> Path:
        """What the content ids of their map stand for."""
        return self.vendor.with_name("cas")

    def contents(self, scope: Scope) -> list[Path]:
        """Where *scope* looks for content, its own first."""
        own = [self.user.contents] if scope is Scope.USER else []
        return [*own, self.system.contents, self.vendor_contents]

    def layout(self, scope: Scope) -> Layout:
        """The directories of *scope*."""
        return self.user if scope is Scope.USER else self.system


def from_environment() -> Paths:
    """The paths of this process, as its environment sets them."""
    root = Path(os.environ.get("MCP_ROOT") or "/").absolute()
    return Paths(user=_user(), system=_system(root), vendor=_vendor(root), home=_home())


def exported(paths: Paths) -> dict[str, str]:
    """The variables with which :func:`from_environment` finds *paths* in a process whose HOME is another one."""
    user = paths.user
    return {
        HOME_VARIABLE: str(paths.home),
        "MCP_ROOT": str(paths.system.settings.parents[2]),
        VENDOR_VARIABLE: str(paths.vendor),
        "MCP_SYSTEM_INSTALL_DIR": str(paths.system.installed),
        "MCP_SYSTEM_SOURCES_PATH": str(paths.system.sources_list),
        "MCP_USER_INSTALL_DIR": str(user.installed),
        "MCP_USER_SOURCES_PATH": str(user.sources_list),
        "XDG_CONFIG_HOME": str(user.settings.parent.parent),
        "XDG_DATA_HOME": str(user.secrets.parent.parent),
    }


def _vendor(root: Path) -> Path:
    """Where the system has none and the package is installed by itself, or runs from its source, it is beside that."""
    there = _override(VENDOR_VARIABLE, root / "usr/share/mcp/servers")
    is_named = bool(os.environ.get(VENDOR_VARIABLE)) and os.path.isdir(there)  # noqa: PTH112 - pathlib raises for that
    if is_named or _has_entries(there) or root != Path("/"):
        return there
    package = Path(__file__).parent
    brought = (package / "share/servers", package.parent / "data/share/servers")
    return next((path for path in brought if _has_entries(path)), there)


def _has_entries(path: Path) -> bool:
    """Whether *path* is a directory with something in it that this user may see."""
    try:
        with os.scandir(path) as entries:
            return any(entries)
    except OSError:
        return False


def make_private(path: Path) -> None:
    """Make *path* and those of its parents that are missing, each for its owner alone, as XDG has it.

    Raises OSError.
    """
    if not path.is_dir():
        for missing in reversed([each for each in path.parents if not each.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def _home() -> Path:
    return _override(HOME_VARIABLE, Path.home())


def _override(variable: str, default: Path) -> Path:
    value = os.environ.get(variable)
    # Path.expanduser() raises for a user that there is not.
    return Path(os.path.expanduser(value)).absolute() if value else default  # noqa: PTH111


def _user() -> Layout:
    xdg = Unix("mcp", appauthor=False)
    with warnings.catch_warnings():
        # Without XDG_RUNTIME_DIR platformdirs falls back to a private directory below /tmp, which will do.
        warnings.simplefilter("ignore")
        runtime = Path(xdg.user_runtime_dir)
    config, data = Path(xdg.user_config_dir), Path(xdg.user_data_dir)
    return Layout(
        scope=Scope.USER,
        sources_list=_override("MCP_USER_SOURCES_PATH", config / "sources.list"),
        settings=config / "mcpd.toml",
        installed=_override("MCP_USER_INSTALL_DIR", data / "installed"),
        secrets=data / "secrets",
        state=Path(xdg.user_state_dir),
        cache=Path(xdg.user_cache_dir),
        runtime=runtime,
        overlay=data / "overlay",
        scripts=data / "scripts",
        contents=data / "cas",
        orchestration=_home() / ".mcp-orchestration",
        deployments=data / "deployments",
    )


def _system(root: Path) -> Layout:
    return Layout(
        scope=Scope.SYSTEM,
        sources_list=_override("MCP_SYSTEM_SOURCES_PATH", root / "etc/mcp/sources.list"),
        settings=root / "etc/mcp/mcpd.toml",
        installed=_override("MCP_SYSTEM_INSTALL_DIR", root / "usr/share/mcp/installed"),
        secrets=root / "var/lib/mcp/secrets",
        state=root / "var/lib/mcp/state",
        cache=root / "var/cache/mcp",
        runtime=root / "run/mcp",
        overlay=root / "var/lib/mcp/overlay",
        scripts=root / "etc/mcp/scripts",
        contents=root / "var/lib/mcp/cas",
        orchestration=root / "var/lib/mcp/orchestration",
        deployments=root / "var/lib/mcp/deployments",
    )


BRIDGE_URL: Final = "bridge.url"
"""Name of the file that holds the base URL of a user's bridge while it listens on TCP."""
STDIO_SOCKET: Final = "stdio.sock"
CALLS_SOCKET: Final = "calls.sock"
"""Names of the bridge's sockets beside the one for HTTP, by which it tells apart those that it is passed."""


def calls_socket(runtime: Path) -> Path:
    """The bridge's socket for servers that may call others, below the *runtime* directory of a layout."""
    return runtime / "calls" / CALLS_SOCKET


def calls_key(runtime: Path) -> Path:
    """What the passes of those servers are signed with; nobody else may read it."""
    return runtime / "calls.key"
