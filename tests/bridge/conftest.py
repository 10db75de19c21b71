# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.bridge import facility
from tests.bridge.bridge_harness import COMMAND, Bridge, bridges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bridge.bridge_harness import Client
    from tests.bridge.facility import Target

ALONE = ("--listen", "127.0.0.1:0", "--auth", "none", "--server", f"s={COMMAND}")


@pytest.fixture
def start_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bridge]]:
    """Start bridges with the given arguments; they end with the test."""
    with bridges(tmp_path_factory) as start:
        yield start


@pytest.fixture
def alone(start_bridge: Callable[..., Bridge]) -> Callable[..., Bridge]:
    """Start stand-alone bridges with the fixture server ``s`` and further arguments; they end with the test."""
    return partial(start_bridge, *ALONE)


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    """A bridge that the tests of a module share; nothing they do may disturb another."""
    with bridges(tmp_path_factory) as start:
        yield start(*ALONE)


@pytest.fixture(scope="module")
def facility_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    """A bridge in front of the server of the facility's tests, as ``f``; calls may take two seconds."""
    with bridges(tmp_path_factory) as start:
        yield start(
            "--listen", "127.0.0.1:0", "--auth", "none", "--server", f"f={facility.COMMAND}", "--call-timeout=2"
        )


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """The facility's server, of the kind that :data:`facility.on_both` says; the installed one where nothing does."""
    if getattr(request, "param", "stdio") == "script":
        with facility.of_script() as script:
            yield script
    else:
        found = facility.of_bridge(request.getfixturevalue("facility_bridge"))
        yield found
        found.close()


@pytest.fixture
def fresh(target: Target) -> Client:
    """A client of the facility's server that has no session yet."""
    return target.client()


@pytest.fixture
def client(fresh: Client) -> Client:
    """A client of the facility's server in a session."""
    return fresh.open()


@pytest.fixture(scope="module")
def fuzzed_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bridge]]:
    """Start stand-alone bridges with the given arguments; they end with the module."""
    with bridges(tmp_path_factory) as start:
        yield partial(start, "--listen=127.0.0.1:0", "--auth=none")
