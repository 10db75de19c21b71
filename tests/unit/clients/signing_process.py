# SPDX-License-Identifier: LGPL-2.1-or-later
"""What another process does to a tree.

``signing_process.py kill SCENARIO WORK`` does one change again and again, killed one step later each time: it leaves
``WORK/<n>`` as SIGKILL before the n-th step of the disk left it, and prints the number of the run that was not killed.
``signing_process.py publish ROOT NAME COUNT`` publishes configurations, ``signing_process.py rotate ROOT COUNT``
replaces the key, each as fast as it can.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.unit.clients.signed_parts import EXAMPLE, Site, payload_of

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.symlink", "os.chmod"})


def nothing(root: Path) -> Site:
    return Site(root)


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
    "first": (nothing, publish),
    "next": (published, publish),
    "rotate": (published, rotate),
    "lost": (without_secret, rotate),
    "repair": (without_public, publish),
}


def _run(scenario: str, root: Path, fatal: int) -> None:
    prepare, change = SCENARIOS[scenario]
    site = prepare(root)
    steps = 0

    def is_step(event: str, arguments: tuple[Any, ...]) -> bool:
        """Most names are told from the directory that they are in; that is opened first, which changes nothing."""
        if event == "open" and arguments[2] & os.O_DIRECTORY:
            return False
        name = str(arguments[0])
        return not name.startswith("/") or name.startswith(str(root))

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        if event in STEPS and is_step(event, arguments):
            steps += 1
            if steps == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    change(site)
    os._exit(0)


def kill(scenario: str, work: Path) -> None:
    number = 0
    while True:
        number += 1
        process = os.fork()
        if process == 0:
            try:
                _run(scenario, work / str(number), number)
            finally:
                os._exit(1)
        ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if ended == 0:
            break
        if ended != -signal.SIGKILL:
            raise SystemExit(f"step {number}: {ended}")
    sys.stdout.write(f"{number}\n")


def main(what: str, *arguments: str) -> None:
    if what == "kill":
        kill(arguments[0], Path(arguments[1]))
        return
    site = Site(Path(arguments[0]))
    for number in range(int(arguments[-1])):
        if what == "publish":
            site.publish(payload_of(f"{arguments[1]}-{number}"))
        else:
            rotate(site)


if __name__ == "__main__":
    main(*sys.argv[1:])
