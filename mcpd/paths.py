# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files and directories of mcpd by scope; the environment can override them.

System paths follow the FHS, user paths the XDG base directory specification (through platformdirs).
``MCP_SYSTEM_INSTALL_DIR``, ``MCP_SYSTEM_SOURCES_PATH``, ``MCP_USER_INSTALL_DIR`` and ``MCP_USER_SOURCES_PATH`` override
one path each, as in other implementations of the format. ``MCP_ROOT`` moves the whole system scope below a directory,
for tests and image builds.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, TypeAlias

from platformdirs.unix import Unix

HOME_VARIABLE: Final = "MCP_USER_HOME"
"""Variable with the user's home, for servers whose HOME is their state directory."""
CONFINED_VARIABLE: Final = "MCPD_CONFINED"
"""Variable that is ``1`` in servers that run in mcpd's sandbox."""


VENDOR_VARIABLE: Final = "MCP_VENDOR_DIR"
"""Variable that overrides the directory of servers from distribution packages."""


class Scope(StrEnum):
    """Owner of servers, and the instance of mcpd that manages them."""

    USER = "user"
    SYSTEM = "system"


LayerName: TypeAlias = Literal["user", "system", "vendor"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The files and directories of one scope."""

    scope: Scope
    sources_list: Path
    settings: Path
    installed: Path
    """Contains ``index.json`` and one symlink ``<id>`` for each installed server."""
    secrets: Path
    state: Path
    """Parent of the servers' state directories, one for each id."""
    cache: Path
    runtime: Path
    overlay: Path
    """A user's configuration for servers of the system scope; unused in the system scope."""
    scripts: Path
    """Script servers, one file each."""
    contents: Path
    """The content store, which the mcps map refers to."""
    orchestration: Path
    """Contains the releases, keys and drafts of client configurations."""
    deployments: Path
    """Backups of client files that mcpctl changed; unused in the system scope."""

    @property
    def signing_keys(self) -> Path:
        """Directory of the key pair that signs releases."""
        return self.orchestration / "keys"

    @property
    def sources_dir(self) -> Path:
        """``sources.list.d``, next to ``sources.list``."""
        return self.sources_list.with_name(self.sources_list.name + ".d")

    @property
    def trusted_keys(self) -> Path:
        """``keys.d``: the trusted public keys, in PEM."""
        return self.settings.with_name("keys.d")

    @property
    def clients(self) -> Path:
        """Directory of descriptions of client families."""
        return self.settings.with_name("clients")

    @property
    def client_profiles(self) -> Path:
        """Profiles of client configurations."""
        return self.settings.with_name("client-profiles")

    @property
    def policy(self) -> Path:
        """The policy for client configurations."""
        return self.settings.with_name("policy.toml")

    @property
    def mcps(self) -> Path:
        """The mcps map."""
        return self.settings.with_name("mcps.json")

    @property
    def mcps_dir(self) -> Path:
        """``mcps.d``: additional files of the mcps map."""
        return self.settings.with_name("mcps.d")

    @property
    def generations(self) -> Path:
        """Parent of ``<id>/<n>/``, next to the directory that ``installed`` points to."""
        # Path.resolve() raises for symlink loops.
        return Path(os.path.realpath(self.installed)).parent / "generations"


@dataclass(frozen=True, slots=True)
class Paths:
    """Both scopes and the read-only vendor layer."""

    user: Layout
    system: Layout
    vendor: Path
    """Contains ``<id>/manifest.json`` of bundled servers and of servers from distribution packages."""
    home: Path

    @property
    def vendor_clients(self) -> Path:
        """Descriptions of client families from distribution packages."""
        return self.vendor.with_name("clients")

    @property
    def vendor_profiles(self) -> Path:
        """Profiles of client configurations from distribution packages."""
        return self.vendor.with_name("client-profiles")

    @property
    def vendor_mcps(self) -> Path:
        """The mcps map from distribution packages."""
        return self.vendor.with_name("mcps.json")

    @property
    def vendor_scripts(self) -> Path:
        """Script servers from distribution packages."""
        return self.vendor.with_name("scripts")

    @property
    def vendor_contents(self) -> Path:
        """The content store of the vendor layer."""
        return self.vendor.with_name("cas")

    def contents(self, scope: Scope) -> list[Path]:
        """Return the content stores that *scope* reads, its own first."""
        own = [self.user.contents] if scope is Scope.USER else []
        return [*own, self.system.contents, self.vendor_contents]

    def layout(self, scope: Scope) -> Layout:
        """Return the files and directories of *scope*."""
        return self.user if scope is Scope.USER else self.system


def from_environment() -> Paths:
    """Return the paths of this process, as set by its environment."""
    root = Path(os.environ.get("MCP_ROOT") or "/").absolute()
    return Paths(user=_user(), system=_system(root), vendor=_vendor(root), home=_home())


def to_environment(paths: Paths) -> dict[str, str]:
    """Return variables from which :func:`from_environment` restores *paths* in a process with another HOME."""
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
    """Return the vendor directory: the system's if present, else that of the Python package or the source tree."""
    installed = _override(VENDOR_VARIABLE, root / "usr/share/mcp/servers")
    is_named = bool(os.environ.get(VENDOR_VARIABLE)) and os.path.isdir(installed)  # noqa: PTH112 - pathlib raises for that
    if is_named or _has_entries(installed) or root != Path("/"):
        return installed
    package = Path(__file__).parent
    bundled = (package / "share/servers", package.parent / "data/share/servers")
    return next((path for path in bundled if _has_entries(path)), installed)


def _has_entries(path: Path) -> bool:
    """Return whether *path* is a directory with entries that this user can list."""
    try:
        with os.scandir(path) as entries:
            return any(entries)
    except OSError:
        return False


def make_private(path: Path) -> None:
    """Create the directory *path* and its missing parents with mode 0700, as XDG requires. Raises OSError."""
    if not path.is_dir():
        for missing in reversed([each for each in path.parents if not each.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def _home() -> Path:
    return _override(HOME_VARIABLE, Path.home())


def _override(variable: str, default: Path) -> Path:
    value = os.environ.get(variable)
    # Path.expanduser() raises for an unknown user.
    return Path(os.path.expanduser(value)).absolute() if value else default  # noqa: PTH111


def _user() -> Layout:
    xdg = Unix("mcp", appauthor=False)
    with warnings.catch_warnings():
        # Without XDG_RUNTIME_DIR, platformdirs falls back to a private directory below /tmp, which is fine.
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
"""Name of the file with the base URL of a user's bridge, while it listens on TCP."""
STDIO_SOCKET: Final = "stdio.sock"
CALLS_SOCKET: Final = "calls.sock"
"""Name of the bridge's socket for servers that call others; also identifies the socket when systemd passes it."""


def calls_socket(runtime: Path) -> Path:
    """Return the bridge's socket for servers that call others, below the *runtime* directory of a layout."""
    return runtime / "calls" / CALLS_SOCKET


def calls_key(runtime: Path) -> Path:
    """Return the file with the key that signs passes, below *runtime*; only its owner may read it."""
    return runtime / "calls.key"
