# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading the registries, and what a person has to know of those that could not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.jobs import run_job
from mcpd.cli.output import counted, warn
from mcpd.errors import IntegrityMismatch, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcpd.bus.client import Client

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

    from mcpd.cli.commands.sources import age  # noqa: PLC0415

    return age(source.get("updated", 0), time.time())
