# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from bridge_harness import COMMAND, Bridge

from tests.children import no_child_stays  # noqa: F401 -- for every module here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ALONE = ("--listen", "127.0.0.1:0", "--auth", "none", "--server", f"s={COMMAND}")


@contextmanager
def _bridges(directories: pytest.TempPathFactory) -> Iterator[Callable[..., Bridge]]:
    """Starts bridges with the given arguments; they end with the block."""
    running: list[Bridge] = []

    def start(*arguments: str, prefix: Sequence[str] = (), **environment: str) -> Bridge:
        bridge = Bridge(arguments, environment, directories.mktemp("bridge") / "log", prefix)
        running.append(bridge)
        return bridge

    try:
        yield start
    finally:
        for bridge in running:
            bridge.close()


@pytest.fixture
def start_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bridge]]:
    """Start bridges with the given arguments; they end with the test."""
    with _bridges(tmp_path_factory) as start:
        yield start


@pytest.fixture
def alone(start_bridge: Callable[..., Bridge]) -> Callable[..., Bridge]:
    """Start stand-alone bridges with the fixture server ``s`` and further arguments; they end with the test."""
    return partial(start_bridge, *ALONE)


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    """A bridge that the tests of a module share; nothing they do may disturb another."""
    with _bridges(tmp_path_factory) as start:
        yield start(*ALONE)
