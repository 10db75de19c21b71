# SPDX-License-Identifier: LGPL-2.1-or-later
"""The profiles of models, and what else the configuration of a tier says: ``config.yaml`` and ``profiles/*.yaml``.

A profile that is wrong is a fault of its own; it never takes others with it.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from mcpd.errors import InvalidConfig, NotFound
from mcpd.model import printable
from mcpd.servers.ensembles.format.loading import load_profile, load_profiles
from mcpd.servers.ensembles.format.models import Plexus, Profile
from mcpd.servers.ensembles.format.reading import read
from mcpd.servers.ensembles.library.memory import Memory
from mcpd.servers.ensembles.library.tiers import (
    CONFIG,
    PROFILES,
    SUFFIXES,
    Signature,
    Tier,
    shown,
    signature,
    unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mcpd.servers.ensembles.engine.types import Origin

MOST_FILES: Final = 500
"""Of profiles in a tier."""
MOST_NAMED: Final = 5
"""Of what a message says to be alike."""
CONFIG_PROFILES: Final = "model_profiles"

log = logging.getLogger("llm-orc")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A profile, or a part of a configuration that cannot be used."""

    name: str
    """For a configuration that cannot be used that of its file."""
    profile: Profile | None
    origin: Origin
    shadowed: bool = False
    """Whether one of the same name counts instead."""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Contents:
    """What a file says."""

    profiles: tuple[tuple[str, Profile | str], ...] = ()
    """By name; what is wrong with it for one that cannot be used."""
    plexus: Plexus | str | None = None
    fault: str | None = None
    """Why it is not known which profiles it has."""


class Profiles:
    """Those of all tiers. Any thread may use it."""

    def __init__(self) -> None:
        self._memory: Memory[_Contents] = Memory(4 * MOST_FILES)

    def entries(self, tiers: Sequence[Tier]) -> list[ProfileEntry]:
        """All in *tiers*, those that count first where names clash at the beginning."""
        found: list[ProfileEntry] = []
        taken: set[str] = set()
        for tier in tiers:
            for path, contents in self._contents(tier):
                origin = tier.origin(path)
                for name, profile in contents.profiles:
                    usable = profile if isinstance(profile, Profile) else None
                    problem = profile if isinstance(profile, str) else None
                    found.append(ProfileEntry(name, usable, origin, name in taken, problem))
                    taken.add(name)
                wrong = (contents.fault, contents.plexus if isinstance(contents.plexus, str) else None)
                called = path.name if path.name == CONFIG else path.stem
                found += [ProfileEntry(called, None, origin, problem=each) for each in wrong if each is not None]
        return found

    def find(self, name: str, tiers: Sequence[Tier]) -> tuple[Profile, Tier]:
        """The profile *name*, and where it is from: the first of *tiers* that has it.

        Raises :class:`~mcpd.errors.NotFound` with names that are alike, and :class:`~mcpd.errors.InvalidConfig` if it
        cannot be used, or if a tier that may have it cannot be read: another one would not be what is meant.
        """
        names: list[str] = []
        for tier in tiers:
            faults = []
            for path, contents in self._contents(tier):
                if (found := dict(reversed(contents.profiles)).get(name)) is not None:
                    if isinstance(found, Profile):
                        return found, tier
                    raise _unusable(path, found)
                names += [each for each, _ in contents.profiles]
                if contents.fault is not None:
                    faults.append(_unusable(path, contents.fault))
            if faults:
                raise faults[0]
        near = difflib.get_close_matches(name, names, MOST_NAMED)
        alike = f"; there is {', '.join(map(printable, near))}" if near else ""
        raise NotFound(
            f'there is no profile "{printable(name)}" among {len(set(names))}{alike}; profiles are in {CONFIG}, under'
            f" model_profiles, and in {PROFILES}/ of {', '.join(str(tier.base) for tier in tiers)}"
        )

    def plexus(self, tier: Tier) -> Plexus | None:
        """What the configuration of *tier* says of the knowledge graph; None also if that cannot be used."""
        plexus = self._read(tier, CONFIG).plexus
        return plexus if isinstance(plexus, Plexus) else None

    def state(self, tiers: Sequence[Tier]) -> frozenset[tuple[Path, Signature | None]]:
        """What is different when any file has changed."""
        return frozenset(
            (tier.path(relative), _signature(tier, relative)) for tier in tiers for relative in [CONFIG, *_files(tier)]
        )

    def _contents(self, tier: Tier) -> Iterator[tuple[Path, _Contents]]:
        for relative in [CONFIG, *_files(tier)]:
            yield tier.path(relative), self._read(tier, relative)

    def _read(self, tier: Tier, relative: str) -> _Contents:
        path = tier.path(relative)
        known = _signature(tier, relative)
        if known is not None and (contents := self._memory.get(path, known)) is not None:
            return contents
        try:
            text, settled = tier.read(relative)
            contents = (
                _configuration(text, path) if relative == CONFIG else _Contents((load_profile(text, shown(path)),))
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


def _files(tier: Tier) -> list[str]:
    """The files of profiles, from the base, in the order of their names."""
    try:
        with tier.directory(PROFILES) as descriptor, os.scandir(descriptor) as entries:
            names = sorted(each.name for each in entries if each.name.endswith(SUFFIXES) and each.name[0] != ".")
    except OSError:
        return []
    if len(names) > MOST_FILES:
        log.warning("%s has %d files; only %d are read", tier.path(PROFILES), len(names), MOST_FILES)
    return [f"{PROFILES}/{name}" for name in names[:MOST_FILES]]


def _signature(tier: Tier, relative: str) -> Signature | None:
    try:
        return signature(tier.status(relative))
    except OSError:
        return None


def _configuration(text: str, path: Path) -> _Contents:
    try:
        settings = load_profiles(text, shown(path))
    except InvalidConfig as error:
        return _sound_parts(text, path, error)
    return _Contents(tuple(settings.model_profiles.items()), settings.plexus)


def _sound_parts(text: str, path: Path, error: InvalidConfig) -> _Contents:
    """What can be used of a configuration that has the faults *error*. Raises *error* if nothing can."""
    document, positions = read(text, shown(path))
    listed = (document.get(CONFIG_PROFILES) or {}) if isinstance(document, dict) else None
    if not isinstance(listed, dict):
        raise error
    faults = _Faults(error, [positions.line([CONFIG_PROFILES, name]) for name in listed])
    profiles = tuple(
        (name, _sound(Profile, each) or faults.of(positions.line([CONFIG_PROFILES, name])))
        for name, each in listed.items()
    )
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
    """Those of a file, told apart by the lines on which its parts begin."""

    error: InvalidConfig
    begin: list[int]

    def of(self, line: int) -> str:
        """What is wrong with the part that begins on *line*."""
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
