# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl source``: the registries that servers are installed from."""

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
    "offline": "could not be read", "failed": "could not be read", "partly": "could be read in part only",
    "refused": "has something now that is not taken",
}  # fmt: skip
"""What is said of a registry by its state, where what is known of it is old."""
_UNUSED: Final = frozenset({"untrusted", "invalid"})
_DESCRIBED: Final = ".toml"
_TOLD: Final = 100
"""Faults of a source that mcpd tells; one line more says how many more there are."""


async def read_registries(bus: Client, member: str) -> bool:
    """Read the registries by *member*, which starts a job; says of which there is no news. Whether there is of all.

    Raises :class:`~mcpd.errors.SourceUnavailable` if none could be read, and the errors of the job.
    """
    failure: Exception | None = None
    try:
        await run_job(bus, member, "a{sv}", [{}])
    except (SourceUnavailable, IntegrityMismatch) as error:
        failure = error
    told = warn_of(await bus.manager.call("ListSources"))
    if failure is not None and told:
        raise SourceUnavailable("none of the registries could be read") from failure
    if failure is not None:
        raise failure
    return not told


async def registry_of(bus: Client, server_id: str) -> str | None:
    """The registry that the installed *server_id* came from; empty if a caller brought it, ``None`` if nobody knows."""
    generations: list[dict[str, Any]] = await bus.manager.call("GetHistory", "s", [server_id])
    return next((str(known.get("registry", "")) for known in generations if known.get("state") == "active"), None)


async def warn_of_origin(bus: Client, origin: str = "") -> None:
    """Say what is wrong with the registry *origin*, or with any if it is empty, as what is sought may be there."""
    sources: list[dict[str, Any]] = await bus.manager.call("ListSources")
    warn_of(at_url(sources, origin) if origin else sources)


def at_url(sources: Iterable[dict[str, Any]], url: str) -> list[dict[str, Any]]:
    """Those of *sources*, as ListSources gives them, whose URL is *url* or another spelling of it."""
    from mcpd.catalog.registries import key_of  # noqa: PLC0415 - with all models, which few commands need

    wanted = key_of(url)
    return [source for source in sources if key_of(str(source.get("url", ""))) == wanted]


def warn_of(sources: Iterable[Mapping[str, Any]]) -> bool:
    """Say of which *sources*, as ListSources gives them, what is known is old, or nothing is known; whether of any."""
    found = [line for line in map(_line, sources) if line]
    for line in found:
        warn(line)
    return bool(found)


def name_of(source: Mapping[str, Any]) -> str:
    """What the file that describes *source* is called; empty for a line of a list."""
    directory, _, file = str(source.get("file") or "").rpartition("/")
    return file.removesuffix(_DESCRIBED) if directory and file.endswith(_DESCRIBED) else ""


def of_faults(source: Mapping[str, Any]) -> str:
    """How many faults the entries of *source* have; empty if none."""
    number = len(source.get("faults") or ())
    many = f"more than {_TOLD} faults" if number > _TOLD else counted(number, "fault")
    return f"{many} in its entries" if number else ""


def faults_shown(source: Mapping[str, Any], most: int, command: str) -> list[str]:
    """What is wrong with the entries of *source*; of more than *most* the first, and the *command* that tells more."""
    faults = [str(fault).removeprefix(f"{source.get('url')}: ") for fault in source.get("faults") or ()]
    return faults if len(faults) <= most else [*faults[:most], f"and others, which '{command}' tells"]


def _line(source: Mapping[str, Any]) -> str:
    """What is to be said of *source*; empty if nothing is."""
    state = source.get("state")
    name = source.get("url") or source.get("file", "")
    said = str(source.get("problem") or "").removeprefix(f"{name}: ")
    problem = f" ({said})" if said else ""
    if unread := _UNREAD.get(str(state)):
        old = _age(source)
        known = f"what is shown of it is {old} old" if old else "nothing of it is known"
        return f"{name} {unread}{problem}; {known}"
    if state in _UNUSED:
        return f"{name} is {state}{problem}; nothing of it is shown"
    return f"{name} is still being read; what it has is shown later" if state == "new" else ""


def _age(source: Mapping[str, Any]) -> str:
    import time  # noqa: PLC0415 - with what follows, for the few that have a problem

    return age(source.get("updated", 0), time.time())


SHIPPED: Final = Path("/usr/share/mcp/registry.json")
"""The registry that comes with mcpd."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_READING: Final = 60.0
"""Seconds that a registry which was added may take to be read, until it is said that it still is."""
_FAULTS: Final = 20
"""Faults of a source that are named, of which somebody may have made thousands."""
_UNSIGNED: Final = {"required": "no, but has to be", "warn": "no", "off": "not asked for"}


async def list_sources(args: argparse.Namespace) -> int:
    """``mcpctl source list``, and what is wrong with the entries of each source.

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
            note(f"{SHIPPED} has a few servers to begin with: mcpctl source add file://{SHIPPED}")
    return 0


async def add_source(args: argparse.Namespace) -> int:
    """``mcpctl source add``."""
    _refuse_path(args.url)
    options = {key: value for key in ("name", "type", "signature", "key") if (value := getattr(args, key))}
    async with open_bus(args, changing=True) as bus, bus.signals(path=ROOT, member="CatalogChanged") as changes:
        await bus.manager.call("AddSource", "sa{sv}", [args.url, options])
        sources = await _read(bus, args.url, changes)
        keys = await bus.manager.call("ListKeys") if args.key else []
    if any(source.get("entries") for source in sources):
        number = counted(sum(int(source["entries"]) for source in sources), "server")
        write(f"Added {clean(args.url)}, which has {number}.")
    else:
        write(f"Added {clean(args.url)}.")
    warn_of(sources)
    if args.key and args.key not in {key.get("name") for key in keys}:
        warn(f"there is no key {args.key!r} yet; 'mcpctl key add FILE --name {args.key}' trusts it")
    return 0


async def _read(bus: Client, url: str, changes: asyncio.Queue[Signal]) -> list[dict[str, Any]]:
    """Wait until mcpd has read the registry at *url*, which was added; it as ListSources has it, if it is there."""
    found: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_READING):
            while True:
                found = at_url(await bus.manager.call("ListSources"), url)
                if all(source.get("state") != "new" for source in found):
                    break
                await changes.get()
    return found


def _refuse_path(url: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` with the URL of the file, if *url* is a path."""
    if ":" not in url.partition("/")[0] and (path := Path(url).expanduser()).exists():
        raise InvalidArgument(f"{url!r} is a path; a source is a URL: mcpctl source add {path.resolve().as_uri()}")


async def remove_source(args: argparse.Namespace) -> int:
    """``mcpctl source remove``."""
    async with open_bus(args, changing=True) as bus:
        url = await _url_of(bus, args.url)
        await bus.manager.call("RemoveSource", "sa{sv}", [url, {}])
    write(f"Removed {clean(url)}.")
    return 0


async def _url_of(bus: Client, called: str) -> str:
    """The URL of the source that is *called* so, as its URL or its name; *called* itself if none is.

    Raises :class:`~mcpd.errors.InvalidArgument` for a name of several, and of one whose URL cannot be told.
    """
    if ":" in called:
        return called
    named = [source for source in await bus.manager.call("ListSources") if name_of(source) == called]
    if len(named) > 1:
        raise InvalidArgument(f"{len(named)} sources are called {called!r}; give the URL of one")
    if named and not named[0].get("url"):
        raise InvalidArgument(f"{named[0].get('file', called)} names no URL; mend the file, or remove it")
    return str(named[0]["url"]) if named else called


def age(updated: float, now: float) -> str:
    """How long before *now* the time *updated* was, both Unix times: ``5 min``. Empty if *updated* is 0."""
    if not updated:
        return ""
    passed = max(now - updated, 0)
    size, unit = next(((size, unit) for size, unit in _UNITS if passed >= size), (1, "s"))
    return f"{passed // size:.0f} {unit}"


def _place(source: Mapping[str, Any]) -> str:
    return str(source.get("url") or source.get("file", ""))


def _problem(source: Mapping[str, Any]) -> str:
    """What is wrong with it, and how much with its entries."""
    return "; ".join(filter(None, (str(source.get("problem") or ""), of_faults(source))))


def _write_faults(sources: Sequence[Mapping[str, Any]]) -> None:
    """Name what is wrong with the entries of each of *sources*, below the table, which has no room for it."""
    for source in sources:
        if shown := faults_shown(source, _FAULTS, "mcpctl source list --json"):
            write(f"\nIn {clean(_place(source))}:")
            for fault in shown:
                write(f"  {clean(fault)}")
