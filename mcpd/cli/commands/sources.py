# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl source``: list, add and remove registries."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.names import ROOT
from mcpd.cli.jobs import run_job
from mcpd.cli.output import clean, counted, note, table, warn, write, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import IntegrityMismatch, InvalidArgument, SourceUnavailable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from mcpd.bus.client import Client
    from mcpd.bus.connection import Signal

_UNREAD: Final[Mapping[str, str]] = {
    "offline": "could not be read", "failed": "could not be read", "partly": "could be read only in part",
    "refused": "has new content that was refused",
}  # fmt: skip
"""Warnings by the state of a registry whose entries in the catalog are outdated."""
_UNUSED: Final = frozenset({"untrusted", "invalid"})
_DESCRIBED: Final = ".toml"
_MAX_REPORTED: Final = 100
"""Maximum number of faults of one registry that mcpd reports; one more item stands for the rest."""


async def read_registries(bus: Client, member: str) -> bool:
    """Read the registries in a job of the method *member*; warn about unread ones and return whether all were read.

    Raises :class:`~mcpd.errors.SourceUnavailable` if none could be read, and the errors of the job.
    """
    failure: Exception | None = None
    try:
        await run_job(bus, member, "a{sv}", [{}])
    except (SourceUnavailable, IntegrityMismatch) as error:
        failure = error
    has_warned = warn_of_registries(await bus.manager.call("ListSources"))
    if failure is not None and has_warned:
        raise SourceUnavailable("none of the registries could be read") from failure
    if failure is not None:
        raise failure
    return not has_warned


async def registry_of(bus: Client, server_id: str) -> str | None:
    """Return the registry that *server_id* was installed from; empty if user-supplied, ``None`` if unknown."""
    generations: list[dict[str, Any]] = await bus.manager.call("GetHistory", "s", [server_id])
    return next((str(known.get("registry", "")) for known in generations if known.get("state") == "active"), None)


async def warn_of_registry(bus: Client, origin: str = "") -> None:
    """Warn about the registry *origin* if its entries are outdated; about all such registries if *origin* is empty."""
    sources: list[dict[str, Any]] = await bus.manager.call("ListSources")
    warn_of_registries(at_url(sources, origin) if origin else sources)


def at_url(sources: Iterable[dict[str, Any]], url: str) -> list[dict[str, Any]]:
    """Return the registries in *sources* (from ``ListSources``) with the URL *url*, in any spelling."""
    from mcpd.catalog.registries import key_of  # slow to import

    wanted = key_of(url)
    return [source for source in sources if key_of(str(source.get("url", ""))) == wanted]


def warn_of_registries(sources: Iterable[Mapping[str, Any]]) -> bool:
    """Warn about each of *sources* (from ``ListSources``) with outdated or no entries; return whether there are any."""
    found = [line for line in map(_warning, sources) if line]
    for line in found:
        warn(line)
    return bool(found)


def name_of(source: Mapping[str, Any]) -> str:
    """Return the name of a registry that has its own settings file; empty for a line of a list file."""
    directory, _, file = str(source.get("file") or "").rpartition("/")
    return file.removesuffix(_DESCRIBED) if directory and file.endswith(_DESCRIBED) else ""


def count_faults(source: Mapping[str, Any]) -> str:
    """Return the number of faults in a registry as text: ``3 errors in its entries``; empty if there are none."""
    number = len(source.get("faults") or ())
    many = f"more than {_MAX_REPORTED} errors" if number > _MAX_REPORTED else counted(number, "error")
    return f"{many} in its entries" if number else ""


def shown_faults(source: Mapping[str, Any], most: int, command: str) -> list[str]:
    """Return the first *most* faults in the entries of *source*, and a reference to *command* if there are more."""
    faults = [str(fault).removeprefix(f"{source.get('url')}: ") for fault in source.get("faults") or ()]
    return faults if len(faults) <= most else [*faults[:most], f"and others, see '{command}'"]


def _warning(source: Mapping[str, Any]) -> str:
    """Return the warning about a registry with outdated or no entries; else empty."""
    state = source.get("state")
    name = source.get("url") or source.get("file", "")
    reason = str(source.get("problem") or "").removeprefix(f"{name}: ")
    problem = f" ({reason})" if reason else ""
    if unread := _UNREAD.get(str(state)):
        old = _age(source)
        known = f"its entries are {old} old" if old else "none of its entries are known"
        return f"{name} {unread}{problem}; {known}"
    if state in _UNUSED:
        return f"{name} is {state}{problem}; none of its entries are shown"
    return f"{name} is still being read; its entries are shown later" if state == "new" else ""


def _age(source: Mapping[str, Any]) -> str:
    return age(source.get("updated", 0), time.time())


SHIPPED: Final = Path("/usr/share/mcp/registry.json")
"""The registry that comes with mcpd."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_READ_TIMEOUT: Final = 60.0
"""Seconds to wait until a new registry is read."""
_FAULTS: Final = 20
"""Maximum number of faults listed for one registry, which may have thousands."""
_UNSIGNED: Final = {"required": "no, but required", "warn": "no", "off": "not required"}


async def list_sources(args: argparse.Namespace) -> int:
    """``mcpctl source list``, with the faults in the entries of each registry.

    JSON: ``{"sources": […]}`` with the keys of ``ListSources``.
    """
    async with open_bus(args) as bus:
        sources: list[dict[str, Any]] = await bus.manager.call("ListSources")
    if args.json:
        write_json({"sources": sources})
    elif sources:
        now = time.time()
        table(
            ("URL", "NAME", "TYPE", "SCOPE", "STATE", "AGE", "ENTRIES", "SIGNED", "PROBLEM"),
            [
                [
                    _place(source),
                    name_of(source),
                    source.get("type", ""),
                    source.get("scope", ""),
                    source.get("state", ""),
                    age(source.get("updated", 0), now),
                    source.get("entries", ""),
                    source.get("signed-by") or _UNSIGNED.get(source.get("signature", ""), ""),
                    _problem(source),
                ]
                for source in sources
            ],
        )
        _write_faults(sources)
    else:
        note("There are no registries. 'mcpctl source add URL' adds one.")
        if SHIPPED.exists():
            note(f"A few servers to start with: mcpctl source add file://{SHIPPED}")
    return 0


async def add_source(args: argparse.Namespace) -> int:
    """``mcpctl source add``."""
    _refuse_path(args.url)
    options = {key: value for key in ("name", "type", "signature", "key") if (value := getattr(args, key))}
    async with open_bus(args, changing=True) as bus, bus.signals(path=ROOT, member="CatalogChanged") as changes:
        await bus.manager.call("AddSource", "sa{sv}", [args.url, options])
        sources = await _wait_until_read(bus, args.url, changes)
        keys = await bus.manager.call("ListKeys") if args.key else []
    if any(source.get("entries") for source in sources):
        number = counted(sum(int(source["entries"]) for source in sources), "server")
        write(f"Added {clean(args.url)}, which has {number}.")
    else:
        write(f"Added {clean(args.url)}.")
    warn_of_registries(sources)
    if args.key and args.key not in {key.get("name") for key in keys}:
        warn(f"there is no trusted key {args.key!r} yet; add it with: mcpctl key add FILE --name {args.key}")
    return 0


async def _wait_until_read(bus: Client, url: str, changes: asyncio.Queue[Signal]) -> list[dict[str, Any]]:
    """Wait until mcpd has read the new registry at *url*; return its item of ``ListSources``, if there is one."""
    found: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_READ_TIMEOUT):
            while True:
                found = at_url(await bus.manager.call("ListSources"), url)
                if all(source.get("state") != "new" for source in found):
                    break
                await changes.get()
    return found


def _refuse_path(url: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument`, with the URL to use, if *url* is a path."""
    if ":" not in url.partition("/")[0] and (path := Path(url).expanduser()).exists():
        raise InvalidArgument(f"{url!r} is a path, not a URL; use: mcpctl source add {path.resolve().as_uri()}")


async def remove_source(args: argparse.Namespace) -> int:
    """``mcpctl source remove``."""
    async with open_bus(args, changing=True) as bus:
        url = await _url_of(bus, args.url)
        await bus.manager.call("RemoveSource", "sa{sv}", [url, {}])
    write(f"Removed {clean(url)}.")
    return 0


async def _url_of(bus: Client, name: str) -> str:
    """Return the URL of the registry *name*; *name* itself if it is a URL, or unknown.

    Raises :class:`~mcpd.errors.InvalidArgument` if the name is ambiguous, or its settings file has no URL.
    """
    if ":" in name:
        return name
    named = [source for source in await bus.manager.call("ListSources") if name_of(source) == name]
    if len(named) > 1:
        raise InvalidArgument(f"{len(named)} registries are named {name!r}; specify a URL")
    if named and not named[0].get("url"):
        raise InvalidArgument(f"{named[0].get('file', name)} contains no URL; fix the file, or remove it")
    return str(named[0]["url"]) if named else name


def age(updated: float, now: float) -> str:
    """Return the time from *updated* to *now*, both Unix times, as ``5 min``; empty if *updated* is 0."""
    if not updated:
        return ""
    passed = max(now - updated, 0)
    size, unit = next(((size, unit) for size, unit in _UNITS if passed >= size), (1, "s"))
    return f"{passed // size:.0f} {unit}"


def _place(source: Mapping[str, Any]) -> str:
    return str(source.get("url") or source.get("file", ""))


def _problem(source: Mapping[str, Any]) -> str:
    """Return the problem of a registry, and the number of faults in its entries."""
    return "; ".join(filter(None, (str(source.get("problem") or ""), count_faults(source))))


def _write_faults(sources: Sequence[Mapping[str, Any]]) -> None:
    """Print the faults in the entries of each registry, below the table."""
    for source in sources:
        if shown := shown_faults(source, _FAULTS, "mcpctl source list --json"):
            write(f"\nIn {clean(_place(source))}:")
            for fault in shown:
                write(f"  {clean(fault)}")
