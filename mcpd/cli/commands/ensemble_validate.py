# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ensemble validate``: what is wrong with ensembles, as compilers say it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.cli.ensemble_runtime import is_same, not_found, projects_of
from mcpd.cli.given import read_input
from mcpd.cli.output import clean, counted, note, paint, write, write_json
from mcpd.errors import EXIT_FAILED, InvalidArgument, InvalidConfig, McpdError, NotFound
from mcpd.paths import Scope, from_environment
from mcpd.servers.ensembles.checking import check, faults
from mcpd.servers.ensembles.directories import nearest_project, settings
from mcpd.servers.ensembles.engine.types import Found, Origin
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.format.reading import MAX_SIZE
from mcpd.servers.ensembles.library.library import Library
from mcpd.servers.ensembles.library.tiers import SUFFIXES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from mcpd.servers.ensembles.format.validation import Finding

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
    servers = _servers(args)
    library = Library(settings(paths, projects))
    for name in args.ensembles or _all(library):
        if name.endswith(SUFFIXES):
            file = Path(name).absolute()
            around = nearest_project(file.parent)
            own = () if around is None else (around, *(each for each in projects if not is_same(each, around)))
            yield _file(Library(settings(paths, own or projects)), name, file, servers)
        else:
            yield _named(library, name, servers)


def _all(library: Library) -> list[str]:
    """The names of all, those that others hide among them."""
    return [each.qualified for each in library.entries()]


def _named(library: Library, name: str, servers: set[str] | None) -> list[Finding]:
    try:
        found, loaded, _ = library.loaded(name)
    except InvalidConfig as fault:
        return faults(fault)
    except NotFound as fault:
        raise not_found(fault) from fault
    return check(library, found, loaded, servers)


def _file(library: Library, name: str, file: Path, servers: set[str] | None) -> list[Finding]:
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
    return check(library, Found(loaded.ensemble, origin), loaded, servers)


def _servers(args: argparse.Namespace) -> set[str] | None:
    """The installed servers; None if they are not known."""
    from mcpd.store import Store  # noqa: PLC0415 - with all that servers are made of

    try:
        return {each.id for each in Store(from_environment(), Scope.SYSTEM if args.system else Scope.USER).list()}
    except McpdError:
        return None


def _line(finding: Finding) -> str:
    """*finding* as editors understand it."""
    where = finding.file if finding.line is None else f"{finding.file}:{finding.line}"
    agent = f" agent {finding.agent}:" if finding.agent else ""
    said = paint(f"{finding.severity}:", _COLOURS.get(finding.severity, ""))
    return f"{clean(where)}: {said}{clean(agent)} {clean(finding.message)}"
