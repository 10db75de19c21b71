# SPDX-License-Identifier: LGPL-2.1-or-later
"""``llm-orc mcp status``: whether the server can work here, and with which ensembles and providers."""

from __future__ import annotations

import os
import socket
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from mcpd import __version__
from mcpd.errors import InvalidConfig
from mcpd.paths import CONFINED_VARIABLE
from mcpd.servers.ensembles.directories import SERVER
from mcpd.servers.ensembles.format.models import PROVIDERS
from mcpd.servers.ensembles.library.library import Library
from mcpd.servers.ensembles.providers.keys import DEFAULTS, Base, Keys
from mcpd.servers.others import SOCKET

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.servers.ensembles.format.models import Profile
    from mcpd.servers.ensembles.settings import Settings

_PATIENCE = 2.0
_BY_HAND = (
    "run by hand, this is what llm-orc finds with the arguments and the environment given here; projects, keys and"
    " permissions that mcpctl has configured count where mcpd runs it"
)


def has_key(keys: Mapping[str, str], profile: Profile) -> bool:
    """Return True if there is a key for the API of *profile*, or it needs none: the client's model and the mock."""
    if profile.provider not in DEFAULTS:
        return False
    known = _keys(keys)
    # A fault in a base URL is reported where the profile is used.
    with suppress(InvalidConfig):
        base = Base.parse(profile.base_url, "base_url") if profile.base_url else known.base(DEFAULTS[profile.provider])
        return known.key(base) is not None
    return False


def health(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the status of a server started here: ``ok``, or ``degraded`` with the reasons in ``problems``."""
    library = Library(settings)
    entries, profiles = library.entries(), library.profiles()
    problems = [settings.problem] if settings.problem else []
    problems += [each.message for each in _keys(settings.keys).faults]
    problems += [each.problem for each in entries if each.problem]
    problems += [each.problem for each in profiles if each.problem]
    directories = {
        **{f"project {path.name}": _directory(path) for path in settings.projects},
        "user": _directory(settings.user),
        "data": _directory(settings.data),
        "shipped": _directory(settings.shipped),
    }
    problems += [
        f"projects: {each['path']} is no directory" for name, each in directories.items() if _is_missing(name, each)
    ]
    return {
        "server": SERVER,
        "version": __version__,
        "status": "degraded" if problems else "ok",
        "directories": directories,
        "ensembles": {
            "total": sum(not each.shadowed for each in entries),
            "shadowed": sum(each.shadowed for each in entries),
            "with_problems": sum(each.problem is not None for each in entries),
        },
        "profiles": {"total": len(profiles), "with_problems": sum(each.problem is not None for each in profiles)},
        "providers": _providers(settings),
        "tools_of_other_servers": _bridge(environ),
        "notes": [] if environ.get(CONFINED_VARIABLE) == "1" else [_BY_HAND],
        "problems": problems,
    }


def as_text(found: Mapping[str, Any]) -> str:
    """Return *found* as text for a terminal."""
    directories = [
        f"  {name}: {each['path']}{'' if each['exists'] else ' (not there)'}"
        for name, each in found["directories"].items()
    ]
    ensembles, profiles = found["ensembles"], found["profiles"]
    providers = [f"  {name}: {_word(each)}" for name, each in found["providers"].items()]
    return "\n".join(
        [
            f"{found['server']} {found['version']}: {found['status']}",
            "directories:",
            *directories,
            f"ensembles: {ensembles['total']}, {ensembles['with_problems']} with problems",
            f"profiles: {profiles['total']}, {profiles['with_problems']} with problems",
            "providers:",
            *providers,
            f"tools of other servers: {found['tools_of_other_servers']}",
            *(f"note: {each}" for each in found["notes"]),
            *(["problems:", *(f"  {each}" for each in found["problems"])] if found["problems"] else []),
        ]
    )


def _word(provider: Mapping[str, Any]) -> str:
    if not provider["base_url"]:
        return "needs no key"
    return f"{provider['base_url']}, {'with a key' if provider['has_key'] else 'without a key'}"


def _directory(path: Path) -> dict[str, Any]:
    # Until Python 3.14, pathlib raises for inaccessible directories.
    return {"path": str(path), "exists": os.path.isdir(path), "writable": os.access(path, os.W_OK)}  # noqa: PTH112


def _is_missing(name: str, directory: Mapping[str, Any]) -> bool:
    return name.startswith("project ") and not directory["exists"]


def _keys(given: Mapping[str, str]) -> Keys:
    return given if isinstance(given, Keys) else Keys(given)


def _providers(settings: Settings) -> dict[str, Any]:
    keys = _keys(settings.keys)
    found = {}
    # The other names are aliases of the same APIs.
    for name in dict.fromkeys([*PROVIDERS.values(), "ollama"]):
        base = keys.base(DEFAULTS[name]) if name in DEFAULTS else None
        found[name] = {
            "base_url": str(base) if base else None,
            "has_key": base is not None and keys.key(base) is not None,
        }
    return found


def _bridge(environ: Mapping[str, str]) -> str:
    """Return whether the bridge, which forwards calls to other servers, can be reached: ``yes``, or why not."""
    path = environ.get(SOCKET)
    if not path:
        return "no: agents can use them only where mcpd runs llm-orc, and permits it to call other servers"
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(path)
        except OSError as error:
            return f"no: {path}: {error.strerror or error}"
    return "yes"
