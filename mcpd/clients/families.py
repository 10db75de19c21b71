# SPDX-License-Identifier: LGPL-2.1-or-later
"""The client families that are known: those that come with mcpd, the system's, the administrator's, the user's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mcpd.clients.description import FAMILY_ID
from mcpd.clients.family import Family
from mcpd.clients.faults import ClientNotFound
from mcpd.errors import InvalidConfig, McpdError, from_oserror
from mcpd.files import is_missing, read_file, settled, signature
from mcpd.model import printable
from mcpd.paths import Paths, Scope
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcpd.files import Signature

MAX_DATA: Final = 64 * 1024
"""Bytes of one data file."""
MAX_FILES: Final = 1000
"""Data files of one directory."""
FIRST: Final = ("claude-desktop", "cursor")
"""The families that listings begin with."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Look:
    """What a directory held when it was looked at."""

    files: tuple[tuple[str, Signature | None], ...]
    problem: str
    stable: bool
    """Whether a later change cannot go unnoticed."""


class DataFiles(Generic[T]):
    """``NAME.toml`` of several directories, by rising precedence: a file replaces the same NAME of lower ones.

    A file that cannot be used is a problem, and hides nothing. What was read is kept until a file changes.
    """

    def __init__(
        self, directories: Sequence[Path], parse: Callable[[str, Mapping[str, object], str], T], what: str
    ) -> None:
        """*parse* takes NAME, the content and the file's path; *what* NAME is of, for messages."""
        self._directories = tuple(directories)
        self._parse = parse
        self._what = what
        self._seen: list[_Look] | None = None
        self._found: dict[str, T] = {}
        self._problems: list[str] = []

    def read(self) -> tuple[Mapping[str, T], list[str]]:
        """What there is by NAME, and the problems."""
        seen = [self._look(directory) for directory in self._directories]
        if seen != self._seen:
            self._load(seen)
            self._seen = seen if all(look.stable for look in seen) else None
        return self._found, self._problems

    def _look(self, directory: Path) -> _Look:
        """os, as this is for every call, and pathlib would take most of its time."""
        try:
            with os.scandir(directory) as entries:
                names = [each.path for each in entries if each.name.endswith(".toml") and each.name[0] != "."]
        except OSError as error:
            if is_missing(error) and not directory.is_symlink():
                return _Look((), "", stable=True)
            return _Look((), from_oserror(error, f"reading {directory}").message, stable=False)
        if len(names) > MAX_FILES:
            return _Look((), f"{directory}: more than {MAX_FILES} files; none of them is used", stable=False)
        seen = [(path, _status(path)) for path in sorted(names)]
        return _Look(
            tuple((path, signature(status) if status else None) for path, status in seen),
            "",
            stable=all(status is not None and settled(status) for _, status in seen),
        )

    def _load(self, seen: list[_Look]) -> None:
        found: dict[str, T] = {}
        problems: list[str] = []
        for look in seen:
            if look.problem:
                problems.append(look.problem)
            for name, _ in look.files:
                path = Path(name)
                try:
                    found[path.stem] = self._one(path)
                except McpdError as error:
                    problems.append(error.message)
        self._found, self._problems = found, problems

    def _one(self, path: Path) -> T:
        if not FAMILY_ID.fullmatch(path.stem):
            raise InvalidConfig(
                f"{printable(str(path))}: {printable(path.stem)} is no id of a {self._what}: use 1 to 64 of a-z 0-9"
                " . _ - and begin with a letter or digit"
            )
        try:
            data = parse_toml(read_file(path, MAX_DATA))
        except ValueError as error:
            raise InvalidConfig(f"{path}: {error}") from error
        except OSError as error:
            raise from_oserror(error, f"reading {path}") from error
        return self._parse(path.stem, data, str(path))


def _status(path: str) -> os.stat_result | None:
    """What is known of the file *path*; None if that cannot be said, as for a symlink that leads nowhere."""
    try:
        return os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None


def packaged(name: str) -> Path:
    """Where the data files *name* are that come with mcpd: inside the package, or beside it in a source tree."""
    inside = Path(str(files("mcpd.clients") / "data" / name))
    return inside if inside.is_dir() else Path(__file__).parents[2] / "data" / name


class Families:
    """All client families."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """*directories* by rising precedence; one that is missing is empty."""
        self._files = DataFiles(directories, Family.parse, "client")

    @classmethod
    def of(cls, paths: Paths, scope: Scope) -> Families:
        """Those of *scope*."""
        own = [paths.user.clients] if scope is Scope.USER else []
        return cls([packaged("clients"), paths.vendor_clients, paths.system.clients, *own])

    @property
    def problems(self) -> list[str]:
        """One line for every file that cannot be used."""
        return list(self._files.read()[1])

    def all(self) -> list[Family]:
        """Every family: :data:`FIRST` first, then by id."""
        found, _ = self._files.read()
        first = [found[family_id] for family_id in FIRST if family_id in found]
        return first + [found[family_id] for family_id in sorted(found.keys() - set(FIRST))]

    def get(self, client_id: str) -> Family:
        """The family *client_id*.

        Raises :class:`~mcpd.clients.faults.ClientNotFound`, which knows the others.
        """
        found, _ = self._files.read()
        if client_id not in found:
            raise ClientNotFound(printable(client_id), [family.id for family in self.all()])
        return found[client_id]
