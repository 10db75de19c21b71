# SPDX-License-Identifier: LGPL-2.1-or-later
"""From what a package brings to the command that starts the server.

The runtime looks for a bare command in ``.venv/bin`` and ``node_modules/.bin`` of the generation before the system's
directories. So ``python3`` is the virtual environment's where there is one and the system's elsewhere, and the
manifest keeps the words of its author.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest
from mcpd.install.npm import MODULES
from mcpd.install.projectfiles import read_project_file
from mcpd.install.python import VENV, normalise
from mcpd.model import SourceType, Transport, TransportType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.install.outcome import Outcome
    from mcpd.model import Entry

OWN_DIRECTORIES: Final = (f"{VENV}/bin", f"{MODULES}/.bin")
SYSTEM_DIRECTORIES: Final = ("/usr/local/bin", "/usr/bin", "/bin")
_RUNNERS: Final = {"npx": SourceType.NPM, "uvx": SourceType.PYPI, "pipx": SourceType.PYPI}


def settle(entry: Entry, outcome: Outcome, root: Path) -> list[Transport]:
    """The transports of *entry* with a stdio command that *root* really has.

    An entry without transports gets one from the only script of its package, or the one of the same name; ``npx
    PACKAGE`` and ``uvx PACKAGE`` become that script, since it is installed already.

    Raises :class:`~mcpd.errors.InvalidManifest` that names the command and what there is instead.
    """
    transports = list(entry.transports)
    if not transports:
        transports = [Transport(type=TransportType.STDIO, command=_script(entry, outcome), args=[])]
    settled = [_without_runner(entry, outcome, t) if t.type is TransportType.STDIO else t for t in transports]
    for transport in settled:
        if transport.type is TransportType.STDIO:
            _check(entry, transport, root)
    return settled


def _script(entry: Entry, outcome: Outcome) -> str:
    package = normalise(outcome.package.rpartition("/")[2])
    same = [script for script in outcome.scripts if normalise(script) == package]
    if len(outcome.scripts) == 1 or same:
        return (same or list(outcome.scripts))[0]
    found = f"it brings {', '.join(outcome.scripts)}" if outcome.scripts else "it brings no command"
    raise InvalidManifest(f"{entry.id} has no transports and its package does not tell how to start it: {found}")


def _without_runner(entry: Entry, outcome: Outcome, transport: Transport) -> Transport:
    source = entry.source
    if source is None or _RUNNERS.get(transport.command) is not source.type:
        return transport
    words = list(transport.args)
    if transport.command == "pipx" and words[:1] == ["run"]:
        words.pop(0)
    while words and words[0] in {"-y", "--yes", "-q", "--quiet"}:
        words.pop(0)
    if not words or not _names_package(words[0], source.package, source.type):
        return transport
    return transport.model_copy(update={"command": _script(entry, outcome), "args": words[1:]})


def _names_package(word: str, package: str, kind: SourceType) -> bool:
    name = word[: word.index("@", 1)] if "@" in word[1:] else word.partition("==")[0]
    return name == package or (kind is SourceType.PYPI and normalise(name) == normalise(package))


def _check(entry: Entry, transport: Transport, root: Path) -> None:
    command = transport.command
    if not _exists(command, root):
        raise InvalidManifest(
            f"{entry.id}: the command {command[:200]!r} is neither part of the package nor installed on this system"
            + (_meant(command, root) or _needs_build(root))
        )
    script = _script_argument(command, transport.args)
    if script and not _inside(root, script):
        raise InvalidManifest(
            f"{entry.id}: {script[:200]!r}, which {command} should run, is not there{_needs_build(root)}"
        )


def _meant(command: str, root: Path) -> str:
    """Return how *command* is written if it holds arguments, or is a file at the top of *root*; empty if neither."""
    program, _, arguments = command.partition(" ")
    if arguments and _exists(program, root):
        return f"; start {program[:200]!r}, and give it its arguments apart from it (args, mcpctl install --arg)"
    return f"; write {'./' + command[:200]!r} for the file of that name" if _inside(root, command) else ""


def _exists(command: str, root: Path) -> bool:
    if command.startswith("/"):
        return Path(command).exists()
    if "/" in command:
        return _inside(root, command)
    directories = [*(root / name for name in OWN_DIRECTORIES), *map(Path, SYSTEM_DIRECTORIES)]
    return any((directory / command).exists() for directory in directories)


def _inside(root: Path, relative: str) -> bool:
    """Whether *relative* names something in *root*; a link of a virtual environment to its interpreter counts."""
    path = Path(root, relative)
    return path.exists() and path.parent.resolve().is_relative_to(root.resolve())


def _script_argument(command: str, arguments: Sequence[str]) -> str:
    """The file that an interpreter is given as its first argument, if it is one of the project."""
    name = command.rpartition("/")[2]
    first = arguments[0] if arguments else ""
    if not name.startswith(("python", "node")) or first.startswith(("-", "/", "{")):
        return ""
    return first


def _needs_build(root: Path) -> str:
    try:
        scripts = json.loads(read_project_file(root / "package.json") or b"").get("scripts", {})
    except (OSError, InvalidManifest, ValueError, AttributeError, RecursionError):
        return ""
    if not isinstance(scripts, dict) or not {"build", "prepare", "prepack"} & scripts.keys():
        return ""
    return "; the project needs a build step, which is not run: install it from a package registry instead"
