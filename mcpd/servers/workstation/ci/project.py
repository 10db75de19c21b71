# SPDX-License-Identifier: LGPL-2.1-or-later
"""A project's directory as detection sees it: which names are in it, and what its few telling files say."""

from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import McpdError
from mcpd.model import printable
from mcpd.servers.workstation.ci.tasks import ini_sections, plain_json
from mcpd.servers.workstation.filesystem.names import is_addressable
from mcpd.servers.workstation.jail import translated
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place

MAX_FILE: Final = 1024 * 1024
"""Bytes of a file that is read; a project's own description is far smaller."""
MAX_SETTINGS: Final = 256 * 1024
"""Characters of JSON, TOML or INI that are parsed: that takes longer than reading does."""
_MAX_SAME: Final = 64
"""Names with one suffix that are looked at."""


class Project:
    """One directory. A file that cannot be read is as good as absent, and :attr:`problems` says why."""

    def __init__(self, call: Call, place: Place, fd: int) -> None:
        self.place = place
        self.network = call.settings.allow_network
        """Whether commands may use the network."""
        self.home = str(call.settings.state / "home")
        """What HOME is for commands, for those that ask the password database instead."""
        self.problems: list[str] = []
        self._call = call
        self._fd = fd
        self._texts: dict[str, str | None] = {}
        self._read_as: dict[str, Mapping[str, Any]] = {}
        self._installed: dict[str, bool] = {}
        self._by_suffix: dict[str, list[str]] | None = None

    def installed(self, program: str) -> bool:
        """Whether *program* is there: in the project if it has a slash, else where commands are found."""
        if program not in self._installed:
            own = self._exists(program.removeprefix("./")) if "/" in program else None
            self._installed[program] = self._call.which(program) is not None if own is None else own
        return self._installed[program]

    def has(self, *paths: str) -> bool:
        """Whether any of *paths*, relative to the project, exists, be it as a symlink to wherever."""
        return any(self._exists(path) for path in paths)

    def first(self, *paths: str) -> str | None:
        """The first of *paths* that exists."""
        return next((path for path in paths if self._exists(path)), None)

    def matching(self, *patterns: str) -> list[str]:
        """The files in the directory that are called as one of *patterns*, or end as one of the form ``*.suffix``."""
        found = []
        for pattern in patterns:
            if pattern.startswith("*."):
                found += self._suffixes().get(pattern[1:], [])
            elif self._exists(pattern, or_directory=False):
                found.append(pattern)
        return found

    def ini(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """The sections of *name*; empty if it cannot be read."""
        return self._parsed(name, ini_sections)

    def directories(self, most: int) -> list[str]:
        """The names of at most *most* directories in it, sorted; no hidden ones, and no symlinks."""
        found = []
        with translated(self.place, "listing"), os.scandir(self._fd) as entries:
            for entry in entries:
                self._call.check()
                shown = is_addressable(entry.name) and not entry.name.startswith(".")
                if shown and entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
                    if len(found) >= most:
                        break
        return sorted(found)

    def text(self, name: str) -> str | None:
        """What the file *name* says, with U+FFFD for what is no UTF-8; None if it cannot be read or is not there."""
        if name not in self._texts:
            self._texts[name] = self._read(name) if self._exists(name) else None
        return self._texts[name]

    def toml(self, name: str) -> Mapping[str, Any]:
        """The tables of *name*; empty if it cannot be read."""
        return self._parsed(name, parse_toml)

    def json(self, name: str) -> Mapping[str, Any]:
        """The object of *name*, which may have comments; empty if it cannot be read."""
        return self._parsed(name, lambda text: json.loads(plain_json(text)))

    def _exists(self, path: str, *, or_directory: bool = True) -> bool:
        above, _, name = path.rpartition("/")
        if not above:
            return _is_in(self._fd, name, or_directory=or_directory)
        place = self.place
        for part in above.split("/"):
            place = place.child(part)
        try:
            with self._call.jail.opened(place, os.O_PATH | os.O_DIRECTORY) as fd:
                return _is_in(fd, name, or_directory=or_directory)
        except McpdError:
            return False

    def _suffixes(self) -> dict[str, list[str]]:
        if self._by_suffix is None:
            found: dict[str, list[str]] = {}
            with translated(self.place, "listing"), os.scandir(self._fd) as entries:
                for entry in entries:
                    self._call.check()
                    suffix = os.path.splitext(entry.name)[1]  # noqa: PTH122 - a name, not a path
                    same = found.setdefault(suffix, []) if suffix in SUFFIXES else []
                    if len(same) < _MAX_SAME and is_addressable(entry.name) and not entry.is_dir(follow_symlinks=False):
                        same.append(entry.name)
            self._by_suffix = {suffix: sorted(names) for suffix, names in found.items()}
        return self._by_suffix

    def _read(self, name: str) -> str | None:
        place = self.place.child(name)
        try:
            with self._call.jail.file(place) as fd, translated(place, "reading"):
                data = bytearray()
                while len(data) <= MAX_FILE and (chunk := os.read(fd, MAX_FILE + 1 - len(data))):
                    data += chunk
        except McpdError as error:
            self.problems.append(f"{name} was not read: {error.message}")
            return None
        if len(data) > MAX_FILE:
            self.problems.append(f"{name} was not read: it has more than {MAX_FILE} bytes")
            return None
        return data.decode("utf-8-sig", "replace")

    def _parsed(self, name: str, parse: Callable[[str], object]) -> Mapping[str, Any]:
        """What *name* says, which is parsed once: several ecosystems ask for the same file, each in the same way."""
        if name not in self._read_as:
            self._call.check()
            self._read_as[name] = self._parsed_now(name, parse)
        return self._read_as[name]

    def _parsed_now(self, name: str, parse: Callable[[str], object]) -> Mapping[str, Any]:
        text = self.text(name)
        if text is None:
            return {}
        if len(text) > MAX_SETTINGS:
            self.problems.append(f"{name} was not read: it has more than {MAX_SETTINGS} characters")
            return {}
        try:
            found = parse(text)
        except (ValueError, RecursionError) as error:
            self.problems.append(f"{name} cannot be parsed: {printable(str(error))}")
            return {}
        if not isinstance(found, dict):
            self.problems.append(f"{name} cannot be parsed: it is no object")
            return {}
        return found


SUFFIXES: Final = frozenset({".sln", ".slnx", ".csproj", ".fsproj", ".vbproj", ".cabal"})
"""The only ones that :meth:`Project.matching` knows: a directory may have very many names."""


@contextmanager
def opened_project(call: Call, place: Place) -> Iterator[Project]:
    """The project in the directory *place*; raises McpdError if that is none."""
    with call.jail.directory(place) as fd:
        yield Project(call, place, fd)


def _is_in(directory: int, name: str, *, or_directory: bool) -> bool:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return or_directory or not stat.S_ISDIR(status.st_mode)


def table(found: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The table below *keys*, one in the other; empty if there is none."""
    for key in keys:
        inner = found.get(key)
        if not isinstance(inner, dict):
            return {}
        found = inner
    return found
