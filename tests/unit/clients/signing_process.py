# SPDX-License-Identifier: LGPL-2.1-or-later
"""What another process does to a tree.

``signing_process.py publish ROOT NAME COUNT`` publishes configurations, ``signing_process.py rotate ROOT COUNT``
replaces the key, each as fast as it can. The changes of ``SCENARIOS`` are killed at each step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.clients.signed_parts import EXAMPLE, Site, payload_of

if TYPE_CHECKING:
    from collections.abc import Callable


def published(root: Path) -> Site:
    site = Site(root)
    site.publish(EXAMPLE)
    return site


def without_secret(root: Path) -> Site:
    site = published(root)
    site.signing_key.unlink()
    return site


def without_public(root: Path) -> Site:
    site = published(root)
    for path in (site.tree.verification_key, site.tree.verification_key_raw, site.list, *site.tree.keys.glob("o*.pem")):
        path.unlink()
    return site


def rotate(site: Site) -> None:
    site.keys.initialize(regenerate=True)
    site.releases.resign()


def publish(site: Site) -> None:
    site.publish(payload_of("new"))


SCENARIOS: dict[str, tuple[Callable[[Path], Site], Callable[[Site], None]]] = {
    "first": (Site, publish),
    "next": (published, publish),
    "rotate": (published, rotate),
    "lost": (without_secret, rotate),
    "repair": (without_public, publish),
}


def main(what: str, *arguments: str) -> None:
    site = Site(Path(arguments[0]))
    for number in range(int(arguments[-1])):
        if what == "publish":
            site.publish(payload_of(f"{arguments[1]}-{number}"))
        else:
            rotate(site)


if __name__ == "__main__":
    main(*sys.argv[1:])
