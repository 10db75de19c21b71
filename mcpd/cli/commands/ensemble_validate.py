# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ensemble validate``: what is wrong with ensembles, as compilers say it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.cli.ensemble_runtime import is_same, not_found, projects_of
from mcpd.cli.given import read_input
from mcpd.cli.output import clean, counted, note, paint, warn, write, write_json
from mcpd.errors import EXIT_FAILED, InvalidArgument, InvalidConfig, McpdError, NotFound
from mcpd.paths import Scope, from_environment
from mcpd.servers.ensembles.checking import check, faults, own_base_urls
from mcpd.servers.ensembles.directories import SERVER, nearest_project, settings
from mcpd.servers.ensembles.engine.types import Found, Origin
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.format.models import McpAgent
from mcpd.servers.ensembles.format.reading import MAX_SIZE
from mcpd.servers.ensembles.library.library import Library
from mcpd.servers.ensembles.library.tiers import SUFFIXES
from mcpd.servers.ensembles.providers.access import Access
from mcpd.servers.ensembles.providers.keys import Keys

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.format.validation import Finding
    from mcpd.store.records import Configuration

_SECONDS = 30.0
"""The time in which a server has to list its tools."""
_COLOURS = {"error": "red", "warning": "yellow"}


def validate(args: argparse.Namespace) -> int:
    """``mcpctl ensemble validate``; 1 if there is an error.

    JSON: ``{"valid", "checked", "findings": [{severity, message, agent, line, file}]}``.
    """
    findings, checked = [], 0
    for found in _checked(args):
        findings += found
        checked += 1
    errors = sum(each.severity == "error" for each in findings)
    if args.json:
        write_json({"valid": not errors, "checked": checked, "findings": [asdict(each) for each in findings]})
    else:
        for each in findings:
            write(_line(each))
        warnings = counted(len(findings) - errors, "warning")
        note(f"{counted(checked, 'ensemble')}, {counted(errors, 'error')}, {warnings}")
    return EXIT_FAILED if errors else 0


def _checked(args: argparse.Namespace) -> Iterator[list[Finding]]:
    """The findings of each ensemble that *args* name."""
    paths, projects = from_environment(), projects_of(args).all
    known = _Known(args)
    library = Library(settings(paths, projects))
    for name in args.ensembles or _all(library):
        if name.endswith(SUFFIXES):
            file = Path(name).absolute()
            around = nearest_project(file.parent)
            own = () if around is None else (around, *(each for each in projects if not is_same(each, around)))
            yield _file(Library(settings(paths, own or projects)), name, file, known)
        else:
            yield _named(library, name, known)


def _all(library: Library) -> list[str]:
    """The names of all, those that others hide among them."""
    return [each.qualified for each in library.entries()]


def _named(library: Library, name: str, known: _Known) -> list[Finding]:
    try:
        found, loaded, _ = library.loaded(name)
    except InvalidConfig as fault:
        return faults(fault)
    except NotFound as fault:
        raise not_found(fault) from fault
    return known.check(library, found, loaded)


def _file(library: Library, name: str, file: Path, known: _Known) -> list[Finding]:
    """The findings of *file*, which need not be where ensembles are; its scripts are looked for beside it then."""
    try:
        text = read_input(name, MAX_SIZE).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{name} is no text in UTF-8") from None
    try:
        loaded = load(text, name)
    except InvalidConfig as fault:
        return faults(fault)
    tier = next((each for each in library.tiers if file.is_relative_to(each.base)), None)
    origin = tier.origin(file) if tier else Origin("user", file, file.parent, None)
    return known.check(library, Found(loaded.ensemble, origin), loaded)


class _Known:
    """What is known of servers and keys."""

    def __init__(self, args: argparse.Namespace) -> None:
        from mcpd.store import Store  # noqa: PLC0415 - with all that servers are made of

        self._args = args
        self._tools: dict[str, list[str]] = {}
        self._servers: set[str] | None = None
        self._keys: Keys | None = None
        store = Store(from_environment(), Scope.SYSTEM if args.system else Scope.USER)
        with suppress(McpdError):
            self._servers = {each.id for each in store.list()}
            self._keys = _keys(store.config(SERVER))

    def check(self, library: Library, found: Found, loaded: Loaded) -> list[Finding]:
        """Return what is wrong with *found*."""
        access = None if self._keys is None else Access(self._keys, lambda: own_base_urls(library))
        if self._args.tools:
            asyncio.run(self._ask({each.mcp.server for each in found.ensemble.agents if isinstance(each, McpAgent)}))
        return check(library, found, loaded, self._servers, access, self._tools)

    async def _ask(self, server_ids: set[str]) -> None:
        from mcpd.cli.conversation import names_of_tools  # noqa: PLC0415 - with the bus, which the rest does without

        for server_id in sorted(server_ids - self._tools.keys()):
            try:
                self._tools[server_id] = await names_of_tools(self._args, server_id, _SECONDS)
            except (McpdError, OSError) as error:
                warn(f"{server_id} was not asked for its tools: {error}")


def _keys(configured: Configuration) -> Keys | None:
    """Return stand-ins for the keys that llm-orc has; None if the one that is set may hold any."""
    if "LLM_ORC_KEYS" in configured.secrets_set:
        return None
    urls = {key: value for key, value in configured.values.items() if isinstance(value, str)}
    return Keys.from_environment({**urls, **dict.fromkeys(configured.secrets_set, "set")})


def _line(finding: Finding) -> str:
    """*finding* as editors understand it."""
    where = finding.file if finding.line is None else f"{finding.file}:{finding.line}"
    agent = f" agent {finding.agent}:" if finding.agent else ""
    said = paint(f"{finding.severity}:", _COLOURS.get(finding.severity, ""))
    return f"{clean(where)}: {said}{clean(agent)} {clean(finding.message)}"
