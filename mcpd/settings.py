# SPDX-License-Identifier: LGPL-2.1-or-later
"""The settings in ``mcpd.toml`` (docs/settings.md): the administrator's, the user's, and those in the environment.

The user instance reads ``/etc/mcp/mcpd.toml`` and then ``~/.config/mcp/mcpd.toml``; the later file overrides single
keys. A variable ``MCPD_<SECTION>_<KEY>`` (e.g. ``MCPD_INSTALL_KEEP_GENERATIONS=5``; list items separated by commas)
overrides both. ``daemon.read_only`` is different: if one of them is true, no other can make it false.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.errors import InvalidConfig, from_oserror
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_ENVIRONMENT: Final = "environment"

Seconds = Annotated[float, Field(gt=0, le=7200)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DaemonSettings(_Section):
    """Settings of the service itself."""

    idle_exit: Annotated[float, Field(ge=0, le=86400)] = 300
    """Seconds without a call, a job or a running server before mcpd exits, if a service manager will start it again on
    the next call; 0: never."""
    read_only: bool = False
    """Refuse to install, update, remove and configure servers and registries. If one file or variable sets it, no other
    can reset it."""


class RuntimeSettings(_Section):
    """Settings for running servers."""

    sandbox: Literal["on", "off"] = "on"
    """``off`` runs servers without a sandbox; every listing shows that."""
    launcher: Literal["auto", "plain", "systemd-user", "systemd-socket"] = "auto"
    """How servers are started: by socket units, transient user units, or as children; ``auto``: the first available."""
    max_sessions: Annotated[int, Field(ge=1, le=100_000)] = 512
    """Maximum number of servers running at once, for all users."""
    max_sessions_per_user: Annotated[int, Field(ge=0, le=100_000)] = 0
    """The same for one user of the system instance, except root; 0 for a quarter of ``max_sessions``."""


class InstallSettings(_Section):
    """Settings for installing servers."""

    keep_generations: Annotated[int, Field(ge=1, le=100)] = 3
    """Generations of a server that are kept for ``mcpctl rollback``, including the current one."""
    step_timeout: Annotated[float, Field(gt=0)] = 900
    """Seconds that one external command (git, pip, npm) may take."""
    health_timeout: Seconds = 60
    """Seconds in which a newly installed server must answer ``tools/list``."""


class CatalogSettings(_Section):
    """Settings for reading registries."""

    timeout: Seconds = 30
    """Maximum number of seconds for reading one registry."""
    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Maximum bytes of one registry."""


class BridgeSettings(_Section):
    """Settings of the bridge."""

    listen: str = ""
    """``HOST:PORT`` on loopback for a user's bridge, port 0 for any free one; empty for Unix sockets only.

    Another program can take the port while the bridge is not running; with systemd, use ``mcpd-bridge-tcp.socket``.
    """
    idle_timeout: Seconds = 300
    """Seconds without a call before a session ends."""
    call_timeout: Seconds = 30
    """Seconds without a reply or a progress notification before a call fails."""
    max_body: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    """Bytes of one HTTP request."""
    max_line: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Bytes of one message from a server."""
    max_buffered: Annotated[int, Field(ge=1 << 20)] = 256 * 1024 * 1024
    """Bytes of partial and unread messages in memory; one caller of the system bridge may use a quarter."""
    max_sessions: Annotated[int, Field(ge=1)] = 256
    """Sessions of one caller at once that have their own process."""
    max_children: Annotated[int, Field(ge=1)] = 256
    """Processes of one caller at once."""
    keepalive: Seconds = 30
    """Seconds of silence before a comment is sent on an event stream."""
    rate: Annotated[float, Field(gt=0)] = 50_000
    """Calls per second from one caller to one server, on average."""
    burst: Annotated[int, Field(ge=1)] = 10_000
    """Calls from one caller to one server that may arrive at once."""
    audit: Annotated[str, Field(pattern=r"^(journal|off|-|/.+)$")] = "journal"
    """Where tool calls are recorded: ``journal``, the absolute path of a file, ``-`` (standard output) or ``off``."""
    strict_sessions: bool = False
    """Refuse requests without a session, instead of serving them from a process shared by the caller."""
    tls_certificate: str = ""
    """PEM file with the certificate and its chain for TCP clients; without one they speak plain HTTP."""
    tls_key: str = ""
    """PEM file with the certificate's key, if that is in another file."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins that are served in addition to those on this machine."""
    idle_exit: Annotated[float, Field(ge=0, le=86400)] = 300
    """Seconds without a client before a socket-activated bridge exits; 0: never."""


class Settings(_Section):
    """All settings of ``mcpd.toml``.

    mcpd has one object, which every part reads when it needs a value, so that a reload reaches all of them. Only the
    launcher and the number of kept generations are fixed at the start.
    """

    model_config = ConfigDict(frozen=False)

    daemon: DaemonSettings = DaemonSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    install: InstallSettings = InstallSettings()
    catalog: CatalogSettings = CatalogSettings()
    bridge: BridgeSettings = BridgeSettings()

    def update_from(self, new: Settings) -> None:
        """Replace all values with those of *new*."""
        for name in type(self).model_fields:
            setattr(self, name, getattr(new, name))


def load(
    files: Iterable[Path], environ: Mapping[str, str] | None = None, *, sandbox_off_from_files_only: bool = False
) -> Settings:
    """Read *files* in order of rising precedence (a missing one counts as empty), then *environ*.

    ``daemon.read_only`` is true if any file or variable sets it, so that users cannot undo it.

    With *sandbox_off_from_files_only*, a variable cannot turn off the sandbox, since a variable set by accident is
    easily overlooked.

    Raises :class:`~mcpd.errors.InvalidConfig` that names the file or variable, and the key.
    """
    merged: dict[str, dict[str, Any]] = {}
    layers = [_merge(merged, _read(file), str(file)) for file in files]
    variables = _from_environment(os.environ if environ is None else environ)
    if sandbox_off_from_files_only and variables.get("runtime", {}).get("sandbox") == "off":
        raise InvalidConfig(
            f"{_variable('runtime', 'sandbox')}=off: the environment cannot turn off the sandbox of system servers;"
            ' remove the variable, or write sandbox = "off" below [runtime] in mcpd.toml'
        )
    layers.append(_merge(merged, variables, _ENVIRONMENT))
    merged.setdefault("daemon", {})["read_only"] = any(layer.daemon.read_only for layer in layers)
    return Settings.model_validate(merged)


def _read(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidConfig(f"{file}: {error}") from error
    except OSError as error:
        raise from_oserror(error, f"reading {file}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, dict[str, str | list[str]]] = {}
    for section, field in Settings.model_fields.items():
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            continue
        for key, setting in field.annotation.model_fields.items():
            value = environ.get(_variable(section, key))
            if value is not None:
                is_list = get_origin(setting.annotation) is tuple
                found.setdefault(section, {})[key] = (
                    [v.strip() for v in value.split(",") if v.strip()] if is_list else value
                )
    return found


def _variable(*names: object) -> str:
    return "_".join(("MCPD", *map(str, names))).upper()


def _merge(into: dict[str, dict[str, Any]], layer: dict[str, Any], origin: str) -> Settings:
    """Merge *layer* into *into*; return the settings of *layer* alone. Error messages name *origin*."""
    try:
        alone = Settings.model_validate(layer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = first["loc"]
        named = _variable(*place[:2]) if origin == _ENVIRONMENT else f"{origin}: {'.'.join(map(str, place))}"
        what = "unknown setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise InvalidConfig(f"{named}: {what}") from error
    for section, values in layer.items():
        into.setdefault(section, {}).update(values)
    return alone
