# SPDX-License-Identifier: LGPL-2.1-or-later
"""All ensembles and profiles there are, and which of them a name means."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidConfig, McpdError, NotFound
from mcpd.model import printable
from mcpd.servers.ensembles.engine.types import Found
from mcpd.servers.ensembles.format.loading import Loaded, load
from mcpd.servers.ensembles.library import scripts
from mcpd.servers.ensembles.library.memory import Memory
from mcpd.servers.ensembles.library.profiles import MOST_NAMED, ProfileEntry, Profiles
from mcpd.servers.ensembles.library.summaries import Summaries, Summary, faulty, summary_of
from mcpd.servers.ensembles.library.tiers import Kind, Signature, Tier, shown, tiers, unreadable, unusable
from mcpd.servers.ensembles.library.walking import File, Walk

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.servers.ensembles.engine.types import Origin
    from mcpd.servers.ensembles.format.models import Profile
    from mcpd.servers.ensembles.settings import Settings

ARTIFACTS: Final = "artifacts"
_MOST_LOADED: Final = 64
"""Ensembles that are kept whole."""
_MOST_COMPARED: Final = 2000
"""Names among which those like an unknown one are looked for."""

log = logging.getLogger("llm-orc")


@dataclass(frozen=True, slots=True)
class Entry:
    """An ensemble, or a file that is to be one."""

    name: str
    """The file's, without suffix, if something is wrong with it."""
    description: str
    origin: Origin
    qualified: str
    """The name that means this one whatever others are called."""
    agents: int
    """How many it has."""
    kinds: tuple[str, ...]
    """Of its agents, see :func:`.models.kind_of`."""
    shadowed: bool
    """Whether its name alone means another one."""
    problem: str | None
    """Why it cannot be used, with file and, where there is one, line."""
    modified: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class State:
    """What is different when something has changed."""

    ensembles: Mapping[str, frozenset[tuple[Path, Signature | None]]]
    """The files of each name."""
    listed: tuple[Entry, ...]
    """What listings show: all but the times."""
    profiles: frozenset[tuple[Path, Signature | None]]
    """The files of profiles."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A file, and what is known of it."""

    tier: Tier
    file: File
    summary: Summary

    @property
    def name(self) -> str:
        return self.summary.name or printable(self.file.path.stem)


class Library:
    """The ensembles and profiles of *settings*, as they are at each call; any thread may use it.

    What a call finds changed it reads, which takes milliseconds for each file; :meth:`refresh` in a thread does that
    beforehand.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tiers = tiers(settings)
        self._summaries = Summaries(settings.cache)
        self._loaded: Memory[tuple[Loaded, str]] = Memory(_MOST_LOADED)
        self._profiles = Profiles()

    def refresh(self) -> None:
        """Read what has changed, so that other calls need not."""
        self._known()
        self._profiles.entries(self.tiers)

    def entries(self) -> list[Entry]:
        """All ensembles: by projects, user and package, and by path in each. Broken files are among them."""
        return self._entries(self._known())

    def find(self, name: str, whose: Origin | None = None) -> Found:
        """The ensemble *name*: that of *whose*, if given, comes first, and one of another project's only by ``X/name``.

        Raises :class:`~mcpd.errors.NotFound` with names that are alike, and :class:`~mcpd.errors.InvalidConfig` that
        names file and line if it cannot be used.
        """
        return self.loaded(name, whose)[0]

    def loaded(self, name: str, whose: Origin | None = None) -> tuple[Found, Loaded, str]:
        """The same, with positions, and the text of the file."""
        for _ in range(2):  # Once more if it was written meanwhile.
            known = self._named(name, whose)
            loaded, text = self._load(known.tier, known.file)
            if loaded.ensemble.name == known.name:
                break
        else:
            raise NotFound(f"{shown(known.file.path)} changes all the time; try again")
        origin = known.tier.origin(known.file.path)
        return Found(loaded.ensemble, origin, self._profiles.plexus(known.tier)), loaded, text

    def profile(self, name: str, whose: Origin) -> Profile:
        """The profile *name* as an ensemble of *whose* means it: of its own tier, the user's or the package's.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidConfig` if it cannot be used.
        """
        return self._profiles.find(name, self._with_profiles(whose))[0]

    def profile_origin(self, name: str, whose: Origin) -> Kind:
        """Whose word that profile is. Raises the same."""
        return self._profiles.find(name, self._with_profiles(whose))[1].kind

    def profiles(self) -> list[ProfileEntry]:
        """All profiles, and what is wrong with any."""
        return self._profiles.entries(self.tiers)

    def script(self, origin: Origin, script: str) -> Path:
        """The file *script* of an ensemble of *origin*; see :func:`.scripts.locate`."""
        return scripts.locate(origin, script)

    def script_problem(self, origin: Origin, script: str) -> str | None:
        """What is wrong with *script*, if anything is."""
        return scripts.problem(origin, script)

    def artifact_roots(self) -> list[Path]:
        """Where there may be artifacts: of each project, and of what belongs to none."""
        return [*(tier.path(ARTIFACTS) for tier in self.tiers if tier.project), self.settings.data / ARTIFACTS]

    def artifact_root(self, origin: Origin) -> Path:
        """Where the artifacts of an ensemble of *origin* are."""
        return (self.settings.data if origin.project is None else origin.base) / ARTIFACTS

    def state(self) -> State:
        """What there is now."""
        known = self._known()
        by_name: dict[str, set[tuple[Path, Signature | None]]] = {}
        for each in known:
            by_name.setdefault(each.name, set()).add((each.file.path, each.file.signature))
        return State(
            {name: frozenset(files) for name, files in by_name.items()},
            tuple(replace(entry, modified=0.0) for entry in self._entries(known)),
            self._profiles.state(self.tiers),
        )

    def _entries(self, known: list[_Known]) -> list[Entry]:
        in_tier: dict[tuple[str, str], _Known] = {}
        first: dict[str, _Known] = {}
        for each in _by_rank(known):
            in_tier.setdefault((each.tier.label, each.name), each)
        for each in known:
            first.setdefault(each.name, in_tier[each.tier.label, each.name])
        return [_entry(each, in_tier[each.tier.label, each.name], first[each.name]) for each in known]

    def _known(self) -> list[_Known]:
        found = [(tier, file) for tier in self.tiers for file in Walk(tier).files]
        known = [_Known(tier, file, self._summary(tier, file)) for tier, file in found]
        self._summaries.save({file.path for _, file in found}, {tier.base for tier in self.tiers})
        return known

    def _summary(self, tier: Tier, file: File) -> Summary:
        if file.signature is None:
            return faulty(unusable(file.path, file.problem or "").message)
        known = self._summaries.get(file.path, file.signature)
        if known is not None:
            return known
        try:
            text, settled = _read(tier, file)
        except InvalidConfig as error:
            return faulty(error.message)
        summary = _summarized(text, file.path)
        if settled is not None:
            self._summaries.put(file.path, settled, summary)
        return summary

    def _load(self, tier: Tier, file: File) -> tuple[Loaded, str]:
        if file.signature is None:
            raise unusable(file.path, file.problem or "")
        if (made := self._loaded.get(file.path, file.signature)) is not None:
            return made
        text, settled = _read(tier, file)
        made = load(text, shown(file.path)), text
        if settled is not None:
            self._loaded.put(file.path, settled, made)
        return made

    def _tiers_of(self, whose: Origin | None) -> list[Tier]:
        """Where a name is looked for, without that of other projects."""
        if whose is None:
            return self.tiers
        own = [tier for tier in self.tiers if tier.holds(whose)]
        return list(dict.fromkeys([*own, *(tier for tier in self.tiers if tier.project is None)]))

    def _with_profiles(self, whose: Origin) -> list[Tier]:
        """Where a profile is looked for: the user can say what the package's ensembles mean by a name."""
        return [tier for tier in self.tiers if tier.project is None or tier.holds(whose)]

    def _named(self, name: str, whose: Origin | None) -> _Known:
        """What *name* means. Raises :class:`~mcpd.errors.NotFound`."""
        label, _, bare = name.rpartition("/")
        tiers_ = self._labelled(label) if label else self._tiers_of(whose)
        if not tiers_:
            labels = ", ".join(tier.label for tier in self.tiers)
            raise NotFound(f'there is no "{printable(label)}" that could have ensembles; there is {labels}')
        known = self._known()
        by_tier: dict[Tier, list[_Known]] = {}
        for each in _by_rank(known):
            by_tier.setdefault(each.tier, []).append(each)
        for tier in tiers_:
            for each in by_tier.get(tier, []):
                if each.name == bare:
                    return each
        raise self._unknown(name, [each for tier in tiers_ for each in by_tier.get(tier, [])])

    def _labelled(self, label: str) -> list[Tier]:
        """The one that *label* names, or several projects whose directories are called so."""
        exact = [tier for tier in self.tiers if tier.label == label]
        return exact or [tier for tier in self.tiers if tier.project is not None and tier.project.name == label]

    def _unknown(self, name: str, known: list[_Known]) -> NotFound:
        usable = [each.name for each in known if each.summary.name is not None]
        broken = [each.summary.problem or "" for each in known if each.summary.name is None]
        near = difflib.get_close_matches(name.rpartition("/")[2][:200], usable[:_MOST_COMPARED], MOST_NAMED)
        parts = [f'there is no ensemble "{printable(name)}" among {len(set(usable))}']
        if near:
            parts.append(f"there is {', '.join(near)}")
        if broken:
            parts.append(f"{len(broken)} cannot be read: {broken[0]}")
        if not known:
            parts.append(f"they are looked for in {', '.join(str(tier.path(tier.ensembles)) for tier in self.tiers)}")
        error = NotFound("; ".join(parts))
        error.data = {"near": near, "count": len(set(usable))}
        return error


def _by_rank(known: list[_Known]) -> list[_Known]:
    """*known*, those that can be used first; so a broken file takes the name of none beside it."""
    return sorted(known, key=lambda each: each.summary.name is None)


def _entry(known: _Known, beside: _Known, first: _Known) -> Entry:
    """The entry of *known*, where *beside* has its name in its tier, and *first* of all."""
    summary, file = known.summary, known.file
    problem = summary.problem
    if problem is None and beside is not known:
        other = shown(beside.file.path)
        problem = f'{shown(file.path)}: "{known.name}" is the name of {other}, too; give one of them another'
    return Entry(
        name=known.name,
        description=summary.description,
        origin=known.tier.origin(file.path),
        qualified=f"{known.tier.label}/{known.name}",
        agents=summary.agents,
        kinds=summary.kinds,
        shadowed=first is not known,
        problem=problem,
        modified=file.modified,
    )


def _summarized(text: str, path: Path) -> Summary:
    try:
        return summary_of(load(text, shown(path)).ensemble)
    except McpdError as error:
        return faulty(error.message)
    except Exception as error:  # What somebody else wrote hides nothing, whatever the parser makes of it.
        log.exception("%s cannot be read", path)
        return faulty(f"{shown(path)}: cannot be read ({type(error).__name__})")


def _read(tier: Tier, file: File) -> tuple[str, Signature | None]:
    try:
        return tier.read(file.relative)
    except OSError as error:
        raise unreadable(file.path, error) from error
