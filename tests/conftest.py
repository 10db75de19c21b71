# SPDX-License-Identifier: LGPL-2.1-or-later
"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

from tests.children import no_child_stays  # noqa: F401 -- for every module
from tests.preloaded import python
from tests.rig import Rig

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
