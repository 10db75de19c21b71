# SPDX-License-Identifier: LGPL-2.1-or-later
"""All ensembles and profiles, the lookup of their names, and the location of agents' scripts."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from time import thread_time
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidConfig, McpdError, NotFound
from mcpd.model import printable
from mcpd.servers.ensembles.engine.types import Found
from mcpd.servers.ensembles.format.loading import Loaded, load
from mcpd.servers.ensembles.library.profiles import MOST_COMPARED, MOST_NAMED, ProfileEntry, Profiles
from mcpd.servers.ensembles.library.summaries import LEFT_OUT, Known, Look, Looking, Summaries
from mcpd.servers.ensembles.library.tiers import (
    Kind,
    Memory,
    Signature,
    Tier,
    shown,
    signature,
    tiers,
    unreadable,
    unusable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mcpd.servers.ensembles.engine.types import Origin
    from mcpd.servers.ensembles.format.models import Profile
    from mcpd.servers.ensembles.library.tiers import File
    from mcpd.servers.ensembles.settings import Settings


def locate_script(origin: Origin, script: str) -> Path:
    """Return the file *script* of an ensemble of *origin*, without symlinks.

    Raises :class:`~mcpd.errors.InvalidConfig` if its path is not, or leads out of, the base of *origin*, and
    :class:`~mcpd.errors.NotFound` if it does not exist; both messages name the script and the base.
    """
    shown = f'script "{printable(script)}"'
    pure = PurePosixPath(script)
    if not script or "\0" in script or pure.is_absolute() or ".." in pure.parts:
        raise InvalidConfig(f'{shown}: write its path from {origin.base}, such as "scripts/x.py", and without ".."')
    try:
        real = _below(origin, script)
        if real is None:
            raise InvalidConfig(f"{shown} leads out of {origin.base} by a symlink; put the file itself there")
        if real.is_file():
            return real
        is_there = real.exists()
    except (OSError, ValueError) as error:  # A name that is too long, half a surrogate pair.
        raise InvalidConfig(f"{shown} in {origin.base}: {getattr(error, 'strerror', None) or error}") from error
    if is_there:
        raise InvalidConfig(f"{shown} in {origin.base} is not a regular file")
    raise NotFound(f"there is no {shown} in {origin.base}")


def _below(origin: Origin, script: str) -> Path | None:
    """Return *script* without symlinks; None if it is outside the base of *origin*, or that outside its project."""
    base = Path(os.path.realpath(origin.base))
    real = Path(os.path.realpath(origin.base / script))
    project = origin.project
    stays = project is None or base.is_relative_to(os.path.realpath(project))
    return real if stays and real.is_relative_to(base) else None


def script_problem(origin: Origin, script: str) -> str | None:
    """Return the error of :func:`locate_script` for *script*, or None."""
    try:
        locate_script(origin, script)
    except McpdError as error:
        return error.message
    return None


ARTIFACTS: Final = "artifacts"
_MOST_LOADED: Final = 64
"""Maximum number of files whose ensembles, or faults, are cached."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An ensemble, or an invalid file."""

    name: str
    """The name of the file without suffix, if that of the ensemble is unknown."""
    description: str
    origin: Origin
    qualified: str
    """The name that always means this ensemble, even if others have the same name."""
    agents: int
    """Number of its agents."""
    kinds: tuple[str, ...]
    """Kinds of its agents, see :func:`.models.kind_of`."""
    shadowed: bool
    """True if its name alone means another ensemble."""
    problem: str | None
    """The reason why it cannot be run, with file and, if known, line."""
    modified: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class State:
    """A value that differs after any change."""

    ensembles: Mapping[str, frozenset[tuple[Path, Signature | None]]]
    """The files for each name."""
    listed: tuple[Entry, ...]
    """The entries of listings, without their times."""
    profiles: frozenset[tuple[Path, Signature | None]]
    """The files with profiles."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """The error of a file that cannot be loaded."""

    message: str
    data: dict[str, object] | None


class Library:
    """The ensembles and profiles of *settings*, up to date at each call; thread-safe.

    Changed files are read by the next call, which takes milliseconds for each; :meth:`refresh` in a thread does that
    in advance. For names in ensembles, only the mapping from names to files is cached: from the last call that scanned
    all files, such as that at the beginning of each run.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = thread_time) -> None:
        """Use *clock* to limit the seconds spent on reading files."""
        self.settings = settings
        self.tiers = tiers(settings)
        self._loaded: Memory[tuple[Loaded, str] | _Refused] = Memory(_MOST_LOADED)
        self._profiles = Profiles()
        self._looking = Looking(self.tiers, Summaries(settings.cache), clock)

    def refresh(self) -> None:
        """Read changed files, so that other calls need not."""
        self._looking.look()
        self._profiles.entries(self.tiers)

    def entries(self) -> list[Entry]:
        """Return all ensembles, including invalid files: of projects, user and package, each sorted by path."""
        return self._entries(self._looking.look())

    def find(self, name: str, whose: Origin | None = None) -> Found:
        """Return the ensemble *name*, preferably that of *whose*; those of other projects only as ``X/name``, and never
        if *whose* is a project or the package.

        With *whose*, a name means the same file until that changes or a call without *whose* is made, so that repeated
        lookups in a run are cheap. The content is always current.

        Raises :class:`~mcpd.errors.NotFound` with similar names, and :class:`~mcpd.errors.InvalidConfig` with file and
        line for an invalid ensemble.
        """
        return self.loaded(name, whose)[0]

    def loaded(self, name: str, whose: Origin | None = None) -> tuple[Found, Loaded, str]:
        """Return the same, with the positions and the text of the file."""
        for _ in range(2):  # Retry if it was written meanwhile.
            known = self._named(name, whose)
            loaded, text = self._load(known.tier, known.file)
            if loaded.ensemble.name == known.name:
                break
        else:
            if known.summary.name is None:
                raise unusable(known.file.path, f'{LEFT_OUT}; its ensemble is "{loaded.ensemble.name}"')
            raise NotFound(f"{shown(known.file.path)} changes all the time; try again")
        origin = known.tier.origin(known.file.path)
        return Found(loaded.ensemble, origin, self._profiles.plexus(known.tier)), loaded, text

    def profile(self, name: str, whose: Origin) -> Profile:
        """Return the profile *name* for an ensemble of *whose*: from its own tier, the user's or the package's.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidConfig` if it is invalid.
        """
        return self.profile_of(name, whose)[0]

    def profile_of(self, name: str, whose: Origin) -> tuple[Profile, Kind]:
        """Return the same, with the kind of its tier."""
        profile, tier = self._profiles.find(name, self._with_profiles(whose))
        return profile, tier.kind

    def profiles(self) -> list[ProfileEntry]:
        """Return all profiles, with the faults of invalid ones."""
        return self._profiles.entries(self.tiers)

    def script(self, origin: Origin, script: str) -> Path:
        """Return the file *script* of an ensemble of *origin*; see :func:`locate_script`."""
        return locate_script(origin, script)

    def script_problem(self, origin: Origin, script: str) -> str | None:
        """Return the fault of *script*, or None."""
        return script_problem(origin, script)

    def artifact_roots(self) -> list[Path]:
        """Return the directories of artifacts: of each project, and of ensembles outside projects."""
        return [*(tier.path(ARTIFACTS) for tier in self.tiers if tier.project), self.settings.data / ARTIFACTS]

    def artifact_root(self, origin: Origin) -> Path:
        """Return the directory of the artifacts of ensembles of *origin*."""
        return (self.settings.data if origin.project is None else origin.base) / ARTIFACTS

    def state(self) -> State:
        """Return the current state."""
        look = self._looking.look()
        by_name: dict[str, set[tuple[Path, Signature | None]]] = {}
        for each in look.known:
            by_name.setdefault(each.name, set()).add((each.file.path, each.file.signature))
        return State(
            {name: frozenset(files) for name, files in by_name.items()},
            tuple(replace(entry, modified=0.0) for entry in self._entries(look)),
            self._profiles.state(self.tiers),
        )

    def _entries(self, look: Look) -> list[Entry]:
        first: dict[str, Known] = {}
        for each in look.known:
            first.setdefault(each.name, look.by_name[each.tier][each.name])
        return [_entry(each, look.by_name[each.tier][each.name], first[each.name]) for each in look.known]

    def _load(self, tier: Tier, file: File) -> tuple[Loaded, str]:
        if file.signature is None:
            raise unusable(file.path, file.problem or "")
        made = self._loaded.get(file.path, file.signature)
        if made is None:
            try:
                text, settled = tier.read(file.relative)
            except OSError as error:
                raise unreadable(file.path, error) from error
            try:
                made = load(text, shown(file.path)), text
            except InvalidConfig as error:
                made = _Refused(error.message, error.data)
            if settled is not None:
                self._loaded.put(file.path, settled, made)
        if isinstance(made, _Refused):
            refusal = InvalidConfig(made.message)
            refusal.data = made.data
            raise refusal
        return made

    def _tiers_of(self, whose: Origin | None) -> list[Tier]:
        """Return the tiers in which a name of *whose* is looked up, without other projects."""
        if whose is None:
            return self.tiers
        own = [tier for tier in self.tiers if tier.holds(whose)]
        return list(dict.fromkeys([*own, *(tier for tier in self.tiers if tier.project is None)]))

    def _with_profiles(self, whose: Origin) -> list[Tier]:
        """Return the tiers in which a profile is looked up: the user may override the package's profiles."""
        return [tier for tier in self.tiers if tier.project is None or tier.holds(whose)]

    def _named(self, name: str, whose: Origin | None) -> Known:
        """Return the file that *name* means. Raises :class:`~mcpd.errors.NotFound`."""
        label, _, bare = name.rpartition("/")
        tiers_ = self._labelled(label, whose) if label else self._tiers_of(whose)
        if whose is not None and (known := _meant(self._looking.latest, tiers_, bare)) is not None and _is_same(known):
            return known
        look = self._looking.look()
        if (known := _meant(look, tiers_, bare)) is not None:
            return known
        raise _unknown(name, [each for each in look.known if each.tier in tiers_], tiers_)

    def _labelled(self, label: str, whose: Origin | None) -> list[Tier]:
        """Return the tier that *label* names for *whose*, or all projects whose directories have that name.

        Raises :class:`~mcpd.errors.NotFound` if there is none.
        """
        exact = [tier for tier in self.tiers if tier.label == label]
        named = exact or [tier for tier in self.tiers if tier.project is not None and tier.project.name == label]
        # The user's ensembles may name any project; those of projects and of the package must not run other projects'.
        free = whose is None or whose.tier == "user"
        allowed = [tier for tier in self.tiers if free or tier.project is None or (whose and tier.holds(whose))]
        if found := [tier for tier in named if tier in allowed]:
            return found
        if named:
            raise NotFound(
                f'"{printable(label)}" is another project, and ensembles of other projects are not run from a project;'
                " copy what it needs into its own, or into ~/.config/llm-orc/ensembles"
            )
        labels = ", ".join(tier.label for tier in allowed)
        raise NotFound(f'there is no "{printable(label)}" that could have ensembles; there is {labels}')


def _unknown(name: str, known: Sequence[Known], among: Sequence[Tier]) -> NotFound:
    """Return the error for the unknown *name*; *known* are the entries of the tiers *among*."""
    usable = list(dict.fromkeys(each.name for each in known if each.summary.name is not None))
    broken = [each.summary.problem or "" for each in known if each.summary.name is None]
    near = difflib.get_close_matches(name.rpartition("/")[2][:200], usable[:MOST_COMPARED], MOST_NAMED)
    parts = [f'there is no ensemble "{printable(name)}" among {len(usable)}']
    if near:
        parts.append(f"there is {', '.join(near)}")
    if broken:
        parts.append(f"{len(broken)} cannot be read: {broken[0]}")
    if not known:
        parts.append(f"they are looked for in {', '.join(str(tier.path(tier.ensembles)) for tier in among)}")
    # os.path, as pathlib raises for inaccessible directories.
    gone = [str(tier.project) for tier in among if tier.project and not os.path.isdir(tier.project)]  # noqa: PTH112
    if gone:
        parts.append(f"of the configured projects {', '.join(map(printable, gone))} is not there")
    error = NotFound("; ".join(parts))
    error.data = {"near": near, "count": len(usable)}
    return error


def _meant(look: Look, among: Iterable[Tier], name: str) -> Known | None:
    """Return the entry for *name* in the first of the tiers *among* that has it."""
    return next((each for tier in among if (each := look.by_name.get(tier, {}).get(name)) is not None), None)


def _is_same(known: Known) -> bool:
    """Return True if the file of *known* is unchanged."""
    try:
        return signature(known.tier.status(known.file.relative)) == known.file.signature
    except OSError:
        return False


def _entry(known: Known, beside: Known, first: Known) -> Entry:
    """Return the entry of *known*; *beside* is the first of its name in its tier, and *first* in all tiers."""
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
