# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from bridge_harness import COMMAND, Bridge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def start_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bridge]]:
    """Start bridges with the given arguments; they end with the tests."""
    running: list[Bridge] = []
    numbers = itertools.count()

    def start(*arguments: str, **environment: str) -> Bridge:
        log = tmp_path_factory.mktemp("bridge") / f"log{next(numbers)}"
        bridge = Bridge(arguments, environment, log)
        running.append(bridge)
        return bridge

    yield start
    for bridge in running:
        bridge.close()


@pytest.fixture(scope="session")
def alone(start_bridge: Callable[..., Bridge]) -> Callable[..., Bridge]:
    """Start stand-alone bridges with the fixture server ``s`` and further arguments."""

    def start(*arguments: str) -> Bridge:
        return start_bridge("--listen", "127.0.0.1:0", "--auth", "none", "--server", f"s={COMMAND}", *arguments)

    return start


@pytest.fixture(scope="session")
def bridge(alone: Callable[..., Bridge]) -> Bridge:
    """A bridge that tests share; nothing they do may disturb another."""
    return alone()
