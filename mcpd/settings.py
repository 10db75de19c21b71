# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd.toml`` (mcpd.conf(5)): the administrator's settings, then the user's, then the environment.

The user instance reads ``/etc/mcp/mcpd.toml`` and then ``~/.config/mcp/mcpd.toml``; a later file wins key by
key. A variable ``MCPD_<SECTION>_<KEY>`` (e.g. ``MCPD_INSTALL_KEEP_GENERATIONS=5``) wins over both.
"""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.errors import InvalidConfig, from_oserror

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Seconds = Annotated[float, Field(gt=0, le=7200)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RuntimeSettings(_Section):
    """How servers are run."""

    sandbox: Literal["on", "off"] = "on"
    """``off`` runs servers without bubblewrap; every listing then says so."""
    launcher: Literal["auto", "plain", "systemd-user"] = "auto"
    max_sessions: Annotated[int, Field(ge=1, le=100_000)] = 512
    """Running servers at once, over all callers."""


class InstallSettings(_Section):
    """How servers are installed."""

    keep_generations: Annotated[int, Field(ge=1, le=100)] = 3
    step_timeout: Annotated[float, Field(gt=0)] = 900
    """Seconds that one external command (git, pip, npm) may take."""
    health_timeout: Seconds = 60
    """Seconds in which a fresh server must answer ``tools/list``."""


class CatalogSettings(_Section):
    """How registries are read."""

    timeout: Seconds = 30
    max_bytes: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024
    """Size up to which a registry file is read."""


class BridgeSettings(_Section):
    """The HTTP front."""

    listen: str = ""
    """``HOST:PORT`` on loopback, port 0 for a free one; empty for the unix socket only."""
    idle_timeout: Seconds = 300
    call_timeout: Seconds = 30
    max_body: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    max_line: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Bytes of one message from a server."""
    max_sessions: Annotated[int, Field(ge=1)] = 256
    """Sessions of one caller at once."""
    allowed_origins: tuple[str, ...] = ()


class Settings(_Section):
    """All of ``mcpd.toml``."""

    runtime: RuntimeSettings = RuntimeSettings()
    install: InstallSettings = InstallSettings()
    catalog: CatalogSettings = CatalogSettings()
    bridge: BridgeSettings = BridgeSettings()


def load(files: Iterable[Path], environ: Mapping[str, str] | None = None) -> Settings:
    """Read *files* in order of rising precedence (a missing one is empty), then *environ*.

    Raises :class:`~mcpd.errors.InvalidConfig` that names the file or variable and the key.
    """
    merged: dict[str, dict[str, Any]] = {}
    for file in files:
        _merge(merged, _read(file), str(file))
    _merge(merged, _from_environment(os.environ if environ is None else environ), "environment")
    return Settings.model_validate(merged)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{file}: {error}") from error
    except OSError as error:
        raise from_oserror(error, f"reading {file}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, dict[str, str]] = {}
    for section, field in Settings.model_fields.items():
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            continue
        for key in field.annotation.model_fields:
            value = environ.get(f"MCPD_{section}_{key}".upper())
            if value is not None:
                found.setdefault(section, {})[key] = value
    return found


def _merge(into: dict[str, dict[str, Any]], layer: dict[str, Any], origin: str) -> None:
    """Add *layer* to *into* after checking it alone, so that a fault is blamed on the right *origin*."""
    try:
        Settings.model_validate(layer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InvalidConfig(f"{origin}: {key}: {first['msg']}") from error
    for section, values in layer.items():
        into.setdefault(section, {}).update(values)
