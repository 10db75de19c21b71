# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detect the commands that build, test and check a project, and run them."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, NotAuthorized, NotFound, ReadOnly
from mcpd.model import printable
from mcpd.servers.workstation.ci.ecosystems import ECOSYSTEMS, NAMES
from mcpd.servers.workstation.ci.projects import USUAL, opened_project
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.processes import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.ci.projects import Ecosystem, Kind, Project, Recipe, Task
    from mcpd.servers.workstation.jail import Place

_MAX_BELOW: Final = 200
"""Maximum number of subdirectories to examine."""
_NO_PROJECTS: Final = frozenset({"build", "node_modules", "target", "vendor", "venv"})
"""Names of directories with projects of others."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The recipe chosen for a command."""

    recipe: Recipe
    missing: tuple[str, ...]
    """Its programs that are not installed."""


@dataclass(frozen=True, slots=True)
class Found:
    """One ecosystem of a project."""

    ecosystem: Ecosystem
    markers: tuple[str, ...]
    """The files by which it was detected."""
    choices: Mapping[Kind, Choice]
    tasks: tuple[tuple[Task, Choice], ...]


@dataclass(frozen=True, slots=True)
class Detection:
    """The ecosystems detected in a directory."""

    place: Place
    found: tuple[Found, ...]
    problems: tuple[str, ...]
    """Files that could not be read, each with the reason."""


def detect(call: Call, path: str) -> Detection:
    """Detect the projects in the directory *path* from its files, without running anything. Raises McpdError."""
    place = call.jail.place(path)
    with opened_project(call, place) as project:
        found = tuple(each for ecosystem in ECOSYSTEMS if (each := _find(call, project, ecosystem)) is not None)
        return Detection(place, found, tuple(project.problems))


def projects_below(call: Call, place: Place) -> tuple[str, ...]:
    """Return the names of the subdirectories of *place* that have a marker of some ecosystem."""
    markers = tuple(dict.fromkeys(marker for ecosystem in ECOSYSTEMS for marker in ecosystem.markers))
    found = []
    with opened_project(call, place) as project:
        for name in project.directories(_MAX_BELOW):
            if name in _NO_PROJECTS:
                continue
            # The directory was renamed meanwhile, or is not accessible: its project could not be used.
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


_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, moves
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]"
    r"|\x1b"
)
"""Escape sequences of ECMA-48. An unterminated one matches only at its beginning; no part can match in two ways."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_OVERWRITTEN: Final = re.compile(r"^.*\r(?!$)", re.MULTILINE)
_PIECE: Final = 64 * 1024
_FIRST_LINE: Final = 4096
"""Maximum number of bytes to omit so that the output begins with a whole line."""
_CONTINUATION: Final = range(0x80, 0xC0)


def plain(text: str) -> str:
    """Return *text* without escape sequences and control characters; an overwritten line has its final text.

    The text is processed in pieces, of whole lines unless these are very long, as each piece blocks other threads.
    """
    pieces = []
    start = 0
    while start < len(text):
        end = text.rfind("\n", start, start + _PIECE) + 1 or start + _PIECE
        pieces.append(_plain(text[start:end]))
        start = end
    return "".join(pieces)


def _plain(text: str) -> str:
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n")
    return _CONTROLS.sub("", _OVERWRITTEN.sub("", text).replace("\r", ""))


def end_of(data: bytes, most: int, *, is_cut: bool = False) -> tuple[str, bool]:
    """Return the last *most* bytes of *data* as plain text that begins with a line, and whether there was more.

    With *is_cut*, data before *data* is missing already. A long line is cut anywhere.
    """
    cut = data[-most:] if most else b""
    is_cut |= len(cut) < len(data)
    if is_cut:
        newline = cut.find(b"\n", 0, _FIRST_LINE)
        if 0 <= newline < len(cut) - 1:
            cut = cut[newline + 1 :]
        else:
            cut = cut[next((n for n, byte in enumerate(cut[:4]) if byte not in _CONTINUATION), 0) :]
    return plain(cut.decode("utf-8", "replace")), is_cut


def last_lines(text: str, most: int) -> str:
    """Return the last *most* characters of *text*, from the beginning of a line if possible."""
    if len(text) <= most:
        return text
    start = text.find("\n", len(text) - most)
    return text[start + 1 :] if 0 <= start < len(text) - 1 else text[-most:]


_INSTEAD: Final[dict[Kind, tuple[Kind, ...]]] = {"check": ("lint", "build")}
"""Kinds to run instead if no ecosystem of the project has the kind."""
_SHOWN: Final = 20
"""Maximum number of names in a message."""
_PAUSE: Final = 0.25
"""Seconds between two progress reports."""


@dataclass(frozen=True, slots=True)
class Run:
    """A command that has ended, whether it succeeded or failed."""

    ecosystem: str
    """Its name in :data:`.ecosystems.ECOSYSTEMS`."""
    argv: tuple[str, ...]
    """The command; if one of the commands before it failed, that one."""
    directory: str
    """The absolute path of its working directory."""
    exit_code: int
    seconds: float
    output: str = field(repr=False)
    """The end of stdout and stderr, interleaved: without escape sequences, invalid UTF-8 replaced."""
    truncated: bool
    """True if there was output before that."""

    @property
    def summary(self) -> str:
        """The command and its result, for people."""
        how = f"failed with exit status {self.exit_code}" if self.exit_code else "succeeded"
        return f"{shown_name(shlex.join(self.argv))} {how} after {self.seconds:g} s"


async def run_kind(
    call: Call,
    path: str,
    kind: Kind,
    *,
    ecosystem: str | None,
    arguments: Sequence[str],
    most: int,
    machine: bool = False,
) -> Run:
    """Run the project's command for *kind* in the directory *path*; keep at most *most* bytes of the output.

    *machine* requests the program's machine-readable format (JSON, or one line for each finding) if there is one. A
    command that fails is not an error. Raises :class:`~mcpd.errors.NotFound` without a project or command,
    :class:`~mcpd.errors.InvalidArgument` for an unknown *ecosystem*, :class:`~mcpd.errors.NotAuthorized` for "restore"
    without the network, and the errors of :meth:`.call.Call.run`.
    """
    if kind == "restore" and not call.settings.allow_network:
        raise NotAuthorized(
            "fetching dependencies takes the network; allow it with: mcpctl config set workstation allow_network=true,"
            " or --allow-network where the server is started"
        )
    detection = await call.in_thread(lambda: _detected(call, path, ecosystem))
    candidates = _candidates(detection, ecosystem)
    for each in (kind, *_INSTEAD.get(kind, ())):
        fit = [(found, found.choices[each]) for found in candidates if each in found.choices]
        if fit:
            return await _run(call, detection, fit, arguments, most, machine=machine)
    names = ", ".join(found.ecosystem.name for found in candidates)
    raise NotFound(
        f"{detection.place.shown}: there is no command to {kind} with for {names}, nor a task called"
        f" {' or '.join(USUAL[kind])}; ci_detect shows what there is"
    )


async def run_task(
    call: Call, path: str, name: str, *, ecosystem: str | None, arguments: Sequence[str], most: int
) -> Run:
    """Run the task *name* of the project in the directory *path*. Otherwise like :func:`run_kind`."""
    detection = await call.in_thread(lambda: _detected(call, path, ecosystem))
    candidates = _candidates(detection, ecosystem)
    fit = [(found, choice) for found in candidates for task, choice in found.tasks if task.name == name]
    if not fit:
        raise NotFound(_no_task(detection, candidates, name))
    return await _run(call, detection, fit, arguments, most)


def _detected(call: Call, path: str, ecosystem: str | None) -> Detection:
    """Return the projects in *path*, at least one. Raises :class:`~mcpd.errors.NotFound` without any."""
    if ecosystem is not None and ecosystem not in NAMES:
        raise InvalidArgument(f"ecosystem {printable(ecosystem)!r} is none of {', '.join(NAMES)}")
    detection = detect(call, path)
    if detection.found:
        return detection
    below = projects_below(call, detection.place)
    where = detection.place.shown
    if below:
        listed = ", ".join(map(printable, below[:_SHOWN]))
        raise NotFound(f"{where} holds no project that is known, but these in it do: {listed}{_told(detection)}")
    looked = ", ".join(dict.fromkeys(marker for each in ECOSYSTEMS for marker in each.markers))
    raise NotFound(f"{where} holds no project that is known, which would have one of {looked}{_told(detection)}")


def _told(detection: Detection) -> str:
    return "".join(f"; {printable(each)}" for each in detection.problems[:3])


def _candidates(detection: Detection, ecosystem: str | None) -> Sequence[Found]:
    if ecosystem is None:
        return detection.found
    found = [each for each in detection.found if each.ecosystem.name == ecosystem]
    if not found:
        there = ", ".join(each.ecosystem.name for each in detection.found)
        where = detection.place.shown
        raise NotFound(f"{where} holds no project of {ecosystem}; what there is: {there}{_told(detection)}")
    return found


def _no_task(detection: Detection, candidates: Sequence[Found], name: str) -> str:
    names = list(dict.fromkeys(task.name for found in candidates for task, _ in found.tasks))
    message = f"{detection.place.shown} has no task {printable(name)!r}"
    if not names:
        return f"{message}, nor any other: {', '.join(found.ecosystem.name for found in candidates)} was looked at"
    if near := difflib.get_close_matches(name, names, n=3, cutoff=0.5):
        return f"{message}; the nearest are {', '.join(near)}"
    more = f" and {len(names) - _SHOWN} more, see ci_detect" if len(names) > _SHOWN else ""
    return f"{message}; there are {', '.join(names[:_SHOWN])}{more}"


async def _run(
    call: Call,
    detection: Detection,
    fit: Sequence[tuple[Found, Choice]],
    arguments: Sequence[str],
    most: int,
    *,
    machine: bool = False,
) -> Run:
    """Run the first of *fit* whose programs are installed."""
    found, choice = next(((found, choice) for found, choice in fit if not choice.missing), fit[0])
    if choice.missing:
        command = " ".join(choice.recipe.argv)
        raise NotFound(
            f"{printable(command)}: {', '.join(map(printable, choice.missing))} is not installed; install it, or add"
            " the directory it is in to toolchains"
        )
    recipe = choice.recipe
    output = bytearray()
    is_cut = False
    started = time.monotonic()
    code, argv = 0, recipe.argv
    on_line = _reporting(call)
    for argv in (*recipe.before, recipe.full(arguments, machine=machine)):
        completed = await call.run(
            Command(
                argv=_in_project(detection, argv),
                place=detection.place,
                env=recipe.env,
                writes=True,
                most=most,
                keep="tail",
                merge=True,
                on_line=on_line,
            )
        )
        is_cut = completed.truncated or is_cut
        output += completed.stdout
        code = completed.code
        if code != 0:
            break
    seconds = round(time.monotonic() - started, 3)
    text, truncated = await call.in_thread(lambda: end_of(bytes(output), most, is_cut=is_cut))
    return Run(found.ecosystem.name, argv, detection.place.path, code, seconds, text, truncated)


def _in_project(detection: Detection, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return *argv* with the absolute path of a program that is a file of the project."""
    program = argv[0]
    if "/" in program:
        program = os.path.join(detection.place.path, program.removeprefix("./"))  # noqa: PTH118
    return (program, *argv[1:])


def _reporting(call: Call) -> Callable[[bytes], None] | None:
    """Return a function that reports lines of output as progress, at most one every :data:`_PAUSE` seconds."""
    if not call.wants_progress:
        return None
    lines = 0
    last = -_PAUSE

    def on_line(line: bytes) -> None:
        nonlocal lines, last
        lines += 1
        now = time.monotonic()
        if now - last >= _PAUSE:
            last = now
            call.report(lines, None, printable(plain(line[:500].decode("utf-8", "replace"))))

    return on_line
