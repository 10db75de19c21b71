# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd.toml`` (docs/settings.md): the administrator's settings, then the user's, then the environment.

The user instance reads ``/etc/mcp/mcpd.toml`` and then ``~/.config/mcp/mcpd.toml``; a later file wins key by
key. A variable ``MCPD_<SECTION>_<KEY>`` (e.g. ``MCPD_INSTALL_KEEP_GENERATIONS=5``; commas between the
items of a list) wins over both. But for ``daemon.read_only``: what one of these forbids no other allows.
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
    """The service itself."""

    idle_exit: Annotated[float, Field(ge=0, le=86400)] = 300
    """Seconds without a call, a job and a running server until mcpd ends, where a service manager starts it again at
    the next call; 0 for never."""
    read_only: bool = False
    """Refuse to install, update, remove and configure servers and registries. Once true in one place, it stays so
    whatever the user's file or the environment says."""


class RuntimeSettings(_Section):
    """How servers are run."""

    sandbox: Literal["on", "off"] = "on"
    """``off`` runs servers without bubblewrap; every listing then says so."""
    launcher: Literal["auto", "plain", "systemd-user", "systemd-socket"] = "auto"
    """What starts servers: the sockets of systemd, the user's systemd, or mcpd itself; ``auto`` takes what is there."""
    max_sessions: Annotated[int, Field(ge=1, le=100_000)] = 512
    """Running servers at once, over all callers."""
    max_sessions_per_user: Annotated[int, Field(ge=0, le=100_000)] = 0
    """The same for one user of the system's mcpd, except root; 0 for a quarter of ``max_sessions``."""


class InstallSettings(_Section):
    """How servers are installed."""

    keep_generations: Annotated[int, Field(ge=1, le=100)] = 3
    """Installations of a server that are kept, the present one among them, for ``mcpctl rollback``."""
    step_timeout: Annotated[float, Field(gt=0)] = 900
    """Seconds that one external command (git, pip, npm) may take."""
    health_timeout: Seconds = 60
    """Seconds in which a fresh server must answer ``tools/list``."""


class CatalogSettings(_Section):
    """How registries are read."""

    timeout: Seconds = 30
    """Seconds that reading one registry may take."""
    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Bytes up to which a registry is read."""


class BridgeSettings(_Section):
    """The HTTP front."""

    listen: str = ""
    """``HOST:PORT`` on loopback for a user's bridge, port 0 for a free one; empty for the unix sockets only.

    Others can take it while the bridge does not run: where there is systemd, use ``mcpd-bridge-tcp.socket``.
    """
    idle_timeout: Seconds = 300
    """Seconds without a call until a session ends."""
    call_timeout: Seconds = 30
    """Seconds without an answer or a sign of progress until a call fails."""
    max_body: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    """Bytes of one HTTP request."""
    max_line: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Bytes of one message from a server."""
    max_buffered: Annotated[int, Field(ge=1 << 20)] = 256 * 1024 * 1024
    """Bytes of incomplete and unread messages kept in memory; one caller of the system's bridge may take a quarter."""
    max_sessions: Annotated[int, Field(ge=1)] = 256
    """Sessions of one caller at once that have a process of their own."""
    max_children: Annotated[int, Field(ge=1)] = 256
    """Processes of one caller at once."""
    keepalive: Seconds = 30
    """Seconds after which a silent event stream carries a comment."""
    rate: Annotated[float, Field(gt=0)] = 50_000
    """Calls a second that one caller may make of one server, on average."""
    burst: Annotated[int, Field(ge=1)] = 10_000
    """Calls of one caller to one server that may come at once."""
    audit: Annotated[str, Field(pattern=r"^(journal|off|-|/.+)$")] = "journal"
    """Where calls of tools are recorded: ``journal``, the absolute path of a file, ``-`` (standard output), ``off``."""
    strict_sessions: bool = False
    """Refuse requests without a session, instead of serving them from a child shared by the caller."""
    tls_certificate: str = ""
    """PEM file with the certificate, and its chain, that TCP clients are shown; without one they speak plain HTTP."""
    tls_key: str = ""
    """PEM file with its key, if that is not in the same file."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins that are served besides those of this machine."""
    idle_exit: Annotated[float, Field(ge=0, le=86400)] = 300
    """Seconds without any client after which a bridge ends whose sockets the service manager holds; 0: never."""


class Settings(_Section):
    """All of ``mcpd.toml``.

    mcpd has one, at which every part looks when it needs it, so that a reload reaches them all; only the launcher and
    the number of generations kept are chosen at its start.
    """

    model_config = ConfigDict(frozen=False)

    daemon: DaemonSettings = DaemonSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    install: InstallSettings = InstallSettings()
    catalog: CatalogSettings = CatalogSettings()
    bridge: BridgeSettings = BridgeSettings()

    def take_over(self, new: Settings) -> None:
        """Have the values of *new*."""
        for name in type(self).model_fields:
            setattr(self, name, getattr(new, name))


def load(
    files: Iterable[Path], environ: Mapping[str, str] | None = None, *, only_files_unconfine: bool = False
) -> Settings:
    """Read *files* in order of rising precedence (a missing one is empty), then *environ*.

    ``daemon.read_only`` is true if one of them says so: it is not the user's to undo.

    With *only_files_unconfine* the environment, which is easily set by accident and seen by nobody, cannot turn the
    sandbox off.

    Raises :class:`~mcpd.errors.InvalidConfig` that names the file or variable and the key.
    """
    merged: dict[str, dict[str, Any]] = {}
    layers = [_merge(merged, _read(file), str(file)) for file in files]
    variables = _from_environment(os.environ if environ is None else environ)
    if only_files_unconfine and variables.get("runtime", {}).get("sandbox") == "off":
        raise InvalidConfig(
            f"{_variable('runtime', 'sandbox')}=off: the sandbox of the system's servers is not turned off by the"
            ' environment; remove the variable, or write sandbox = "off" below [runtime] in mcpd.toml'
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
                many = get_origin(setting.annotation) is tuple
                found.setdefault(section, {})[key] = (
                    [v.strip() for v in value.split(",") if v.strip()] if many else value
                )
    return found


def _variable(*names: object) -> str:
    return "_".join(("MCPD", *map(str, names))).upper()


def _merge(into: dict[str, dict[str, Any]], layer: dict[str, Any], origin: str) -> Settings:
    """Add *layer* to *into* after checking it alone, so that a fault is blamed on the right *origin*; what it says."""
    try:
        alone = Settings.model_validate(layer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = first["loc"]
        named = _variable(*place[:2]) if origin == _ENVIRONMENT else f"{origin}: {'.'.join(map(str, place))}"
        what = "there is no such setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise InvalidConfig(f"{named}: {what}") from error
    for section, values in layer.items():
        into.setdefault(section, {}).update(values)
    return alone
