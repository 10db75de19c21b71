# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runtime of ``mcpctl ensemble``: its libraries, the projects to search, and formatting."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.home import require_own, tilde
from mcpd.cli.libraries import provide
from mcpd.cli.output import clean, counted, warn
from mcpd.errors import ConfigMissing, InvalidConfig, McpdError, NotFound
from mcpd.paths import Scope, from_environment
from mcpd.servers.ensembles.directories import SERVER, nearest_project
from mcpd.servers.ensembles.settings import DIRECTORY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from mcpd.paths import Paths

_LEAST: Final = 0.000001
"""The smallest amount in dollars that is shown exactly."""


def summary(execution: Mapping[str, Any]) -> str:
    """Return one line about a run: its status, duration, cost and id."""
    agents, took = execution.get("results"), duration(execution.get("seconds"))
    again = len(reused(execution))
    parts = [
        str(execution.get("status")).replace("_", " ") + (f" in {took}" if took else ""),
        counted(len(agents) if isinstance(agents, dict) else 0, "agent") + (f" ({again} reused)" if again else ""),
        _tokens(execution.get("tokens")),
        cost(execution.get("cost_usd")),
        str(execution.get("artifact_id") or ""),
    ]
    return clean(f"{execution.get('ensemble')}: {', '.join(each for each in parts if each)}")


def reused(execution: Mapping[str, Any]) -> list[str]:
    """Return the agents whose responses come from an earlier run."""
    agents = execution.get("results")
    found = agents.items() if isinstance(agents, dict) else ()
    return [str(name) for name, each in found if isinstance(each, dict) and each.get("reused")]


def cost(dollars: object, none: str = "") -> str:
    """Format *dollars* with as many decimal places as needed; return *none* for 0, and empty if they are unknown."""
    if not isinstance(dollars, int | float) or dollars < 0:
        return ""
    if dollars == 0:
        return none
    if dollars < _LEAST:
        return f"< ${_LEAST:.6f}"
    return f"${dollars:.2f}" if dollars >= 1 else f"${dollars:.6f}".rstrip("0").rstrip(".")


def duration(seconds: object) -> str:
    """Format *seconds* as ``1.5 s``, ``2 min 5 s`` or ``1 h 2 min``; empty if they are unknown."""
    if not isinstance(seconds, int | float):
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _tokens(number: object) -> str:
    return counted(number, "token") if isinstance(number, int) and number else ""


LIBRARIES: Final = ("ruamel.yaml",)
CONSUMER: Final = "'mcpctl ensemble'"


def run(args: argparse.Namespace) -> int:
    """Run ``args.action`` in an environment with the libraries that it needs.

    Raises :class:`~mcpd.errors.NotSupported` if there is none, and the errors of the command.
    """
    require_own()
    provide(LIBRARIES, CONSUMER)
    module, _, function = args.action.partition(":")
    return int(getattr(importlib.import_module(module), function)(args))


@dataclass(frozen=True, slots=True)
class Projects:
    """The projects in which a command looks for ensembles."""

    own: Path | None
    """The project from ``--project``, or around the current directory."""
    configured: tuple[Path, ...]
    """The projects that the server may use."""
    system: bool
    """True if the system instance runs the server."""

    @property
    def all(self) -> tuple[Path, ...]:
        """All projects without duplicates, the caller's own first."""
        own = () if self.own is None else (self.own,)
        return (*own, *(each for each in self.configured if not own or not is_same(each, own[0])))

    def has(self, project: Path) -> bool:
        """Return whether the server may use *project*."""
        return any(is_same(project, each) for each in self.configured)


def is_same(one: Path, other: Path) -> bool:
    """Return whether both paths are the same directory."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def projects_of(args: argparse.Namespace) -> Projects:
    """Return the projects for *args*. Raises :class:`~mcpd.errors.NotFound` if ``--project`` is not a project."""
    paths = from_environment()
    if args.project is None:
        own = nearest_project(Path.cwd())
    else:
        own = Path(args.project).expanduser().absolute()
        if not (own / DIRECTORY).is_dir():
            raise NotFound(f"{args.project} is not a project with ensembles: there is no directory {DIRECTORY} in it")
    try:
        return Projects(own, configured(paths, Scope.SYSTEM if args.system else Scope.USER), args.system)
    except McpdError as fault:
        warn(f"could not read which projects {SERVER} may use: {fault.message}")
        return Projects(own, (), args.system)


def is_server_installed(args: argparse.Namespace) -> bool:
    """Return whether the server that runs ensembles is installed; true if that cannot be read."""
    from mcpd.store import Store  # imports pydantic

    try:
        Store(from_environment(), Scope.SYSTEM if args.system else Scope.USER).get(SERVER)
    except NotFound:
        return False
    except McpdError:
        # The problem is reported where the server is used.
        return True
    return True


def not_configured(what: str, project: Path, projects: Projects) -> ConfigMissing:
    """Return the error that the server may not use *project*, which contains *what*, and the command to allow it."""
    import json
    import os
    import shlex

    paths = from_environment()
    wanted = json.dumps([tilde(each, paths) for each in (*projects.configured, project)], ensure_ascii=False)
    whose = f"the system's {SERVER} ('mcpctl --user ensemble' asks your own)" if projects.system else SERVER
    # The default scope of root is the system, that of everyone else their own.
    instance = "--system " if projects.system else "--user " if os.geteuid() == 0 else ""
    return ConfigMissing(
        f"{what} is in {tilde(project, paths)}, which {whose} may not use yet; if you trust its content: mcpctl"
        f" {instance}config set {SERVER} {shlex.quote(f'projects={wanted}')}"
    )


def not_found(fault: NotFound) -> NotFound:
    """Return *fault*, about a missing ensemble, with the command that lists the ensembles."""
    return NotFound(f"{fault.message}; 'mcpctl ensemble list' lists the ensembles")


def invalid(fault: InvalidConfig, name: str) -> InvalidConfig:
    """Return *fault*, about the ensemble *name*, with the command that lists all its errors."""
    import shlex

    error = InvalidConfig(f"{fault.message}; to list all errors: mcpctl ensemble validate {shlex.quote(name)}")
    error.data = fault.data
    return error


def configured(paths: Paths, scope: Scope) -> tuple[Path, ...]:
    """Return the property ``projects`` of the server, read from the store so that mcpd need not be running.

    Raises the errors of :meth:`mcpd.store.Store.config` and :func:`.expanded`, but not if the server is missing.
    """
    from mcpd.servers.given_paths import expanded  # imports pydantic
    from mcpd.store import Store

    try:
        found = Store(paths, scope).config(SERVER).values.get("projects")
    except NotFound:
        return ()
    return expanded([str(each) for each in found], paths.home) if isinstance(found, list) else ()
