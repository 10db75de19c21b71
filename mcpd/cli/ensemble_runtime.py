# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the commands of ``mcpctl ensemble`` stand on: the libraries they take, and the projects they look in."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.home import require_own, tilde
from mcpd.cli.libraries import provide
from mcpd.cli.output import clean, counted, warn
from mcpd.errors import ConfigMissing, InvalidConfig, McpdError, NotFound
from mcpd.paths import Scope, from_environment
from mcpd.servers.ensembles.directories import SERVER, nearest_project, settings
from mcpd.servers.ensembles.settings import DIRECTORY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from mcpd.paths import Paths
    from mcpd.servers.ensembles.settings import Settings

_LEAST: Final = 0.000001
"""Dollars that are shown."""


def summary(execution: Mapping[str, Any]) -> str:
    """One line on a run, as the tools say it: how it ended, what it took, and its id."""
    agents, took = execution.get("results"), duration(execution.get("seconds"))
    again = len(reused(execution))
    said = [
        str(execution.get("status")).replace("_", " ") + (f" in {took}" if took else ""),
        counted(len(agents) if isinstance(agents, dict) else 0, "agent") + (f" ({again} reused)" if again else ""),
        _tokens(execution.get("tokens")),
        cost(execution.get("cost_usd")),
        str(execution.get("artifact_id") or ""),
    ]
    return clean(f"{execution.get('ensemble')}: {', '.join(each for each in said if each)}")


def reused(execution: Mapping[str, Any]) -> list[str]:
    """The agents whose response is an earlier run's."""
    agents = execution.get("results")
    found = agents.items() if isinstance(agents, dict) else ()
    return [str(name) for name, each in found if isinstance(each, dict) and each.get("reused")]


def cost(dollars: object, none: str = "") -> str:
    """*dollars* to read, with as many places as it takes to see them; *none* for 0, nothing if they are not known."""
    if not isinstance(dollars, int | float) or dollars < 0:
        return ""
    if dollars == 0:
        return none
    if dollars < _LEAST:
        return f"< ${_LEAST:.6f}"
    return f"${dollars:.2f}" if dollars >= 1 else f"${dollars:.6f}".rstrip("0").rstrip(".")


def duration(seconds: object) -> str:
    """*seconds* to read; nothing if they are not known."""
    if not isinstance(seconds, int | float):
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def when(seconds: float | None) -> str:
    """The moment *seconds* since the epoch to read, in the caller's time zone; nothing if it is not known."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _tokens(number: object) -> str:
    return counted(number, "token") if isinstance(number, int) and number else ""


LIBRARIES: Final = ("ruamel.yaml",)
WHOM: Final = "'mcpctl ensemble'"


def run(args: argparse.Namespace) -> int:
    """Run ``args.action``, in an environment that has what it takes.

    Raises :class:`~mcpd.errors.NotSupported` if there is none, and what the command raises.
    """
    require_own()
    provide(LIBRARIES, WHOM)
    module, _, function = args.action.partition(":")
    return int(getattr(importlib.import_module(module), function)(args))


@dataclass(frozen=True, slots=True)
class Projects:
    """The projects of one command."""

    own: Path | None
    """The one that was named, or that the caller stands in."""
    configured: tuple[Path, ...]
    """Those that the server may use."""
    system: bool
    """Whether that is the server of the system."""

    @property
    def all(self) -> tuple[Path, ...]:
        """Each once, the caller's own first."""
        own = () if self.own is None else (self.own,)
        return (*own, *(each for each in self.configured if not own or not is_same(each, own[0])))

    def has(self, project: Path) -> bool:
        """Whether the server may use *project*."""
        return any(is_same(project, each) for each in self.configured)


def is_same(one: Path, other: Path) -> bool:
    """Whether both are one directory, however they are spelled."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def projects_of(args: argparse.Namespace) -> Projects:
    """The projects that *args* mean. Raises :class:`~mcpd.errors.NotFound` for one that was named and is none."""
    paths = from_environment()
    if args.project is None:
        own = nearest_project(Path.cwd())
    else:
        own = Path(args.project).expanduser().absolute()
        if not (own / DIRECTORY).is_dir():
            raise NotFound(f"there is no directory {DIRECTORY} in {args.project}, so it is no project with ensembles")
    try:
        return Projects(own, configured(paths, Scope.SYSTEM if args.system else Scope.USER), args.system)
    except McpdError as fault:
        warn(f"which projects {SERVER} may use is not known: {fault.message}")
        return Projects(own, (), args.system)


def is_server_installed(args: argparse.Namespace) -> bool:
    """Return whether the server is there that runs ensembles, as far as that can be read."""
    from mcpd.store import Store  # noqa: PLC0415 - with pydantic

    try:
        Store(from_environment(), Scope.SYSTEM if args.system else Scope.USER).get(SERVER)
    except NotFound:
        return False
    except McpdError:
        # What is wrong with it is said where it is used.
        return True
    return True


def settings_of(args: argparse.Namespace) -> Settings:
    """The directories that *args* mean: the projects, the user's own and the package's."""
    return settings(from_environment(), projects_of(args).all)


def not_configured(what: str, project: Path, projects: Projects) -> ConfigMissing:
    """Says that the server may not use *project*, where *what* is, and which command lets it."""
    import json  # noqa: PLC0415 - what is right needs none of it
    import os  # noqa: PLC0415
    import shlex  # noqa: PLC0415

    paths = from_environment()
    wanted = json.dumps([tilde(each, paths) for each in (*projects.configured, project)], ensure_ascii=False)
    whose = f"the system's {SERVER} ('mcpctl --user ensemble' asks your own)" if projects.system else SERVER
    # Without a word of it root means the system's, and everybody else their own.
    instance = "--system " if projects.system else "--user " if os.geteuid() == 0 else ""
    return ConfigMissing(
        f"{what} is in {tilde(project, paths)}, which {whose} may not use yet; if you trust what is in it: mcpctl"
        f" {instance}config set {SERVER} {shlex.quote(f'projects={wanted}')}"
    )


def not_found(fault: NotFound) -> NotFound:
    """*fault* of an ensemble that there is not, with the command that shows those that there are."""
    return NotFound(f"{fault.message}; 'mcpctl ensemble list' shows those that are there")


def invalid(fault: InvalidConfig, name: str) -> InvalidConfig:
    """*fault* of the ensemble *name*, with the command that says all that is wrong with it."""
    import shlex  # noqa: PLC0415 - what is right needs none of it

    said = InvalidConfig(f"{fault.message}; all that is wrong: mcpctl ensemble validate {shlex.quote(name)}")
    said.data = fault.data
    return said


def configured(paths: Paths, scope: Scope) -> tuple[Path, ...]:
    """The property ``projects`` of the server, as it is stored: mcpd need not run.

    Raises what :meth:`mcpd.store.Store.config` and :func:`.expanded` raise, but for a server that is not there.
    """
    from mcpd.servers.given_paths import expanded  # noqa: PLC0415 - with pydantic, for all three
    from mcpd.store import Store  # noqa: PLC0415

    try:
        found = Store(paths, scope).config(SERVER).values.get("projects")
    except NotFound:
        return ()
    return expanded([str(each) for each in found], paths.home) if isinstance(found, list) else ()
