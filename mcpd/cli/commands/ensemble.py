# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ensemble list``, ``show``, ``graph`` and ``validate`` (``docs/ensembles.md``)."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.cli.ensemble_runtime import invalid, is_same, is_server_installed, not_configured, not_found, projects_of
from mcpd.cli.home import tilde
from mcpd.cli.output import (
    clean,
    counted,
    details,
    encodes_unicode,
    note,
    paint,
    table,
    warn,
    write,
    write_json,
    write_text,
)
from mcpd.cli.user_input import read_input
from mcpd.errors import EXIT_FAILED, InvalidArgument, InvalidConfig, McpdError, NotFound
from mcpd.paths import Scope, from_environment
from mcpd.servers.ensembles import drawing
from mcpd.servers.ensembles.checking import check, faults, own_base_urls
from mcpd.servers.ensembles.directories import SERVER, nearest_project, settings
from mcpd.servers.ensembles.engine.types import Found, Origin
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.format.models import McpAgent, ModelAgent, ScriptAgent, kind_of
from mcpd.servers.ensembles.format.reading import MAX_SIZE
from mcpd.servers.ensembles.library.library import Library
from mcpd.servers.ensembles.library.tiers import SUFFIXES
from mcpd.servers.ensembles.providers.keys import Access, Keys

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from mcpd.cli.ensemble_runtime import Projects
    from mcpd.servers.ensembles.artifacts.store import Artifacts
    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.format.models import Agent, Ensemble
    from mcpd.servers.ensembles.format.validation import Finding
    from mcpd.servers.ensembles.library.library import Entry
    from mcpd.store.config import Configuration


def list_ensembles(args: argparse.Namespace) -> int:
    """``mcpctl ensemble list``.

    JSON: ``{"ensembles": [{name, qualified, description, state, tier, project, file, agents, kinds, problem}]}``.
    """
    projects, library = opened(args)
    entries = library.entries()
    if args.json:
        write_json({"ensembles": [_listed(each, projects) for each in entries]})
    elif entries:
        rows = [
            (each.name, state(each, projects), each.agents, each.qualified.rpartition("/")[0], each.description)
            for each in entries
        ]
        table(("ENSEMBLE", "STATE", "AGENTS", "FROM", "DESCRIPTION"), rows)
    else:
        note("There are no ensembles; mcpctl(1) lists the directories that are searched.")
    for each in entries:
        if each.problem:
            warn(each.problem)
    if not args.json and projects.own is not None and any(state(each, projects) == "disabled" for each in entries):
        note(not_configured("the project of the disabled ensembles", projects.own, projects).message)
    if not args.json and not is_server_installed(args):
        note(f"{SERVER}, which runs ensembles, is not installed; install the package mcpd-servers.")
    return 0


def show(args: argparse.Namespace) -> int:
    """``mcpctl ensemble show``. JSON: the result of :func:`about`."""
    found = about(args)
    if args.json:
        write_json(found)
        return 0
    paths = from_environment()
    details(
        [
            ("ensemble", found["name"]),
            ("description", found["description"]),
            ("from", found["qualified"].rpartition("/")[0]),
            ("file", tilde(found["file"], paths)),
            ("can be run", "" if found["configured"] else "not until its project is configured"),
            ("hides", ", ".join(found["hides"])),
            ("default task", found["default_task"]),
        ]
    )
    write()
    rows = [(each["name"], each["kind"], " ".join(each["depends_on"]), each["runs"]) for each in found["agents"]]
    table(("AGENT", "KIND", "DEPENDS ON", "RUNS"), rows)
    return 0


def about(args: argparse.Namespace) -> dict[str, Any]:
    """Describe the ensemble ``args.ensemble``: its origin, its agents, and whether the server may run it."""
    projects, library = opened(args)
    found = find(library, args.ensemble)
    ensemble, origin = found.ensemble, found.origin
    same = [each for each in library.entries() if each.name == ensemble.name]
    itself = next((each for each in same if each.origin.file == origin.file), None)
    return {
        "name": ensemble.name,
        "qualified": itself.qualified if itself else ensemble.name,
        "description": ensemble.description,
        "tier": origin.tier,
        "project": _text(origin.project),
        "file": str(origin.file),
        "configured": _is_configured(origin, projects),
        "hides": [each.qualified for each in same if each.shadowed and each is not itself],
        "default_task": ensemble.default_task,
        "needs_input": _needs_input(ensemble),
        "agents": [_agent(each, library, origin) for each in ensemble.agents],
        "ensemble": ensemble.model_dump(mode="json", exclude_defaults=True),
    }


def graph(args: argparse.Namespace) -> int:
    """``mcpctl ensemble graph``. JSON: ``{"ensemble", "agents": [{name, kind, depends_on, status}], "mermaid"}``."""
    _, library = opened(args)
    found = find(library, args.ensemble)
    ensemble = found.ensemble
    statuses = _statuses(args, library, found) if args.run_id is not None else None
    if args.json:
        agents = [
            {"name": each.name, "kind": kind_of(each), "depends_on": list(each.depends_on)}
            | ({} if statuses is None else {"status": statuses.get(each.name)})
            for each in ensemble.agents
        ]
        write_json(
            {"ensemble": ensemble.name, "agents": agents, "mermaid": drawing.mermaid(ensemble, statuses=statuses)}
        )
    elif args.mermaid:
        write_text(drawing.mermaid(ensemble, statuses=statuses))
    else:
        width = shutil.get_terminal_size().columns
        write_text(drawing.terminal(ensemble, width=width, statuses=statuses, ascii_only=not encodes_unicode()))
    return 0


def opened(args: argparse.Namespace) -> tuple[Projects, Library]:
    """Return the projects that *args* select, and the library of all ensembles."""
    projects = projects_of(args)
    return projects, Library(settings(from_environment(), projects.all))


def find(library: Library, name: str) -> Found:
    """Return the ensemble *name*.

    Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidConfig` if it cannot be used.
    """
    try:
        return library.find(name)
    except NotFound as fault:
        raise not_found(fault) from fault
    except InvalidConfig as fault:
        raise invalid(fault, name) from fault


def stored_run(artifacts: Artifacts, run_id: str) -> tuple[str, dict[str, Any]]:
    """Return the full id of the run *run_id*, which may be ``NAME/latest``, and its ``execution.json``.

    Raises :class:`~mcpd.errors.NotFound`, and the errors of :meth:`Artifacts.read`.
    """
    try:
        resolved = artifacts.resolved(run_id)
        return resolved, artifacts.read(resolved)
    except NotFound as fault:
        listing = f"mcpctl ensemble runs {run_id.rpartition('/')[0]}"
        raise NotFound(f"there is no run {run_id}; '{listing}' lists the runs") from fault


def state(entry: Entry, projects: Projects) -> str:
    """Return the state of *entry*: ``ok``, ``disabled``, ``hidden`` or ``broken``."""
    if entry.problem:
        return "broken"
    if entry.shadowed:
        return "hidden"
    return "ok" if _is_configured(entry.origin, projects) else "disabled"


def _is_configured(origin: Origin, projects: Projects) -> bool:
    return origin.project is None or projects.has(origin.project)


def _listed(entry: Entry, projects: Projects) -> dict[str, Any]:
    return {
        "name": entry.name,
        "qualified": entry.qualified,
        "description": entry.description,
        "state": state(entry, projects),
        "tier": entry.origin.tier,
        "project": _text(entry.origin.project),
        "file": str(entry.origin.file),
        "agents": entry.agents,
        "kinds": list(entry.kinds),
        "problem": entry.problem,
    }


def _agent(agent: Agent, library: Library, origin: Origin) -> dict[str, Any]:
    return {
        "name": agent.name,
        "kind": kind_of(agent),
        "depends_on": list(agent.depends_on),
        "runs": _runs(agent, library, origin),
    }


def _runs(agent: Agent, library: Library, origin: Origin) -> str:
    """Return what *agent* runs: its model, script, tool or ensemble."""
    match agent:
        case ModelAgent(model_profile=str(name)):
            what = f"{name} ({_model(name, library, origin)})"
        case ModelAgent():
            what = f"{agent.provider}: {agent.model}"
        case ScriptAgent():
            what = agent.script
        case _:
            members = agent.model_dump()
            what = _named(members)
    return what + (" (for each)" if agent.fan_out else "")


def _model(profile: str, library: Library, origin: Origin) -> str:
    """Return the model that *profile* selects for an ensemble of *origin*."""
    try:
        found = library.profile(profile, origin)
    except McpdError:
        return "cannot be used"
    return f"{found.provider}: {found.model}"


def _named(members: dict[str, Any]) -> str:
    if "loop" in members:
        return f"{members['loop']['body']}, until {members['loop']['until']}"
    if "mcp" in members:
        return f"{members['mcp']['tool']} of {members['mcp']['server']}"
    return str(members.get("ensemble") or members.get("dispatch"))


def _needs_input(ensemble: Ensemble) -> bool:
    """Return whether an agent would ask its model without any input."""
    return ensemble.default_task is None and any(
        isinstance(agent, ModelAgent) and not agent.depends_on for agent in ensemble.agents
    )


def _statuses(args: argparse.Namespace, library: Library, found: Found) -> dict[str, str]:
    """Return the status of each agent in the run ``args.run_id``."""
    from mcpd.servers.ensembles.artifacts.store import Artifacts  # only for --run

    artifacts, name = Artifacts.of(library), found.ensemble.name
    run_id = args.run_id
    if "/" not in run_id:
        run_id = f"{artifacts.name(name, library.artifact_root(found.origin))}/{run_id}"
    if run_id.split("/")[-2] != name:
        raise InvalidArgument(f"{args.run_id} is not a run of {name}")
    results = stored_run(artifacts, run_id)[1].get("results")
    agents = results.items() if isinstance(results, dict) else ()
    return {str(agent): str(each.get("status")) for agent, each in agents if isinstance(each, dict)}


def _text(path: object) -> str | None:
    return None if path is None else str(path)


_SECONDS = 30.0
"""Seconds for a server to list its tools."""
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
    """Yield the findings of each ensemble that *args* select."""
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
            yield _named_library(library, name, known)


def _all(library: Library) -> list[str]:
    """Return the qualified names of all ensembles, including hidden ones."""
    return [each.qualified for each in library.entries()]


def _named_library(library: Library, name: str, known: _Known) -> list[Finding]:
    try:
        found, loaded, _ = library.loaded(name)
    except InvalidConfig as fault:
        return faults(fault)
    except NotFound as fault:
        raise not_found(fault) from fault
    return known.check(library, found, loaded)


def _file(library: Library, name: str, file: Path, known: _Known) -> list[Finding]:
    """Return the findings of *file*. If it is outside the directories of ensembles, look for its scripts next to it."""
    try:
        text = read_input(name, MAX_SIZE).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{name} is not UTF-8 text") from None
    try:
        loaded = load(text, name)
    except InvalidConfig as fault:
        return faults(fault)
    tier = next((each for each in library.tiers if file.is_relative_to(each.base)), None)
    origin = tier.origin(file) if tier else Origin("user", file, file.parent, None)
    return known.check(library, Found(loaded.ensemble, origin), loaded)


class _Known:
    """The installed servers, their tools and the configured keys, to check ensembles against."""

    def __init__(self, args: argparse.Namespace) -> None:
        from mcpd.store import Store  # slow to import

        self._args = args
        self._tools: dict[str, list[str]] = {}
        self._servers: set[str] | None = None
        self._keys: Keys | None = None
        store = Store(from_environment(), Scope.SYSTEM if args.system else Scope.USER)
        with suppress(McpdError):
            self._servers = {each.id for each in store.list()}
            self._keys = _keys(store.config(SERVER))

    def check(self, library: Library, found: Found, loaded: Loaded) -> list[Finding]:
        """Return the findings of *found*."""
        access = None if self._keys is None else Access(self._keys, lambda: own_base_urls(library))
        if self._args.tools:
            asyncio.run(self._ask({each.mcp.server for each in found.ensemble.agents if isinstance(each, McpAgent)}))
        return check(library, found, loaded, self._servers, access, self._tools)

    async def _ask(self, server_ids: set[str]) -> None:
        from mcpd.cli.conversation import names_of_tools  # only for --tools; imports the bus client

        for server_id in sorted(server_ids - self._tools.keys()):
            try:
                self._tools[server_id] = await names_of_tools(self._args, server_id, _SECONDS)
            except (McpdError, OSError) as error:
                warn(f"could not list the tools of {server_id}: {error}")


def _keys(configured: Configuration) -> Keys | None:
    """Return placeholders for the keys that are set for llm-orc; ``None`` if ``LLM_ORC_KEYS`` may hold any key."""
    if "LLM_ORC_KEYS" in configured.secrets_set:
        return None
    urls = {key: value for key, value in configured.values.items() if isinstance(value, str)}
    return Keys.from_environment({**urls, **dict.fromkeys(configured.secrets_set, "set")})


def _line(finding: Finding) -> str:
    """Format *finding* as ``FILE:LINE: SEVERITY: MESSAGE``, which editors parse."""
    where = finding.file if finding.line is None else f"{finding.file}:{finding.line}"
    agent = f" agent {finding.agent}:" if finding.agent else ""
    severity = paint(f"{finding.severity}:", _COLOURS.get(finding.severity, ""))
    return f"{clean(where)}: {severity}{clean(agent)} {clean(finding.message)}"
