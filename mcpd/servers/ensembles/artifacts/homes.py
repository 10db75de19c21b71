# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the runs of each ensemble are: below the root of its own tier, whoever else has a directory of its name.

A cloned project brings what directories it likes. Those of names that are another's are not that other's runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mcpd.servers.ensembles.library.library import Entry, Library


def homes(library: Library, entries: Iterable[Entry]) -> dict[str, Path]:
    """The roots of the artifacts of *entries*, all of *library*, by each name that means one of them.

    ``NAME`` is the one that the name alone means; ``X/NAME`` that of the tier, or else of the project's directory, X.
    """
    known = [(entry, library.artifact_root(entry.origin)) for entry in entries]
    found = {entry.name: root for entry, root in known if not entry.shadowed}
    for entry, root in known:
        found.setdefault(entry.qualified, root)
    for entry, root in known:
        if entry.origin.project is not None:
            found.setdefault(f"{entry.origin.project.name}/{entry.name}", root)
    return found


def roots(library: Library) -> list[Path]:
    """Where artifacts are looked for that are of no ensemble any more: the user's own first."""
    *projects, own = library.artifact_roots()
    return [own, *projects]
