# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a directory's projects are, and how each thing is done there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, NotAuthorized, NotFound, ReadOnly
from mcpd.servers.workstation.ci.ecosystems import ECOSYSTEMS
from mcpd.servers.workstation.ci.project import opened_project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.ci.project import Project
    from mcpd.servers.workstation.ci.recipes import Ecosystem, Kind, Recipe, Task
    from mcpd.servers.workstation.jail import Place


_MAX_BELOW: Final = 200
"""Directories that are looked into."""
_NO_PROJECTS: Final = frozenset({"build", "node_modules", "target", "vendor", "venv"})
"""What has projects of others."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How something is done."""

    recipe: Recipe
    missing: tuple[str, ...]
    """Programs of it that are not there."""


@dataclass(frozen=True, slots=True)
class Found:
    """One ecosystem of a project."""

    ecosystem: Ecosystem
    markers: tuple[str, ...]
    """The files that tell it."""
    choices: Mapping[Kind, Choice]
    tasks: tuple[tuple[Task, Choice], ...]


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found in a directory."""

    place: Place
    found: tuple[Found, ...]
    problems: tuple[str, ...]
    """Files that could not be read, each with the reason."""


def detect(call: Call, path: str) -> Detection:
    """Look at the directory *path*; its files are read, nothing is run. Raises McpdError for what is no directory."""
    place = call.jail.place(path)
    with opened_project(call, place) as project:
        found = tuple(each for ecosystem in ECOSYSTEMS if (each := _find(call, project, ecosystem)) is not None)
        return Detection(place, found, tuple(project.problems))


def projects_below(call: Call, place: Place) -> tuple[str, ...]:
    """The names of directories in the directory *place* that have a marker of some ecosystem."""
    markers = tuple(dict.fromkeys(marker for ecosystem in ECOSYSTEMS for marker in ecosystem.markers))
    found = []
    with opened_project(call, place) as project:
        for name in project.directories(_MAX_BELOW):
            if name in _NO_PROJECTS:
                continue
            # Renamed meanwhile, or not ours to look into: none that could be used.
            with (
                suppress(NotFound, InvalidArgument, NotAuthorized, ReadOnly),
                opened_project(call, place.child(name)) as below,
            ):
                if below.matching(*markers):
                    found.append(name)
    return tuple(found)


def _find(call: Call, project: Project, ecosystem: Ecosystem) -> Found | None:
    call.check()
    markers = tuple(project.matching(*ecosystem.markers))
    offer = ecosystem.inspect(project) if markers else None
    if offer is None:
        return None
    choices = {kind: _choice(project, recipes) for kind, recipes in offer.commands.items() if recipes}
    tasks = tuple((task, _choice(project, (task.recipe,))) for task in offer.tasks)
    return Found(ecosystem, markers, choices, tasks)


def _choice(project: Project, recipes: tuple[Recipe, ...]) -> Choice:
    choices = [
        Choice(recipe, tuple(each for each in recipe.programs if not project.installed(each))) for recipe in recipes
    ]
    return next((each for each in choices if not each.missing), choices[0])
