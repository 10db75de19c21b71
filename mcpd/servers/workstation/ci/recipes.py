# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an ecosystem is to the tools: the files that tell it, and the commands and tasks that it offers a project."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mcpd.servers.workstation.ci.project import Project

Kind: TypeAlias = Literal["check", "build", "test", "lint", "restore"]
"""What a command is for. "check" looks at the code without running it, as far as the ecosystem can do that."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

USUAL: Final[Mapping[Kind, tuple[str, ...]]] = {
    "check": ("typecheck", "type-check", "check-types", "check:types", "types", "tsc", "check"),
    "build": ("build", "compile"),
    "test": ("test", "tests"),
    "lint": ("lint", "lint:check"),
    "restore": ("restore", "deps"),
}
"""What tasks for a kind of command are usually called, the best first."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to do something."""

    argv: tuple[str, ...]
    """The program and its arguments. A program with a slash is a file of the project."""
    separator: tuple[str, ...] = ()
    """What stands before further arguments, if there are any, so that they reach whom they are for."""
    machine: tuple[str, ...] = ()
    """What makes the program write for programs; stands after :attr:`argv`."""
    before: tuple[tuple[str, ...], ...] = ()
    """Commands that have to succeed first."""
    needs: tuple[str, ...] = ()
    """Further programs that have to be there."""
    env: Mapping[str, str] = field(default_factory=dict)

    def full(self, arguments: Iterable[str], *, machine: bool = False) -> tuple[str, ...]:
        """The whole command, with the caller's *arguments*."""
        extra = tuple(arguments)
        argv = self.argv + self.machine if machine else self.argv
        return argv + self.separator + extra if extra else argv

    def after(self, *commands: tuple[str, ...]) -> Recipe:
        """The same, with *commands* before it."""
        return replace(self, before=commands + self.before)

    @property
    def programs(self) -> tuple[str, ...]:
        """All that have to be there. A file of the project that is made by what is done before is not."""
        called = [command[0] for command in (*self.before, self.argv)]
        made = {each for each in called[1:] if "/" in each}
        return tuple(dict.fromkeys((*(each for each in called if each not in made), *self.needs)))


@dataclass(frozen=True, slots=True)
class Task:
    """Something with a name that a project defines for itself."""

    name: str
    recipe: Recipe
    description: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """What an ecosystem has for one project."""

    commands: Mapping[Kind, tuple[Recipe, ...]] = field(default_factory=dict)
    """The best first: the first whose programs are there is taken."""
    tasks: tuple[Task, ...] = ()


@dataclass(frozen=True, slots=True)
class Ecosystem:
    """One of the table."""

    name: str
    title: str
    markers: tuple[str, ...]
    """Names of files, or ``*.suffix``: a directory with any of them may be such a project."""
    inspect: Callable[[Project], Offer | None]
    """Says what it offers a project that has a marker; None if it is none after all."""


def usual(tasks: Iterable[Task], names: Mapping[Kind, tuple[str, ...]] = USUAL) -> dict[Kind, tuple[Recipe, ...]]:
    """Commands from those of *tasks* that are called as such tasks are."""
    known = {task.name: task.recipe for task in tasks}
    return {
        kind: tuple(known[name] for name in called if name in known)
        for kind, called in names.items()
        if any(name in known for name in called)
    }


def fixed(
    commands: Mapping[Kind, Recipe | tuple[str, ...] | tuple[Recipe, ...]],
) -> Callable[[Project], Offer]:
    """An :attr:`Ecosystem.inspect` for tools that are called the same way in every project."""
    offer = Offer({kind: _recipes(each) for kind, each in commands.items()})
    return lambda _: offer


def _recipes(given: Recipe | tuple[str, ...] | tuple[Recipe, ...]) -> tuple[Recipe, ...]:
    if isinstance(given, Recipe):
        return (given,)
    recipes = tuple(each for each in given if isinstance(each, Recipe))
    return recipes or (Recipe(tuple(each for each in given if isinstance(each, str))),)
