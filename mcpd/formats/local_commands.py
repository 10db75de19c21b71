# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that start a server from files of this machine, and the directory that has to be installed for it.

Nothing here looks at the disk: paths are judged by their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.formats.launchers import Command, without_uv
from mcpd.model.base import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SHOWN: Final = tuple(map(PurePosixPath, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/dev")))
"""What every sandbox has, so that it needs no permission."""
NIX_STORE: Final = "/nix/store/"
"""Where a program needs the files of others, and they theirs."""
_PACKAGED: Final = tuple(map(PurePosixPath, ("/opt", "/nix", "/snap", "/etc")))
"""Where files are the system's as well, which nobody changes by way of a server."""
_INTERPRETER: Final = re.compile(r"python(?:3(?:\.\d+)?)?|py|node|nodejs|deno|bun")
_PYTHON: Final = re.compile(r"python(?:3(?:\.\d+)?)?|py")
_RUN: Final = frozenset({"run"})
"""Words between an interpreter and its script."""
_OUTPUTS: Final = frozenset({"dist", "build", "src", "lib", "out", "server"})
"""Directories within a project in which its scripts lie."""
_ENVIRONMENTS: Final = frozenset({".venv", "venv", "env", ".env"})
_HOMES: Final = frozenset({"home", "Users"})
_SHARED: Final = frozenset(
    {"Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos", "bin", "lib", "share"}
)
"""Directories that hold things of all kinds, of whomever."""
_ELSEWHERE: Final = "install it by its directory (mcpctl install DIRECTORY --command PROGRAM) or its package"


@dataclass(frozen=True, slots=True)
class Local:
    """What is started, and from where."""

    source: dict[str, Any] | None
    """None for a program of the system."""
    command: Command


def local_command(command: Command, cwd: str, where: str) -> Local:
    """The directory to install for *command*, started in *cwd* (empty if the file does not say), paths made relative.

    Raises :class:`~mcpd.errors.InvalidManifest`, beginning with *where*, if there is no such directory; it says what
    to do instead.
    """
    if command.name == "uv":
        command, directory = without_uv(command, where)
        cwd = directory or cwd
    if cwd and not cwd.startswith("/"):
        raise InvalidManifest(f"{where}: its working directory {printable(cwd)!r} is no absolute path; {_ELSEWHERE}")
    program, roots = _program(command, where)
    script = _script(command)
    if not roots and _lies_in(PurePosixPath(script or program), (*_SHOWN, PurePosixPath(NIX_STORE))):
        # What interprets it may bring the modules that it needs.
        program = command.program if command.program.startswith("/") else program
        return Local(None, Command(program, command.arguments))
    if cwd:
        roots.append(PurePosixPath(cwd))
    if script.startswith("/"):
        roots.append(_project(PurePosixPath(script).parent))
    elif not roots and (script or program.startswith(".") or _INTERPRETER.fullmatch(program)):
        raise InvalidManifest(f"{where}: the command does not say in which directory its program lies; {_ELSEWHERE}")
    if not roots:
        if not program.startswith("/"):
            raise InvalidManifest(
                f"{where}: where {printable(program)!r} lies depends on the client's PATH; {_ELSEWHERE}"
            )
        return Local(None, Command(program, command.arguments))
    root = _common(roots, where)
    arguments = tuple(_relative(argument, root) for argument in command.arguments)
    return Local({"type": "local", "path": str(root)}, Command(_relative(program, root), arguments))


def permissions_of(texts: Iterable[str]) -> Iterator[str]:
    """The permissions for the absolute paths that *texts* name, also after ``=``: to read what is the system's."""
    for path in _paths_of(texts):
        if path.is_relative_to(NIX_STORE):
            yield f"filesystem:ro:{NIX_STORE.rstrip('/')}"
        elif not _lies_in(path, _SHOWN):
            yield f"filesystem:{'ro' if _lies_in(path, _PACKAGED) else 'rw'}:{path}"


def _paths_of(texts: Iterable[str]) -> Iterator[PurePosixPath]:
    for text in texts:
        option, equals, value = text.partition("=")
        named = value if equals and option.startswith("-") else text
        path = PurePosixPath(named)
        is_plain = named.startswith("/") and not named.startswith("//") and len(path.parts) > 1
        if is_plain and ".." not in path.parts:
            yield path


def _program(command: Command, where: str) -> tuple[str, list[PurePosixPath]]:
    """The program as it is called once it is installed, and the directory it comes from, if it has one of its own."""
    path, name = PurePosixPath(command.program), command.name
    name = "python3" if _PYTHON.fullmatch(name) else name
    if not path.is_absolute():
        return (name if _INTERPRETER.fullmatch(name) else command.program), []
    if path.parent.name == "bin" and path.parent.parent.name in _ENVIRONMENTS:
        return name, [path.parent.parent.parent]
    if _INTERPRETER.fullmatch(name):
        return name, []
    if _lies_in(path, (*_SHOWN, *_PACKAGED)):
        return command.program, []
    if path.parent.name in {"bin", "sbin"}:
        raise InvalidManifest(f"{where}: {printable(str(path.parent))!r} holds programs of all kinds; {_ELSEWHERE}")
    return command.program, [path.parent]


def _script(command: Command) -> str:
    """The file that an interpreter is given, or empty."""
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
        raise InvalidManifest(f"{where}: its files do not lie in one directory; {_ELSEWHERE}")
    if _holds_more(top):
        raise InvalidManifest(f"{where}: {printable(str(top))!r} holds more than the server; {_ELSEWHERE}")
    return top


def _lies_in(path: PurePosixPath, directories: Iterable[PurePosixPath]) -> bool:
    return ".." not in path.parts and any(path.is_relative_to(directory) for directory in directories)


def _holds_more(directory: PurePosixPath) -> bool:
    """Whether the server can only be one of many things in *directory*, of which none is to be copied and shown to it.

    Directories of a home that begin with a dot hold settings and keys.
    """
    parts = directory.parts[1:]
    within = parts[2:] if parts[:1] and parts[0] in _HOMES else parts[1:]
    if not within:
        return True
    is_home = parts[0] in _HOMES or parts[0] == "root"
    return (is_home and within[-1].startswith(".") and len(within) == 1) or within[-1] in _SHARED


def _relative(text: str, root: PurePosixPath) -> str:
    """*text* with a path in *root* made relative to it."""
    option, equals, value = text.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_relative(value, root)}"
    path = PurePosixPath(text)
    if not text.startswith("/") or ".." in path.parts or not path.is_relative_to(root):
        return text
    return f"./{path.relative_to(root)}" if path != root else "."
