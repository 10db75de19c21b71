# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of ecosystems. What a project has several of counts in this order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.makers import GENERATORS, MAKERS
from mcpd.servers.workstation.ci.node_projects import NODE
from mcpd.servers.workstation.ci.project import table
from mcpd.servers.workstation.ci.python_projects import PYTHON
from mcpd.servers.workstation.ci.recipes import Ecosystem, Kind, Offer, Recipe, Task, fixed, usual
from mcpd.servers.workstation.ci.tasks import gradle_tasks, rake_tasks, usable, zig_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.servers.workstation.ci.project import Project

_SOLUTIONS: Final = ("*.sln", "*.slnx", "*.csproj", "*.fsproj", "*.vbproj")
_GRADLE_FILES: Final = ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts")
_GOLANGCI: Final = (".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json")
_CABAL: Final = ("cabal.project", "*.cabal")
_JSON: Final = ("--message-format=json",)
_DOTNET: Final = {"DOTNET_CLI_TELEMETRY_OPTOUT": "1", "DOTNET_NOLOGO": "1", "DOTNET_CLI_UI_LANGUAGE": "en"}


def _cargo(project: Project) -> Offer:
    # Without the network it says at once which package it lacks, instead of trying again and again.
    env = {} if project.network else {"CARGO_NET_OFFLINE": "true"}

    def recipes(*argv: str, machine: tuple[str, ...] = (), needs: tuple[str, ...] = ()) -> tuple[Recipe, ...]:
        return (Recipe(("cargo", *argv), machine=machine, needs=needs, env=env),)

    aliases = table(project.toml(".cargo/config.toml"), "alias")
    described = (
        (name, " ".join(map(str, text)) if isinstance(text, list) else str(text)) for name, text in aliases.items()
    )
    tasks = tuple(Task(name, recipes(name)[0], text) for name, text in usable(described))
    return Offer(
        {
            "check": recipes("check", "--all-targets", machine=_JSON),
            "build": recipes("build", machine=_JSON),
            "test": recipes("test"),
            "lint": recipes("clippy", "--all-targets", machine=_JSON, needs=("cargo-clippy",)),
            "restore": recipes("fetch"),
        },
        tasks,
    )


def _go(project: Project) -> Offer:
    env = {} if project.network else {"GOPROXY": "off", "GOTOOLCHAIN": "local"}

    def recipes(*argv: str) -> tuple[Recipe, ...]:
        return (Recipe(("go", *argv), env=env),)

    vet = recipes("vet", "./...")
    return Offer(
        {
            "check": vet,
            "build": recipes("build", "./..."),
            "test": recipes("test", "./..."),
            "lint": (Recipe(("golangci-lint", "run"), env=env), *vet) if project.has(*_GOLANGCI) else vet,
            "restore": recipes("mod", "download"),
        }
    )


def _dotnet(project: Project) -> Offer:
    """The solution or project is named, as dotnet does not choose among several."""
    name = f"./{project.matching(*_SOLUTIONS)[0]}"

    def recipe(*argv: str) -> tuple[Recipe, ...]:
        return (Recipe(("dotnet", argv[0], name, *argv[1:]), env=_DOTNET),)

    return Offer(
        {
            "build": recipe("build", "--nologo"),
            "test": recipe("test", "--nologo"),
            "lint": recipe("format", "--verify-no-changes", "--no-restore"),
            "restore": recipe("restore"),
        }
    )


def _maven(project: Project) -> Offer:
    offline = () if project.network else ("-o",)

    def recipes(*goals: str) -> tuple[Recipe, ...]:
        env = {"MAVEN_OPTS": f"-Duser.home={project.home}"}
        return _wrapped(project, "./mvnw", "mvn", ("-B", "-ntp", *offline, *goals), env)

    return Offer(
        {
            "check": recipes("test-compile"),
            "build": recipes("package", "-DskipTests"),
            "test": recipes("test"),
            "restore": recipes("dependency:go-offline"),
        }
    )


def _gradle(project: Project) -> Offer:
    common = ("--console=plain", "--no-daemon", *(() if project.network else ("--offline",)))

    def recipes(*names: str) -> tuple[Recipe, ...]:
        env = {"GRADLE_USER_HOME": f"{project.home}/.gradle"}
        return _wrapped(project, "./gradlew", "gradle", (*common, *names), env)

    script = project.first(*_GRADLE_FILES[:2])
    named = gradle_tasks(project.text(script) or "") if script else []
    return Offer(
        {
            "check": recipes("testClasses"),
            "build": recipes("assemble"),
            "test": recipes("test"),
            "lint": recipes("check", "-x", "test"),
            "restore": recipes("assemble", "testClasses"),
        },
        tuple(Task(name, recipes(name)[0]) for name, _ in named),
    )


def _wrapped(
    project: Project, wrapper: str, program: str, arguments: tuple[str, ...], env: Mapping[str, str]
) -> tuple[Recipe, ...]:
    """By the project's own wrapper, which loads the program from the network, or by the one that is installed."""
    own = (Recipe((wrapper, *arguments), env=env),) if project.has(wrapper.removeprefix("./")) else ()
    installed = (Recipe((program, *arguments), env=env),)
    return own + installed if project.network or not project.installed(program) else installed + own


def _composer(project: Project) -> Offer:
    scripts = table(project.json("composer.json"), "scripts")
    about = table(project.json("composer.json"), "scripts-descriptions")
    named = usable((name, str(about.get(name, ""))) for name in scripts if not name.startswith(("pre-", "post-")))
    tasks = tuple(Task(name, Recipe(("composer", "run-script", name), separator=("--",)), text) for name, text in named)
    commands: dict[Kind, tuple[Recipe, ...]] = {}
    if project.has("vendor/bin/phpunit"):
        commands["test"] = (Recipe(("vendor/bin/phpunit",)),)
    if project.has("vendor/bin/phpstan"):
        commands["check"] = (Recipe(("vendor/bin/phpstan", "analyse", "--no-progress")),)
    commands["restore"] = (Recipe(("composer", "install", "--no-interaction")),)
    return Offer({**commands, **{kind: each for kind, each in usual(tasks).items() if kind != "restore"}}, tasks)


def _ruby(project: Project) -> Offer:
    bundle = ("bundle", "exec") if project.has("Gemfile") else ()
    rakefile = project.first("Rakefile", "rakefile", "Rakefile.rb")
    named = rake_tasks(project.text(rakefile) or "") if rakefile else []
    tasks = tuple(Task(name, Recipe((*bundle, "rake", name)), text) for name, text in named)
    commands: dict[Kind, tuple[Recipe, ...]] = {**usual(tasks)}
    if project.has(".rspec", "spec"):
        commands["test"] = (Recipe((*bundle, "rspec")), *commands.get("test", ()))
    if project.has(".rubocop.yml"):
        commands["lint"] = (Recipe((*bundle, "rubocop")),)
    if bundle:
        commands["restore"] = (Recipe(("bundle", "install")),)
    return Offer(commands, tasks)


def _swift(project: Project) -> Offer:
    commands: dict[Kind, tuple[Recipe, ...]] = {
        "build": (Recipe(("swift", "build")),),
        "test": (Recipe(("swift", "test")),),
        "restore": (Recipe(("swift", "package", "resolve")),),
    }
    if project.has(".swiftlint.yml"):
        commands["lint"] = (Recipe(("swiftlint", "lint", "--quiet")),)
    return Offer(commands)


def _zig(project: Project) -> Offer:
    steps = zig_steps(project.text("build.zig") or "")
    tasks = tuple(Task(name, Recipe(("zig", "build", name)), text) for name, text in steps)
    return Offer({"build": (Recipe(("zig", "build")),), **usual(tasks)}, tasks)


def _mix(project: Project) -> Offer:
    lint = ("mix", "credo") if project.has(".credo.exs") else ("mix", "format", "--check-formatted")
    return Offer(
        {
            "build": (Recipe(("mix", "compile")),),
            "test": (Recipe(("mix", "test")),),
            "lint": (Recipe(lint),),
            "restore": (Recipe(("mix", "deps.get")),),
        }
    )


def _dart(project: Project) -> Offer:
    uses_flutter = re.search(r"^\s+sdk:\s*flutter\s*$", project.text("pubspec.yaml") or "", re.MULTILINE)
    program = "flutter" if uses_flutter else "dart"
    return Offer(
        {
            "check": (Recipe((program, "analyze")),),
            "test": (Recipe((program, "test")),),
            "lint": (Recipe((program, "analyze")),),
            "restore": (Recipe((program, "pub", "get")),),
        }
    )


ECOSYSTEMS: Final[tuple[Ecosystem, ...]] = (
    *MAKERS,
    *NODE,
    Ecosystem("cargo", "Rust (Cargo)", ("Cargo.toml",), _cargo),
    Ecosystem("go", "Go", ("go.mod", "go.work"), _go),
    PYTHON[0],
    Ecosystem("dotnet", ".NET", _SOLUTIONS, _dotnet),
    Ecosystem("maven", "Java (Maven)", ("pom.xml",), _maven),
    Ecosystem("gradle", "Java (Gradle)", _GRADLE_FILES, _gradle),
    *GENERATORS,
    Ecosystem("composer", "PHP (Composer)", ("composer.json",), _composer),
    Ecosystem("ruby", "Ruby", ("Gemfile", "Rakefile", "rakefile", "Rakefile.rb"), _ruby),
    Ecosystem("swift", "Swift", ("Package.swift",), _swift),
    Ecosystem("zig", "Zig", ("build.zig",), _zig),
    Ecosystem("mix", "Elixir (Mix)", ("mix.exs",), _mix),
    Ecosystem("dart", "Dart", ("pubspec.yaml",), _dart),
    Ecosystem(
        "stack",
        "Haskell (Stack)",
        ("stack.yaml",),
        fixed({"build": ("stack", "build"), "test": ("stack", "test"), "restore": ("stack", "setup")}),
    ),
    Ecosystem(
        "cabal",
        "Haskell (Cabal)",
        _CABAL,
        fixed({"build": ("cabal", "build", "all"), "test": ("cabal", "test", "all")}),
    ),
    Ecosystem("dune", "OCaml (Dune)", ("dune-project",), fixed({"build": ("dune", "build"), "test": ("dune", "test")})),
    Ecosystem(
        "sbt",
        "Scala (sbt)",
        ("build.sbt",),
        fixed({"build": ("sbt", "-batch", "compile"), "test": ("sbt", "-batch", "test")}),
    ),
    Ecosystem(
        "bazel",
        "Bazel",
        ("MODULE.bazel", "WORKSPACE.bazel", "WORKSPACE"),
        fixed(
            {
                "build": ("bazel", "build", "//..."),
                "test": ("bazel", "test", "//..."),
                "restore": ("bazel", "fetch", "//..."),
            }
        ),
    ),
    *PYTHON[1:],
)
NAMES: Final = tuple(each.name for each in ECOSYSTEMS)
