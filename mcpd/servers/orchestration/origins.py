# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the server of a configuration's entry comes from, as a policy asks for it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from mcpd.model import SourceType
from mcpd.servers.orchestration.payload import COMMAND, RUN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.model import JsonValue, Source
    from mcpd.store.records import InstalledServer

UNKNOWN: Final = "unknown"
"""The source of what is not installed, or not run by mcpd."""
_WORDS: Final = frozenset({RUN, "spawn"})
_STEERS: Final = re.compile(r"MCPD?_.*|DBUS_.*|LD_.*|PYTHON.*|XDG_.*|HOME|PATH", re.DOTALL)
"""Variables with which ``mcpctl`` would be another program, or find other servers."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of the server behind one entry."""

    command: str | None
    """None for an entry with a URL."""
    runs: tuple[str, ...]
    """Ids of the installed servers that it may run; empty if none."""
    sources: tuple[str, ...]
    """Where it comes from, such as ``npm:NAME``, in one or more spellings; at least one."""
    permissions: tuple[str, ...] | None
    """What its manifest asks for; None if that is not known."""


def origin_of(entry: JsonValue, servers: Mapping[str, InstalledServer]) -> Origin:
    """The origin of *entry*, where *servers* are the installed ones by id."""
    if not isinstance(entry, dict):
        return Origin(None, (), (UNKNOWN,), None)
    url, command = entry.get("url"), entry.get("command")
    if url is not None and command is None:
        text = url if isinstance(url, str) else ""
        runs = _bridged(text)
        return Origin(None, runs, _url("url", text), _permissions(servers.get(runs[0])) if runs else None)
    text = command if isinstance(command, str) else ""
    runs = _run(text, entry.get("args"))
    server = servers.get(runs[0]) if runs and _is_plain(entry) else None
    return Origin(text, runs, _sources(server), _permissions(server))


def _run(command: str, args: JsonValue) -> tuple[str, ...]:
    """The ids that ``mcpctl`` may be told to run; for another spelling than the usual one, all that may be ids."""
    if re.split(r"[/\\]", command)[-1] != COMMAND or not isinstance(args, list):
        return ()
    words = [arg for arg in args if isinstance(arg, str) and not arg.startswith("-")]
    if words and words[0] in _WORDS:
        words = words[1:]
    return tuple(dict.fromkeys(words))


def _is_plain(entry: Mapping[str, JsonValue]) -> bool:
    """Whether the entry is ``mcpctl run ID`` and nothing makes that run something else."""
    args, env = entry.get("args"), entry.get("env") or {}
    return (
        entry.get("command") == COMMAND
        and isinstance(args, list)
        and len(args) == 2
        and args[0] == RUN
        and isinstance(env, dict)
        and not any(_STEERS.fullmatch(name) for name in env)
    )


def _bridged(url: str) -> tuple[str, ...]:
    """The id of the server that *url* names, if it is one of a bridge on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ()
    path = unquote(parts.path)
    if not _is_loopback(host) or not path.startswith("/mcp/"):
        return ()
    name = path.removeprefix("/mcp/").removesuffix("/").removesuffix("/sse")
    return (name,) if name and "/" not in name else ()


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _permissions(server: InstalledServer | None) -> tuple[str, ...] | None:
    return tuple(server.manifest.all_permissions) if server is not None and server.manifest is not None else None


def _sources(server: InstalledServer | None) -> tuple[str, ...]:
    if server is None or server.manifest is None:
        return (UNKNOWN,)
    found: list[str] = []
    if server.script is not None:
        found.append(f"script:{server.id}")
    if server.layer == "vendor":
        found.append(f"vendor:{server.id}")
    if found:
        return tuple(found)
    remote = server.manifest.remote
    if remote is not None:
        return _url("url", remote.address)
    return _source(server.manifest.source) or (UNKNOWN,)


def _source(source: Source | None) -> tuple[str, ...]:
    if source is None:
        return ()
    place = source.url or source.path
    match source.type:
        case SourceType.NPM if source.package:
            return (f"npm:{source.package}",)
        case SourceType.PYPI if source.package:
            return tuple(dict.fromkeys((f"pypi:{source.package}", f"pypi:{_normalised(source.package)}")))
        case SourceType.GIT | SourceType.ARCHIVE | SourceType.MCPB if place:
            return _url(str(source.type), place)
        case SourceType.LOCAL if source.path:
            return (f"local:{source.path}",)
        case _:
            return ()


def _normalised(package: str) -> str:
    """As PyPI compares names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _url(kind: str, url: str) -> tuple[str, ...]:
    """*url* as it is written, and with scheme and host in lower case, which mean the same."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return (f"{kind}:{url}",)
    same = urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path, parts.query, parts.fragment))
    return tuple(dict.fromkeys((f"{kind}:{url}", f"{kind}:{same}")))
