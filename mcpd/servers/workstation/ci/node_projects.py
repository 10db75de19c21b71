# SPDX-License-Identifier: LGPL-2.1-or-later
"""Projects in JavaScript and TypeScript: their scripts, and the tools that are installed in ``node_modules``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.servers.workstation.ci.project import table
from mcpd.servers.workstation.ci.recipes import Ecosystem, Kind, Offer, Recipe, Task, usual
from mcpd.servers.workstation.ci.tasks import usable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcpd.servers.workstation.ci.project import Project

_NPM: Final = "npm"
_LOCKS: Final = (
    ("pnpm", ("pnpm-lock.yaml",)),
    ("yarn", ("yarn.lock",)),
    ("bun", ("bun.lock", "bun.lockb")),
    (_NPM, ("package-lock.json", "npm-shrinkwrap.json")),
)
_NO_TEST: Final = "no test specified"
"""Is in the test that ``npm init`` writes, which always fails."""
_BIN: Final = "node_modules/.bin/"


def package_manager(project: Project) -> str:
    """Who runs the scripts of *project*: whom ``packageManager`` names, else whose lock file there is, else npm."""
    named = project.json("package.json").get("packageManager")
    names = [name for name, _ in _LOCKS]
    if isinstance(named, str) and (name := named.partition("@")[0]) in names:
        return name
    return next((name for name, locks in _LOCKS if project.has(*locks)), _NPM)


def _inspected(manager: str) -> Callable[[Project], Offer | None]:
    def inspect(project: Project) -> Offer | None:
        if package_manager(project) != manager:
            return None
        package = project.json("package.json")
        scripts = {name: text for name, text in table(package, "scripts").items() if isinstance(text, str)}
        tasks = tuple(Task(name, _script(manager, name), text) for name, text in usable(scripts.items()))
        fit = tuple(task for task in tasks if _NO_TEST not in scripts[task.name])
        commands: dict[Kind, tuple[Recipe, ...]] = {**_installed(project), **usual(fit)}
        commands["restore"] = (_restoring(project, manager),)
        return Offer(commands, tasks)

    return inspect


def _script(manager: str, name: str) -> Recipe:
    return Recipe((manager, "run", name), separator=("--",) if manager == _NPM else ())


def _installed(project: Project) -> dict[Kind, tuple[Recipe, ...]]:
    """What stands in where there is no script."""
    found: dict[Kind, tuple[Recipe, ...]] = {}
    if project.has("tsconfig.json"):
        local = project.first(f"{_BIN}tsc") or "tsc"
        found["check"] = (Recipe((local, "--noEmit"), machine=("--pretty", "false")),)
        found["build"] = (Recipe((local, "--build"), machine=("--pretty", "false")),)
    if eslint := project.first(f"{_BIN}eslint"):
        found["lint"] = (Recipe((eslint, ".")),)
    elif biome := project.first(f"{_BIN}biome"):
        found["lint"] = (Recipe((biome, "lint", ".")),)
    for name, more in (("vitest", ("run",)), ("jest", ()), ("mocha", ())):
        if runner := project.first(_BIN + name):
            found["test"] = (Recipe((runner, *more)),)
            break
    else:
        if project.has("test", "tests"):
            found["test"] = (Recipe(("node", "--test")),)
    return found


def _restoring(project: Project, manager: str) -> Recipe:
    locked = project.has(*dict(_LOCKS)[manager])
    if manager == _NPM:
        return Recipe((_NPM, "ci" if locked else "install", "--no-fund", "--no-audit"))
    if manager == "yarn" and project.has(".yarnrc.yml"):
        return Recipe((manager, "install", *(["--immutable"] if locked else [])))
    return Recipe((manager, "install", *(["--frozen-lockfile"] if locked else [])))


def _deno(project: Project) -> Offer:
    name = project.first("deno.json", "deno.jsonc")
    settings: Mapping[str, Any] = project.json(name) if name else {}
    described = {name: _deno_text(value) for name, value in table(settings, "tasks").items()}
    tasks = tuple(Task(name, Recipe(("deno", "task", name)), text) for name, text in usable(described.items()))
    commands: dict[Kind, tuple[Recipe, ...]] = {
        "check": (Recipe(("deno", "check", ".")),),
        "test": (Recipe(("deno", "test")),),
        "lint": (Recipe(("deno", "lint")),),
        "restore": (Recipe(("deno", "install")),),
    }
    return Offer({**commands, **usual(tasks)}, tasks)


def _deno_text(value: object) -> str:
    """What a task is: its command, or with more about it an object."""
    if isinstance(value, dict):
        value = value.get("description") or value.get("command")
    return value if isinstance(value, str) else ""


NODE: Final = (
    Ecosystem("deno", "Deno", ("deno.json", "deno.jsonc"), _deno),
    *(
        Ecosystem(name, f"JavaScript ({name})", ("package.json",), _inspected(name))
        for name in ("bun", "pnpm", "yarn", _NPM)
    ),
)
