# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changes of a client's file that are killed at each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.clients.deployment_parts import BY_HAND, ENTRY, OTHER, User

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _by_hand(root: Path) -> User:
    user = User(root)
    user.write({"theme": "dark", "mcpServers": {"mine": BY_HAND}}, mode=0o640)
    return user


def _deployed(root: Path) -> User:
    user = _by_hand(root)
    user.deploy({"github": ENTRY})
    return user


def _made(root: Path) -> User:
    user = User(root)
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
    "deploy-new": (User, lambda user: user.deploy({"github": ENTRY})),
    "deploy-again": (_deployed, lambda user: user.deploy({"github": OTHER, "time": OTHER})),
    "deploy-less": (_deployed, lambda user: user.deploy({})),
    "deploy-eleventh": (_full, lambda user: user.deploy({"github": ENTRY})),
    "take-over": (_by_hand, lambda user: user.deploy({"mine": ENTRY}, take_over=["mine"])),
    "undo": (_deployed, lambda user: user.undo()),
    "undo-new": (_made, lambda user: user.undo()),
    "undo-force": (_edited, lambda user: user.undo(force=True)),
    "undo-keep-edits": (_edited, lambda user: user.undo(keep_edits=True)),
}
