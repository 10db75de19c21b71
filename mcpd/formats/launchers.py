# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that start a server, and the package sources and permissions derived from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.model.base import printable
from mcpd.package_sources import INDEXES, PYPI, PackageIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_CONTAINERS: Final = frozenset({"docker", "podman"})
_DIRECTORY: Final = frozenset({"--directory", "--project"})
_MODULE: Final = frozenset({"-m", "--module"})


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its arguments."""

    program: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """File name of the program, without the suffixes used on Windows."""
        return re.sub(r"\.(?:exe|cmd|bat|ps1)$", "", re.split(r"[/\\]", self.program)[-1], flags=re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Packaged:
    """The package source of a command, and the command that remains."""

    source: dict[str, Any]
    command: Command | None
    """None if the command only runs the package's own program without naming it."""


def without_uv(command: Command, where: str) -> tuple[Command, str]:
    """Return the command that ``uv run`` starts in the environment of a project, and the project's directory.

    The directory is empty if the command does not name one. Raises :class:`~mcpd.errors.InvalidManifest`, whose message
    begins with *where*, for a command that needs more than the project's packages.
    """
    words, first = _without_options(command.arguments, where)
    if words[:1] != ["run"]:
        raise InvalidManifest(f"{where}: only 'uv run' is supported; install the package itself")
    words, second = _without_options(words[1:], where)
    if not words:
        raise InvalidManifest(f"{where}: uv run does not specify a program to start")
    program, *arguments = words
    if program in _MODULE:
        found = Command("python3", ("-m", *arguments))
    elif program.endswith(".py"):
        found = Command("python3", (program, *arguments))
    else:
        found = Command(program, tuple(arguments))
    return found, second or first


def package_of(command: Command, where: str) -> Packaged | None:
    """Return the package that *command* runs; None if it is not a package runner.

    Raises :class:`~mcpd.errors.InvalidManifest`, beginning with *where*, for a package that mcpd cannot install.
    """
    if command.name in _CONTAINERS:
        raise InvalidManifest(
            f"{where}: a container image: mcpd does not run containers; look for a package of the server"
            " (mcpctl search)"
        )
    words = (command.name, *command.arguments)
    for index in INDEXES.values():
        if length := index.runner_length(words):
            return _packaged(index, words[length:], where)
    return None


def _without_options(words: Sequence[str], where: str) -> tuple[list[str], str]:
    """Return *words* without the leading options of ``uv``, and the directory that these options name."""
    rest, directory = list(words), ""
    while rest and rest[0].startswith("-") and rest[0] not in _MODULE:
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in PYPI.flags:
            continue
        if option not in PYPI.value_options | _DIRECTORY:
            raise InvalidManifest(f"{where}: the option {printable(option)!r} of uv is not supported")
        if not equals:
            value = rest.pop(0) if rest else ""
        directory = value if option in _DIRECTORY else directory
    return rest, directory


def _packaged(index: PackageIndex, words: Sequence[str], where: str) -> Packaged:
    """Return the package named by *words*, the arguments of a runner of *index*."""
    rest, spec = _options(index, words, where)
    has_program = bool(spec)
    if not (spec or rest):
        raise InvalidManifest(f"{where}: the command does not specify a package")
    spec = spec or rest.pop(0)
    if index.runs_git and spec.startswith("git+"):
        source = _git_source(spec.removeprefix("git+"))
        if rest and not has_program:
            raise InvalidManifest(
                f"{where}: the command does not say which program of the repository to run; write it as"
                f" {index.runner} --from REPOSITORY PROGRAM ARGUMENTS"
            )
        has_program = True
    elif found := index.split(re.sub(r"\s*([\[,\]])\s*", r"\1", spec)):
        source = {"type": str(index.type), "package": found[0]} | _version(index, found[1])
    else:
        raise InvalidManifest(
            f"{where}: {_shown(spec)} is not the name of {index.noun}, with or without a version; for a repository or"
            " a directory use mcpctl install git+URL or mcpctl install PATH"
        )
    if has_program:
        return Packaged(source, Command(rest[0], tuple(rest[1:])) if rest else None)
    return Packaged(source, Command(index.runner, (source["package"], *rest)))


def _git_source(text: str) -> dict[str, Any]:
    url, _, fragment = text.partition("#")
    base, at, rev = url.rpartition("@")
    if not at or "/" in rev or "://" not in base:
        base, rev = url, ""
    path = dict(part.partition("=")[::2] for part in fragment.split("&")).get("subdirectory", "")
    return {"type": "git", "url": base} | ({"rev": rev} if rev else {}) | ({"path": path} if path else {})


def _shown(spec: str) -> str:
    """Return *spec* for a message, without addresses, since these may contain credentials."""
    return "an address" if "://" in spec or "@" in spec[1:] else repr(printable(spec))


def _version(index: PackageIndex, text: str) -> dict[str, str]:
    """Return a ``version`` field if *text* is a version; empty for a tag such as ``latest``, which pins nothing."""
    text = text.removeprefix("v")
    return {"version": text} if text[:1].isdigit() and index.is_version(text) else {}


def _options(index: PackageIndex, words: Sequence[str], where: str) -> tuple[list[str], str]:
    """Return *words* without the leading options of a runner of *index*, and the package that an option names."""
    rest, spec = list(words), ""
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in index.flags:
            continue
        names_package = option in index.package_options
        if not (names_package or option in index.value_options) or (names_package and spec):
            raise InvalidManifest(f"{where}: the option {printable(option)!r} of the command is not supported")
        if not equals:
            value = rest.pop(0) if rest else ""
        spec = value if names_package else spec
    return rest, spec


_IN_SANDBOX: Final = tuple(map(PurePosixPath, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/dev")))
"""Directories that are visible in every sandbox, so that they need no permission."""
NIX_STORE: Final = "/nix/store/"
"""Directory that is shared as a whole, because its programs need each other's files."""
_SYSTEM_OWNED: Final = tuple(map(PurePosixPath, ("/opt", "/nix", "/snap", "/etc")))
"""Directories with system files, which servers get read-only."""
_INTERPRETER: Final = re.compile(r"python(?:3(?:\.\d+)?)?|py|node|nodejs|deno|bun")
_PYTHON: Final = re.compile(r"python(?:3(?:\.\d+)?)?|py")
_RUN: Final = frozenset({"run"})
"""Subcommands that may stand between an interpreter and its script."""
_OUTPUTS: Final = frozenset({"dist", "build", "src", "lib", "out", "server"})
"""Subdirectories of a project that typically contain its scripts."""
_ENVIRONMENTS: Final = frozenset({".venv", "venv", "env", ".env"})
_HOMES: Final = frozenset({"home", "Users"})
_SHARED: Final = frozenset(
    {"Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos", "bin", "lib", "share"}
)
"""Names of directories that typically contain unrelated files."""
_ADVICE: Final = "install it by its directory (mcpctl install DIRECTORY --command PROGRAM) or its package"


@dataclass(frozen=True, slots=True)
class Local:
    """The command of a local server, and its package source."""

    source: dict[str, Any] | None
    """None for a program that belongs to the system."""
    command: Command


def local_command(command: Command, cwd: str, where: str) -> Local:
    """Return the directory to install for *command*, and the command with paths relative to it.

    *cwd* is the working directory of the command, empty if unknown. Raises :class:`~mcpd.errors.InvalidManifest`, whose
    message begins with *where* and gives advice, if no directory can be determined.
    """
    if command.name == "uv":
        command, directory = without_uv(command, where)
        cwd = directory or cwd
    if cwd and not cwd.startswith("/"):
        raise InvalidManifest(f"{where}: its working directory {printable(cwd)!r} is not an absolute path; {_ADVICE}")
    program, roots = _program(command, where)
    script = _script(command)
    if not roots and _lies_in(PurePosixPath(script or program), (*_IN_SANDBOX, PurePosixPath(NIX_STORE))):
        # Keep the path of the interpreter, which may have the modules that the script needs.
        program = command.program if command.program.startswith("/") else program
        return Local(None, Command(program, command.arguments))
    if cwd:
        roots.append(PurePosixPath(cwd))
    if script.startswith("/"):
        roots.append(_project(PurePosixPath(script).parent))
    elif not roots and (script or program.startswith(".") or _INTERPRETER.fullmatch(program)):
        raise InvalidManifest(f"{where}: the command does not contain the directory of its program; {_ADVICE}")
    if not roots:
        if not program.startswith("/"):
            raise InvalidManifest(
                f"{where}: the location of {printable(program)!r} depends on the client's PATH; {_ADVICE}"
            )
        return Local(None, Command(program, command.arguments))
    root = _common(roots, where)
    arguments = tuple(_relative(argument, root) for argument in command.arguments)
    return Local({"type": "local", "path": str(root)}, Command(_relative(program, root), arguments))


def permissions_of(texts: Iterable[str]) -> Iterator[str]:
    """Yield permissions for the absolute paths in *texts*, including ``--option=PATH``; system files are read-only."""
    for path in _paths_of(texts):
        if path.is_relative_to(NIX_STORE):
            yield f"filesystem:ro:{NIX_STORE.rstrip('/')}"
        elif not _lies_in(path, _IN_SANDBOX):
            yield f"filesystem:{'ro' if _lies_in(path, _SYSTEM_OWNED) else 'rw'}:{path}"


def _paths_of(texts: Iterable[str]) -> Iterator[PurePosixPath]:
    for text in texts:
        option, equals, value = text.partition("=")
        named = value if equals and option.startswith("-") else text
        path = PurePosixPath(named)
        is_plain = named.startswith("/") and not named.startswith("//") and len(path.parts) > 1
        if is_plain and ".." not in path.parts:
            yield path


def _program(command: Command, where: str) -> tuple[str, list[PurePosixPath]]:
    """Return the program's name after installation, and a list with the directory to install, or an empty list."""
    path, name = PurePosixPath(command.program), command.name
    name = "python3" if _PYTHON.fullmatch(name) else name
    if not path.is_absolute():
        return (name if _INTERPRETER.fullmatch(name) else command.program), []
    if path.parent.name == "bin" and path.parent.parent.name in _ENVIRONMENTS:
        return name, [path.parent.parent.parent]
    if _INTERPRETER.fullmatch(name):
        return name, []
    if _lies_in(path, (*_IN_SANDBOX, *_SYSTEM_OWNED)):
        return command.program, []
    if path.parent.name in {"bin", "sbin"}:
        raise InvalidManifest(f"{where}: {printable(str(path.parent))!r} contains unrelated programs; {_ADVICE}")
    return command.program, [path.parent]


def _script(command: Command) -> str:
    """Return the script given to an interpreter, or an empty string."""
    if not _INTERPRETER.fullmatch(command.name):
        return ""
    for argument in command.arguments:
        if argument in {"-m", "--module", "-c", "-e", "--eval"}:
            return ""
        if not argument.startswith("-") and argument not in _RUN:
            return argument
    return ""


def _project(directory: PurePosixPath) -> PurePosixPath:
    while directory.name in _OUTPUTS:
        directory = directory.parent
    return directory


def _common(roots: Sequence[PurePosixPath], where: str) -> PurePosixPath:
    top = min(roots, key=lambda path: len(path.parts))
    if ".." in top.parts or not all(path.is_relative_to(top) for path in roots):
        raise InvalidManifest(f"{where}: its files are not in one directory; {_ADVICE}")
    if _is_too_broad(top):
        raise InvalidManifest(f"{where}: {printable(str(top))!r} contains more than the server; {_ADVICE}")
    return top


def _lies_in(path: PurePosixPath, directories: Iterable[PurePosixPath]) -> bool:
    return ".." not in path.parts and any(path.is_relative_to(directory) for directory in directories)


def _is_too_broad(directory: PurePosixPath) -> bool:
    """Return whether *directory* also contains unrelated files, which must not be copied or shown to the server.

    This includes hidden directories in a home directory, which contain settings and keys.
    """
    parts = directory.parts[1:]
    within = parts[2:] if parts[:1] and parts[0] in _HOMES else parts[1:]
    if not within:
        return True
    is_home = parts[0] in _HOMES or parts[0] == "root"
    return (is_home and within[-1].startswith(".") and len(within) == 1) or within[-1] in _SHARED


def _relative(text: str, root: PurePosixPath) -> str:
    """Return *text* with a path below *root* made relative to it."""
    option, equals, value = text.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_relative(value, root)}"
    path = PurePosixPath(text)
    if not text.startswith("/") or ".." in path.parts or not path.is_relative_to(root):
        return text
    return f"./{path.relative_to(root)}" if path != root else "."
