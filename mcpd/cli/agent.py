# SPDX-License-Identifier: LGPL-2.1-or-later
"""The polkit agent that asks for a password on a plain terminal, as systemctl starts it."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mcpd.cli.prompt import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

_READY_TIMEOUT: Final = 5.0
_STOP_TIMEOUT: Final = 5.0


@contextmanager
def password_agent() -> Iterator[None]:
    """Run ``pkttyagent`` for this process if somebody sits at a terminal.

    With ``--fallback`` it leaves a desktop's own agent the precedence. Root is never asked for a password.
    """
    program = shutil.which("pkttyagent") if os.geteuid() != 0 and terminal() else None
    if program is None:
        yield
        return
    ready, notify = os.pipe()
    with os.fdopen(ready, "rb"):
        try:
            agent = subprocess.Popen(
                [program, "--process", str(os.getpid()), "--fallback", "--notify-fd", str(notify)], pass_fds=[notify]
            )
        finally:
            os.close(notify)
        select.select([ready], [], [], _READY_TIMEOUT)
    try:
        yield
    finally:
        agent.terminate()
        try:
            agent.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
