# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shell completion with argcomplete, including the names of servers, sessions and other objects.

The shell starts ``mcpctl`` itself with ``_ARGCOMPLETE`` set. Nothing here may print, fail or wait for long. If mcpd
does not answer, ids are not completed.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.cli.output import clean, shortened
from mcpd.cli.parser import is_system
from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from mcpd.bus.client import Client

TIMEOUT: Final = 2.0
"""Seconds for mcpd to answer; starting it takes about one second."""
_WIDTH: Final = 60

Candidates: TypeAlias = "Mapping[str, str]"
"""The possible words, each with its description."""


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the candidates for the shell and exit. Without argcomplete, return."""
    try:
        import argcomplete  # optional
    except ImportError:
        return
    for command, action in _arguments(parser, ()):
        if local := _LOCAL.get((command, action.dest)) or _LOCAL.get(("", action.dest)):
            vars(action)["completer"] = local
        elif offers := _OFFERS.get((command, action.dest)) or _OFFERS.get(("", action.dest)):
            vars(action)["completer"] = _Completer(offers)
    argcomplete.autocomplete(parser, always_complete_options=False)


class _Completer:
    """A completer for argcomplete that asks mcpd."""

    def __init__(self, offers: Callable[[Client, argparse.Namespace, str], Awaitable[Candidates]]) -> None:
        self._offers = offers

    def __call__(self, prefix: str, parsed_args: argparse.Namespace, **_: object) -> Candidates:
        import asyncio  # not needed for commands and options

        with suppress(McpdError, OSError, TimeoutError):
            return _shown(asyncio.run(self._ask(parsed_args, prefix)))
        return {}

    async def _ask(self, args: argparse.Namespace, prefix: str) -> Candidates:
        import asyncio

        from mcpd.bus.client import connect

        async with asyncio.timeout(TIMEOUT), connect(is_system(args)) as bus:
            return await self._offers(bus, args, prefix)


def _shown(found: Candidates) -> Candidates:
    return {value: shortened(clean(text), _WIDTH) for value, text in found.items() if value == clean(value)}


def _arguments(parser: argparse.ArgumentParser, command: tuple[str, ...]) -> Iterator[tuple[str, argparse.Action]]:
    """Yield every argument with its command, e.g. ``config get``. argparse has no public way to list them."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, inner in action.choices.items():
                yield from _arguments(inner, (*command, name))
        else:
            yield " ".join(command), action


async def _servers(bus: Client, wanted: Mapping[str, object]) -> list[dict[str, Any]]:
    servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [wanted])
    return servers


async def _installed(bus: Client, _args: argparse.Namespace, _prefix: str) -> Candidates:
    return {server["id"]: server.get("summary") or server.get("name", "") for server in await _servers(bus, {})}


async def _updatable(bus: Client, _args: argparse.Namespace, _prefix: str) -> Candidates:
    servers = await _servers(bus, {"state": "updatable"})
    found = {server["id"]: server.get("available-version") for server in servers}
    return {server_id: f"to {version}" if version else "" for server_id, version in found.items()}


async def _pinned(bus: Client, args: argparse.Namespace, _prefix: str) -> Candidates:
    """Return the servers that ``mcpctl pin`` would change."""
    servers = await _servers(bus, {"pinned": bool(getattr(args, "remove", False))})
    return {server["id"]: server.get("version", "") for server in servers}


async def _pending(bus: Client, _args: argparse.Namespace, _prefix: str) -> Candidates:
    return {
        server["id"]: f"to {server['pending-version']}"
        for server in await _servers(bus, {})
        if server.get("pending-version")
    }


async def _generations(bus: Client, args: argparse.Namespace, _prefix: str) -> Candidates:
    """Return the earlier generations of the server on the command line."""
    return {
        str(generation["generation"]): generation.get("version", "")
        for generation in await bus.manager.call("GetHistory", "s", [args.id])
        if generation.get("state") == "previous"
    }


async def _available(bus: Client, _args: argparse.Namespace, prefix: str) -> Candidates:
    if "/" in prefix or prefix.startswith("."):
        return _files(prefix)
    from mcpd.bus.client import variant

    words = "".join(char if char.isalnum() else " " for char in prefix).split()
    query = {"text": " ".join(words), "limit": variant(500, "u")}
    found: list[dict[str, Any]]
    found, _ = await bus.manager.call("ListAvailable", "a{sv}s", [query, ""])
    return {entry["id"]: entry.get("summary", "") for entry in found}


def _files(prefix: str) -> Candidates:
    directory = prefix[: prefix.rfind("/") + 1]
    return {f"{directory}{path.name}{'/' * path.is_dir()}": "" for path in Path(directory or ".").iterdir()}


async def _versions(bus: Client, args: argparse.Namespace, _prefix: str) -> Candidates:
    """Return the offered version of the server on the command line."""
    options = {"source": args.source} if args.source else {}
    offered = await bus.manager.call("GetAvailable", "sa{sv}", [args.target, options])
    version = offered.get("available-version") or offered.get("version", "")
    return {version: ""} if version else {}


async def _known(bus: Client, args: argparse.Namespace, prefix: str) -> Candidates:
    return {**await _available(bus, args, prefix), **await _installed(bus, args, prefix)}


async def _sessions(bus: Client, _args: argparse.Namespace, _prefix: str) -> Candidates:
    found: dict[str, str] = {}
    for session in await bus.manager.call("ListSessions"):
        number = session["path"].rpartition("/")[2]
        found[number] = session["server-id"]
        found[session["server-id"]] = "all its sessions"
    return found


async def _sources(bus: Client, _args: argparse.Namespace, _prefix: str) -> Candidates:
    sources = await bus.manager.call("ListSources")
    return {source["url"]: source.get("state", "") for source in sources if source["url"]}


async def _own_sources(bus: Client, _args: argparse.Namespace, _prefix: str) -> Candidates:
    from mcpd.cli.commands.sources import name_of

    return {
        name: source.get("state", "")
        for source in await bus.manager.call("ListSources")
        for name in (source["url"], name_of(source))
        if name and not source["read-only"]
    }


async def _trusted_keys(
    bus: Client, _args: argparse.Namespace, _prefix: str, *, with_read_only: bool = True
) -> Candidates:
    return {
        key["name"]: key.get("fingerprint", "")
        for key in await bus.manager.call("ListKeys")
        if with_read_only or not key["read-only"]
    }


async def _keys(bus: Client, args: argparse.Namespace, _prefix: str, *, sensitive: bool) -> Candidates:
    """Return the properties of the server on the command line."""
    server, _path = await bus.manager.call("GetServer", "s", [args.id])
    return {
        item["key"]: item.get("label") or item.get("description") or ""
        for item in server.get("configurable-properties", ())
        if bool(item.get("sensitive")) == sensitive
    }


async def _assignments(bus: Client, args: argparse.Namespace, prefix: str) -> Candidates:
    return {f"{key}=": label for key, label in (await _keys(bus, args, prefix, sensitive=False)).items()}


async def _nothing(_bus: Client, _args: argparse.Namespace, _prefix: str) -> Candidates:
    return {}


def _own_scripts(*, parsed_args: argparse.Namespace, **_: object) -> Candidates:
    """Return the scripts that ``mcpctl script remove`` can remove, read from disk, like that command does."""
    from mcpd.paths import Scope, from_environment
    from mcpd.scripts.inspection import SUFFIXES

    def is_script(path: Path) -> bool:
        return path.suffix in SUFFIXES and path.name[0] not in "._"

    layout = from_environment().layout(Scope.SYSTEM if is_system(parsed_args) else Scope.USER)
    with suppress(OSError):
        return _shown({path.stem: path.name for path in layout.scripts.iterdir() if is_script(path)})
    return {}


def _clients(*, parsed_args: argparse.Namespace, **_: object) -> Candidates:
    """Return the known MCP clients."""
    from mcpd.clients.families import Families
    from mcpd.paths import Scope, from_environment

    families = Families.of(from_environment(), Scope.SYSTEM if is_system(parsed_args) else Scope.USER)
    with suppress(McpdError, OSError):
        return _shown({family.id: family.name for family in families.all()})
    return {}


def _profiles(*, parsed_args: argparse.Namespace, **_: object) -> Candidates:
    """Return the profiles of the clients on the command line, or of all clients if none is given."""
    from mcpd.clients.families import Families
    from mcpd.clients.profiles import Profiles
    from mcpd.paths import Scope, from_environment

    paths, scope = from_environment(), Scope.SYSTEM if is_system(parsed_args) else Scope.USER
    named = {getattr(parsed_args, "client", None), *(getattr(parsed_args, "clients", None) or ())} - {None}
    with suppress(McpdError, OSError):
        profiles = Profiles.of(paths, scope)
        return _shown(
            {
                profile: profiles.get(family, profile).name
                for family in Families.of(paths, scope).all()
                if family.id in named or not named
                for profile in profiles.available(family)
            }
        )
    return {}


def _ensemble_directories(args: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """Yield the directories of ensembles and of their artifacts: of the projects, the user and the package."""
    from mcpd.cli.ensemble_runtime import configured
    from mcpd.paths import Scope, from_environment
    from mcpd.servers.ensembles.directories import nearest_project, shipped, user_directories
    from mcpd.servers.ensembles.settings import DIRECTORY

    paths = from_environment()
    projects = [nearest_project(Path(getattr(args, "project", None) or "."))]
    with suppress(McpdError, OSError):
        projects += configured(paths, Scope.SYSTEM if is_system(args) else Scope.USER)
    for project in projects:
        if project is not None:
            yield project / DIRECTORY / "ensembles", project / DIRECTORY / "artifacts"
    user, data = user_directories(paths)
    yield user / "ensembles", data / "artifacts"
    yield shipped(paths), data / "artifacts"


def _ensembles(*, parsed_args: argparse.Namespace, **_: object) -> Candidates:
    """Return the ensembles, named after their files, because reading YAML is slow and needs libraries."""
    with suppress(McpdError, OSError):
        return _shown(
            {
                file.stem: str(file)
                for ensembles, _ in _ensemble_directories(parsed_args)
                for file in ensembles.glob("*.y*ml")
            }
        )
    return {}


def _runs(prefix: str, *, parsed_args: argparse.Namespace, **_: object) -> Candidates:
    """Return the ensembles that were run, or after ``NAME/`` the runs of that ensemble."""
    name, slash, _rest = prefix.partition("/")
    found = {}
    with suppress(McpdError, OSError):
        for artifacts in dict.fromkeys(artifacts for _, artifacts in _ensemble_directories(parsed_args)):
            with suppress(OSError):
                for path in (artifacts / name if slash else artifacts).iterdir():
                    found[f"{name}/{path.name}" if slash else f"{path.name}/"] = ""
    return _shown(found)


_LOCAL: Final = {
    ("script remove", "id"): _own_scripts,
    ("", "client"): _clients,
    ("", "clients"): _clients,
    ("", "profile"): _profiles,
    ("", "ensemble"): _ensembles,
    ("", "ensembles"): _ensembles,
    ("", "runs"): _runs,
    ("", "run_id"): _runs,
}
"""Completers that do not need mcpd, by command and argument; an empty command stands for every command."""
_OFFERS: Final[dict[tuple[str, str], Callable[[Client, argparse.Namespace, str], Awaitable[Candidates]]]] = {
    ("", "id"): _installed,
    ("", "session"): _sessions,
    ("show", "id"): _known,
    ("install", "target"): _available,
    ("install", "id"): _nothing,
    ("install", "at_version"): _versions,
    ("search", "source"): _sources,
    ("show", "source"): _sources,
    ("install", "source"): _sources,
    ("update", "id"): _updatable,
    ("rollback", "to"): _generations,
    ("pin", "id"): _pinned,
    ("approve", "id"): _pending,
    ("source add", "key"): _trusted_keys,
    ("source remove", "url"): _own_sources,
    ("key remove", "name"): partial(_trusted_keys, with_read_only=False),
    ("config get", "key"): partial(_keys, sensitive=False),
    ("config set", "pairs"): _assignments,
    ("config unset", "keys"): partial(_keys, sensitive=False),
    ("secret set", "key"): partial(_keys, sensitive=True),
    ("secret unset", "key"): partial(_keys, sensitive=True),
}
"""Completers that ask mcpd, in the same form as :data:`_LOCAL`."""
