# SPDX-License-Identifier: LGPL-2.1-or-later
"""What holds for all tests."""

from __future__ import annotations

import signal

from tests.children import no_child_stays  # noqa: F401 -- for every module


def pytest_configure() -> None:
    """Let tests interrupt what they start: jobs in the background, or under nohup, pass on that signals are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
