# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changes a client's file again and again, killed one step later each time.

``killed_deployment.py SCENARIO WORK`` leaves ``WORK/<n>`` as SIGKILL before the n-th step of the disk left it, and
prints the number of the run that was not killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.clients.deployment_parts import BY_HAND, ENTRY, OTHER, User

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = frozenset(
    {
        "open",
        "os.rename",
        "os.remove",
        "os.mkdir",
        "os.rmdir",
        "os.link",
        "os.chmod",
        "os.listxattr",
        "ctypes.dlsym",
    }
)
"""Names of audit events; ``ctypes.dlsym`` comes before an exchange."""


def _user(root: Path) -> User:
    """Somebody whose tools lie under a home of their own."""
    return User(root)


def _by_hand(root: Path) -> User:
    user = _user(root)
    user.write({"theme": "dark", "mcpServers": {"mine": BY_HAND}}, mode=0o640)
    return user


def _deployed(root: Path) -> User:
    user = _by_hand(root)
    user.deploy({"github": ENTRY})
    return user


def _made(root: Path) -> User:
    user = _user(root)
    user.deploy({"github": ENTRY})
    return user


def _edited(root: Path) -> User:
    user = _deployed(root)
    user.write({"theme": "light", "mcpServers": {"mine": BY_HAND, "github": ENTRY}}, mode=0o640)
    return user


def _full(root: Path) -> User:
    user = _by_hand(root)
    for number in range(10):
        user.deploy({f"s{number}": ENTRY})
    return user


SCENARIOS: dict[str, tuple[Callable[[Path], User], Callable[[User], object]]] = {
    "deploy": (_by_hand, lambda user: user.deploy({"github": ENTRY})),
    "deploy-new": (_user, lambda user: user.deploy({"github": ENTRY})),
    "deploy-again": (_deployed, lambda user: user.deploy({"github": OTHER, "time": OTHER})),
    "deploy-less": (_deployed, lambda user: user.deploy({})),
    "deploy-eleventh": (_full, lambda user: user.deploy({"github": ENTRY})),
    "take-over": (_by_hand, lambda user: user.deploy({"mine": ENTRY}, take_over=["mine"])),
    "undo": (_deployed, lambda user: user.undo()),
    "undo-new": (_made, lambda user: user.undo()),
    "undo-force": (_edited, lambda user: user.undo(force=True)),
    "undo-keep-edits": (_edited, lambda user: user.undo(keep_edits=True)),
}


def _run(scenario: str, root: Path, steps: int) -> None:
    prepare, change = SCENARIOS[scenario]
    user = prepare(root)
    left = steps

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal left
        if event in STEPS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    change(user)
    os._exit(0)


def main(scenario: str, work: Path) -> None:
    steps = 0
    # What is imported on the way is no step of the disk.
    SCENARIOS[scenario][1](SCENARIOS[scenario][0](work / "warm"))
    while True:
        steps += 1
        process = os.fork()
        if process == 0:
            _run(scenario, work / str(steps), steps)
        if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0:
            break
    sys.stdout.write(f"{steps}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
