# SPDX-License-Identifier: LGPL-2.1-or-later
"""Projects in Python: whichever of the many tools they are set up for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.servers.workstation.ci.project import table
from mcpd.servers.workstation.ci.recipes import Ecosystem, Kind, Offer, Recipe, Task, usual
from mcpd.servers.workstation.ci.tasks import nox_sessions, tox_environments, usable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcpd.servers.workstation.ci.project import Project

_PYPROJECT: Final = "pyproject.toml"
_SETUP: Final = "setup.cfg"
_REQUIREMENTS: Final = ("requirements.txt", "requirements-dev.txt", "dev-requirements.txt", "requirements/dev.txt")
_NAME: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", re.ASCII)
_ENVIRONMENTS: Final = (".venv", "venv", "env")
_MANAGERS: Final = (
    ("uv", ("uv.lock",)),
    ("poetry", ("poetry.lock",)),
    ("pdm", ("pdm.lock",)),
    ("pipenv", ("Pipfile", "Pipfile.lock")),
)
_Tool: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Its name, its arguments, and those for its format for programs."""
_RUFF: Final = ("ruff", ("check", "."), ("--output-format=concise",))
_LINTERS: Final[tuple[_Tool, ...]] = (_RUFF, ("flake8", (), ()), ("pylint", ("--recursive=y", "."), ()))
_CHECKERS: Final[tuple[_Tool, ...]] = (
    ("mypy", (), ("--no-pretty", "--show-column-numbers", "--no-color-output")),
    ("pyright", (), ()),
    ("ty", ("check",), ("--output-format=concise",)),
)
_FILES: Final[dict[str, tuple[str, ...]]] = {
    "pytest": ("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py", "test/conftest.py"),
    "ruff": ("ruff.toml", ".ruff.toml"),
    "flake8": (".flake8",),
    "pylint": (".pylintrc", "pylintrc"),
    "mypy": ("mypy.ini", ".mypy.ini"),
    "pyright": ("pyrightconfig.json",),
    "ty": ("ty.toml",),
}
"""Files that show which tools a project uses."""


def _requirements(project: Project) -> set[str]:
    """What *project* says anywhere that it needs, in lower case with hyphens."""
    pyproject = project.toml(_PYPROJECT)
    listed = [
        *_strings(table(pyproject, "project").get("dependencies")),
        *_strings(table(pyproject, "project").get("optional-dependencies")),
        *_strings(pyproject.get("dependency-groups")),
        *_strings(table(pyproject, "tool", "uv").get("dev-dependencies")),
        *table(pyproject, "tool", "poetry", "dependencies"),
        *table(pyproject, "tool", "poetry", "dev-dependencies"),
        *(name for group in table(pyproject, "tool", "poetry", "group").values() if isinstance(group, dict)
          for name in table(group, "dependencies")),
        *(line for name in _REQUIREMENTS for line in (project.text(name) or "").splitlines()),
    ]  # fmt: skip
    return {match[1].lower().replace("_", "-") for each in listed if (match := _NAME.match(each))}


def _strings(value: Any) -> Iterator[str]:
    """The strings in a list, or in the lists of a table."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _strings(each if isinstance(each, list) else [])
    elif isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))


class _Python:
    """What one project uses."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.tools = table(project.toml(_PYPROJECT), "tool")
        self.sections = {*project.ini(_SETUP), *(project.ini("tox.ini"))}
        self.required = _requirements(project)
        self.manager = next((name for name, files in _MANAGERS if project.has(*files) or name in self.tools), None)
        self.environment = project.first(*(f"{name}/bin/python" for name in _ENVIRONMENTS))

    def offer(self) -> Offer:
        commands: dict[Kind, tuple[Recipe, ...]] = {
            "check": self._of(_CHECKERS),
            "lint": self._of(_LINTERS) or self._unasked(_RUFF),
            "test": self._testing(),
            "build": self._building(),
            "restore": self._restoring(),
        }
        tasks = self._scripts()
        return Offer({kind: found for kind, found in (commands | usual(tasks)).items() if found}, tasks)

    def uses(self, tool: str) -> bool:
        """Whether the project is set up for *tool*."""
        return (
            tool in self.tools
            or tool in self.required
            or bool(self.sections & {tool, f"tool:{tool}"})
            or self.project.has(*_FILES[tool])
        )

    def _recipes(self, tool: str, arguments: tuple[str, ...], machine: tuple[str, ...] = ()) -> tuple[Recipe, ...]:
        """Ways to call *tool*: from the project's environment, through who manages it, or from the system."""
        found = []
        if self.environment and (local := self.project.first(f"{self.environment.rpartition('/')[0]}/{tool}")):
            found.append(Recipe((local, *arguments), machine=machine))
        if self.manager:
            offline = ("--offline",) if self.manager == "uv" and not self.project.network else ()
            found.append(Recipe((self.manager, "run", *offline, tool, *arguments), machine=machine))
        found.append(Recipe((tool, *arguments), machine=machine))
        return tuple(found)

    def _of(self, tools: tuple[_Tool, ...]) -> tuple[Recipe, ...]:
        for tool, arguments, machine in tools:
            if self.uses(tool):
                return self._recipes(tool, self._named(tool, arguments), machine)
        return ()

    def _unasked(self, tool: _Tool) -> tuple[Recipe, ...]:
        """What a project can be looked over with though it is not set up for it, if it is there."""
        name, arguments, machine = tool
        return (Recipe((name, *arguments), machine=machine),) if self.project.installed(name) else ()

    def _named(self, tool: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
        """mypy has to be told what to look at where its settings do not say."""
        if tool != "mypy":
            return arguments
        settings = {
            **self.project.ini(_SETUP).get("mypy", {}),
            **self.project.ini("mypy.ini").get("mypy", {}),
            **self.project.ini(".mypy.ini").get("mypy", {}),
            **table(self.tools, "mypy"),
        }
        return arguments if settings.keys() & {"files", "packages", "modules"} else (*arguments, ".")

    def _testing(self) -> tuple[Recipe, ...]:
        if self.uses("pytest") or self.project.has(*(f"{name}/bin/pytest" for name in _ENVIRONMENTS)):
            return self._recipes("pytest", ())
        unittest = (self.environment or "python3", "-m", "unittest")
        if self.project.has("tests/__init__.py", "test/__init__.py", "tests.py", "test.py"):
            return (Recipe(unittest),)
        # What is no package is not found from above.
        directory = self.project.first("tests", "test")
        return (Recipe((*unittest, "discover", "-s", directory)),) if directory else ()

    def _building(self) -> tuple[Recipe, ...]:
        if "build-system" not in self.project.toml(_PYPROJECT):
            python = self.environment or "python3"
            return (Recipe((python, "setup.py", "build")),) if self.project.has("setup.py") else ()
        build = Recipe(("pyproject-build", *self._without_network("--no-isolation")))
        if self.manager in {"poetry", "pdm"}:
            return (Recipe((self.manager, "build")), build)
        if self.manager == "uv":
            return (Recipe(("uv", "build", *self._without_network("--no-build-isolation"))), build)
        return (Recipe(("hatch", "build")), build) if "hatch" in self.tools else (build,)

    def _restoring(self) -> tuple[Recipe, ...]:
        if self.manager:
            return (Recipe((self.manager, "sync" if self.manager == "uv" else "install")),)
        listed = self.project.first(*_REQUIREMENTS)
        if listed is None and not self.project.has("setup.py", _SETUP) and not self.project.toml(_PYPROJECT):
            return ()
        wanted = ("-r", listed) if listed else ("-e", ".")
        if self.environment:
            return (Recipe((self.environment, "-m", "pip", "install", *wanted)),)
        made = (f"{_ENVIRONMENTS[0]}/bin/python", "-m", "pip", "install", *wanted)
        return (Recipe(made, needs=("python3",)).after(("python3", "-m", "venv", _ENVIRONMENTS[0])),)

    def _scripts(self) -> tuple[Task, ...]:
        """Those of hatch and pdm, and of poethepoet."""
        described: list[tuple[str, tuple[str, ...], Mapping[str, Any]]] = [
            ("", ("pdm", "run"), table(self.tools, "pdm", "scripts")),
            ("", ("poe",), table(self.tools, "poe", "tasks")),
        ]
        for name in table(self.tools, "hatch", "envs"):
            prefix = "" if name == "default" else f"{name}:"
            described.append((prefix, ("hatch", "run"), table(self.tools, "hatch", "envs", name, "scripts")))
        return tuple(
            Task(name, Recipe((*argv, name)), text)
            for prefix, argv, scripts in described
            for name, text in usable((prefix + name, _text(value)) for name, value in scripts.items())
        )

    def _without_network(self, option: str) -> tuple[str, ...]:
        return () if self.project.network else (option,)


def _text(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("help") or value.get("cmd") or value.get("shell")
    if isinstance(value, list):
        value = " && ".join(each for each in value if isinstance(each, str))
    return value if isinstance(value, str) else ""


def _python(project: Project) -> Offer | None:
    if not project.has(_PYPROJECT, "setup.py", *_REQUIREMENTS, "Pipfile", "uv.lock") and not (
        {"metadata", "options"} & project.ini(_SETUP).keys()
    ):
        return None
    return _Python(project).offer()


def _tox(project: Project) -> Offer | None:
    sections = project.ini("tox.ini") or project.ini(_SETUP)
    tools = table(project.toml(_PYPROJECT), "tool")
    is_set_up = project.has("tox.toml") or "tox" in tools
    if not is_set_up and not any(name.partition(":")[0] in {"tox", "testenv"} for name in sections):
        return None
    settings = project.toml("tox.toml") or table(tools, "tox")
    listed = (*_strings(settings.get("env_list")), *table(settings, "env"))
    named = usable([*tox_environments(sections), *((name, "") for name in listed)])
    tasks = tuple(Task(name, Recipe(("tox", "run", "-e", name), separator=("--",)), text) for name, text in named)
    return Offer({**usual(tasks), "test": (Recipe(("tox", "run"), separator=("--",)),)}, tasks)


def _nox(project: Project) -> Offer:
    named = nox_sessions(project.text("noxfile.py") or "")
    tasks = tuple(Task(name, Recipe(("nox", "-s", name), separator=("--",)), text) for name, text in named)
    return Offer({"test": (Recipe(("nox",), separator=("--",)),), **usual(tasks)}, tasks)


PYTHON: Final = (
    Ecosystem("python", "Python", (_PYPROJECT, "setup.py", _SETUP, *_REQUIREMENTS, "Pipfile", "uv.lock"), _python),
    Ecosystem("tox", "Python (tox)", ("tox.ini", "tox.toml", _PYPROJECT, _SETUP), _tox),
    Ecosystem("nox", "Python (nox)", ("noxfile.py",), _nox),
)
