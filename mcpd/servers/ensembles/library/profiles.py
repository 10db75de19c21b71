# SPDX-License-Identifier: LGPL-2.1-or-later
"""The profiles of models, and the other configuration of a tier: ``config.yaml`` and ``profiles/*.yaml``.

An invalid profile is reported by itself and never affects others.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from mcpd.errors import InvalidConfig, NotFound
from mcpd.model import printable
from mcpd.servers.ensembles.format.loading import load_profile, load_profiles
from mcpd.servers.ensembles.format.models import Plexus, Profile
from mcpd.servers.ensembles.format.reading import MAX_SIZE, read
from mcpd.servers.ensembles.library.tiers import (
    CONFIG,
    MOST_NAMES,
    PROFILES,
    SUFFIXES,
    File,
    Memory,
    Signature,
    Tier,
    refusal,
    shown,
    signature,
    unreadable,
    unusable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.servers.ensembles.engine.types import Origin

MOST_FILES: Final = 500
"""Maximum number of profile files in a tier."""
MOST_NAMED: Final = 5
"""Maximum number of similar names in a message."""
MOST_COMPARED: Final = 2000
"""Maximum number of names that are compared with an unknown one."""
CONFIG_PROFILES: Final = "model_profiles"

log = logging.getLogger("llm-orc")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A profile, or an invalid part of a configuration."""

    name: str
    """For an invalid configuration, the name of its file or directory."""
    profile: Profile | None
    origin: Origin
    shadowed: bool = False
    """True if another one of the same name takes precedence."""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Contents:
    """The content of a file."""

    profiles: Mapping[str, Profile | str] = field(default_factory=dict)
    """Profiles by name; for an invalid one its fault."""
    plexus: Plexus | str | None = None
    fault: str | None = None
    """The reason why its profiles are unknown."""


class Profiles:
    """The profiles of all tiers; thread-safe."""

    def __init__(self) -> None:
        self._memory: Memory[_Contents] = Memory(4 * MOST_FILES)

    def entries(self, tiers: Sequence[Tier]) -> list[ProfileEntry]:
        """Return all profiles in *tiers*, for equal names in order of precedence."""
        found: list[ProfileEntry] = []
        taken: set[str] = set()
        for tier in tiers:
            for path, contents in self._contents(tier):
                origin = tier.origin(path)
                for name, profile in contents.profiles.items():
                    usable = profile if isinstance(profile, Profile) else None
                    problem = profile if isinstance(profile, str) else None
                    found.append(ProfileEntry(name, usable, origin, name in taken, problem))
                    taken.add(name)
                wrong = (contents.fault, contents.plexus if isinstance(contents.plexus, str) else None)
                called = path.name if path.name == CONFIG else path.stem
                found += [ProfileEntry(called, None, origin, problem=each) for each in wrong if each is not None]
        return found

    def find(self, name: str, tiers: Sequence[Tier]) -> tuple[Profile, Tier]:
        """Return the profile *name* and its tier, the first of *tiers* that has it.

        Raises :class:`~mcpd.errors.NotFound` with similar names; :class:`~mcpd.errors.InvalidConfig` if it is invalid,
        or if an earlier tier cannot be read: a later profile might not be the intended one.
        """
        names: list[str] = []
        for tier in tiers:
            faults = []
            for path, contents in self._contents(tier):
                if (found := contents.profiles.get(name)) is not None:
                    if isinstance(found, Profile):
                        return found, tier
                    raise _unusable(path, found)
                names += contents.profiles
                if contents.fault is not None:
                    faults.append(_unusable(path, contents.fault))
            if faults:
                raise faults[0]
        names = list(dict.fromkeys(names))
        near = difflib.get_close_matches(name[:200], names[:MOST_COMPARED], MOST_NAMED)
        alike = f"; there is {', '.join(map(printable, near))}" if near else ""
        raise NotFound(
            f'there is no profile "{printable(name)}" among {len(names)}{alike}; profiles are in {CONFIG}, under'
            f" model_profiles, and in {PROFILES}/ of {', '.join(str(tier.base) for tier in tiers)}"
        )

    def plexus(self, tier: Tier) -> Plexus | None:
        """Return the configuration of Plexus in *tier*, or None if there is none or it is invalid."""
        plexus = self._read(tier, _config(tier)).plexus
        return plexus if isinstance(plexus, Plexus) else None

    def state(self, tiers: Sequence[Tier]) -> frozenset[tuple[Path, Signature | None]]:
        """Return a value that differs after any file has changed."""
        return frozenset((file.path, file.signature) for tier in tiers for file in _files(tier))

    def _contents(self, tier: Tier) -> Iterator[tuple[Path, _Contents]]:
        for file in _files(tier):
            yield file.path, self._read(tier, file)

    def _read(self, tier: Tier, file: File) -> _Contents:
        path, relative = file.path, file.relative
        if file.problem is not None:
            return _Contents(fault=unusable(path, file.problem).message)
        if file.signature is not None and (contents := self._memory.get(path, file.signature)) is not None:
            return contents
        try:
            text, settled = tier.read(relative)
            contents = (
                _configuration(text, path) if relative == CONFIG else _Contents(dict([load_profile(text, shown(path))]))
            )
        except InvalidConfig as error:
            return _Contents(fault=error.message)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                return _Contents()
            return _Contents(fault=unreadable(path, error).message)
        if settled is not None:
            self._memory.put(path, settled, contents)
        return contents


def _files(tier: Tier) -> Iterator[File]:
    """Yield the configuration, and the files of profiles sorted by name."""
    yield _config(tier)
    try:
        with tier.directory(PROFILES) as descriptor, os.scandir(descriptor) as entries:
            looked = list(islice(entries, MOST_NAMES + 1))
            found = [each for each in looked if each.name.endswith(SUFFIXES) and each.name[0] != "."]
            found.sort(key=lambda each: each.name)
            files = _affordable([_file(tier, each) for each in found[:MOST_FILES]])
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
            yield File(tier.path(PROFILES), PROFILES, problem=refusal(error))
        return
    yield from files
    if len(found) > MOST_FILES or len(looked) > MOST_NAMES:
        fault = f"there are more than {MOST_FILES} profiles or {MOST_NAMES} names; the rest is left out"
        yield File(tier.path(PROFILES), PROFILES, problem=fault)


def _affordable(files: list[File]) -> list[File]:
    """Return *files*, of which only the smallest will be opened: parsing takes time while an agent waits."""
    total = 0
    opened = set()
    for file in sorted(files, key=lambda file: file.size):
        total += file.size
        if total <= MAX_SIZE:
            opened.add(file.path)
    fault = f"not looked at: with the smaller ones beside it there are more than {MAX_SIZE // 1024} KiB of profiles"
    return [file if file.path in opened else File(file.path, file.relative, problem=fault) for file in files]


def _config(tier: Tier) -> File:
    try:
        known = signature(tier.status(CONFIG))
    except OSError:
        known = None
    return File(tier.path(CONFIG), CONFIG, known)


def _file(tier: Tier, entry: os.DirEntry[str]) -> File:
    relative = f"{PROFILES}/{entry.name}"
    try:
        known = signature(entry.stat(follow_symlinks=tier.follows))
    except OSError:
        known = None
    return File(tier.path(relative), relative, known)


def _configuration(text: str, path: Path) -> _Contents:
    try:
        settings = load_profiles(text, shown(path))
    except InvalidConfig as error:
        return _sound_parts(text, path, error)
    return _Contents(settings.model_profiles, settings.plexus)


def _sound_parts(text: str, path: Path, error: InvalidConfig) -> _Contents:
    """Return the valid parts of a configuration that has the faults *error*. Raises *error* if there are none."""
    document, positions = read(text, shown(path))
    listed = (document.get(CONFIG_PROFILES) or {}) if isinstance(document, dict) else None
    if not isinstance(listed, dict):
        raise error
    faults = _Faults(error, [positions.line([CONFIG_PROFILES, name]) for name in listed])
    profiles = {
        name: _sound(Profile, each) or faults.of(positions.line([CONFIG_PROFILES, name]))
        for name, each in listed.items()
    }
    plexus = _sound(Plexus, document.get("plexus", {})) or faults.of(positions.line(["plexus"]))
    if isinstance(plexus, str):
        log.warning("%s", plexus)
    return _Contents(profiles, plexus)


def _sound(model: type[M], value: Any) -> M | None:
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


@dataclass(frozen=True, slots=True)
class _Faults:
    """The faults of a file, assigned to its parts by the lines on which these begin."""

    error: InvalidConfig
    begin: list[int]

    def of(self, line: int) -> str:
        """Return the faults of the part that begins on *line*."""
        end = min((each for each in self.begin if each > line), default=None)
        data = self.error.data or {}
        problems = data.get("problems")
        own = [
            f"{data['file']}:{each['line']}: {each['message']}"
            for each in (problems if isinstance(problems, list) else [])
            if line <= each["line"] and (end is None or each["line"] < end)
        ]
        return "; ".join(own) or self.error.message


def _unusable(path: Path, fault: str) -> InvalidConfig:
    error = InvalidConfig(fault)
    error.data = {"file": shown(path)}
    return error
