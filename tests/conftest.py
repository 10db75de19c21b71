# SPDX-License-Identifier: LGPL-2.1-or-later
"""What holds for all tests."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.children import no_child_stays  # noqa: F401 -- for every module
from tests.preloaded import python
from tests.rig import Rig

UNIT: Final = Path(__file__).with_name("unit")
STARTS: Final = frozenset({"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
"""The audit events of new processes."""

Rig.interpreter = staticmethod(python)

# How long an example takes depends on the machine, and a fixture's directory serves all examples of a test.
UNCHECKED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("thorough", max_examples=300, deadline=None, suppress_health_check=UNCHECKED)
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=20, derandomize=True, database=None)
settings.load_profile("quick")


def pytest_configure() -> None:
    """Let tests interrupt what they start: jobs in the background, or under nohup, pass on that signals are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take all but the unit tests as tests that start processes."""
    for item in items:
        if not item.path.is_relative_to(UNIT):
            item.add_marker(pytest.mark.process)


@pytest.fixture(scope="session", autouse=True)
def no_process(request: pytest.FixtureRequest) -> None:
    """Let no test start a process where those that say so are left out."""
    if request.config.option.markexpr == "not process":
        sys.addaudithook(_refuse)


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if event in STARTS:
        pytest.fail('this starts a process: its module needs "pytestmark = pytest.mark.process"')
