# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which directories have to be watched for changes of ensembles, profiles and artifacts, and for what in them.

None is watched with all below it: a project is as large as it likes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpd.servers.ensembles.artifacts.places import is_ensemble, names, opened
from mcpd.servers.ensembles.library.library import ARTIFACTS
from mcpd.servers.ensembles.library.tiers import CONFIG, ENSEMBLES, PROFILES
from mcpd.servers.ensembles.library.walking import Walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mcpd.servers.ensembles.library.tiers import Tier

MOST_RUN: Final = 5000
"""Ensembles of one root whose artifacts are looked after."""


@dataclass(slots=True)
class Interest:
    """What matters in a directory."""

    names: set[str] | None = field(default_factory=set)
    """Of what is in it; None for all."""
    contents: bool = False
    """Whether files that are written matter, or only what appears."""


class Interests(dict["Path", Interest]):
    """Those in all directories there are now."""

    def __init__(self, tiers: Iterable[Tier], roots: Iterable[Path]) -> None:
        super().__init__()
        for tier in tiers:
            self._add_tier(tier)
        for root in roots:
            found = artifacts_of(root)
            if found is None:
                self._await(root)
            else:
                self._all([root, *(root / name for name in found)])

    def _add_tier(self, tier: Tier) -> None:
        if not _is_directory(tier, "."):
            self._await(tier.base)
            return
        base = self.setdefault(tier.base, Interest())
        base.contents = True
        if base.names is not None:
            base.names |= {CONFIG, ENSEMBLES, PROFILES, ARTIFACTS}
        self._all(Walk(tier).directories)
        if _is_directory(tier, PROFILES):
            self._all([tier.path(PROFILES)])

    def _all(self, directories: Iterable[Path]) -> None:
        for directory in directories:
            self[directory] = Interest(None, contents=True)

    def _await(self, path: Path) -> None:
        """Look out for *path* in the nearest directory that is there."""
        for below, directory in zip((path, *path.parents), path.parents, strict=False):
            if directory.is_dir():
                interest = self.setdefault(directory, Interest())
                if interest.names is not None:
                    interest.names.add(below.name)
                return


def artifacts_of(root: Path) -> dict[str, int] | None:
    """The ensembles that have artifacts in *root*, and when there was last a new one; None if there is no *root*."""
    found: dict[str, int] = {}
    try:
        with opened(root) as directory:
            for name in islice(filter(is_ensemble, names(directory)), MOST_RUN):
                try:
                    found[name] = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns
                except FileNotFoundError:
                    continue
    except OSError:
        return None
    return found


def artifacts(roots: Sequence[Path]) -> dict[str, frozenset[tuple[Path, int]]]:
    """What is different when the artifacts of an ensemble have changed, by its name."""
    found: dict[str, frozenset[tuple[Path, int]]] = {}
    for root in roots:
        for name, modified in (artifacts_of(root) or {}).items():
            found[name] = found.get(name, frozenset()) | {(root, modified)}
    return found


def _is_directory(tier: Tier, relative: str) -> bool:
    try:
        with tier.directory(relative):
            return True
    except OSError:
        return False
