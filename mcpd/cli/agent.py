# SPDX-License-Identifier: LGPL-2.1-or-later
"""The polkit agent that asks for a password on a terminal; systemctl uses the same one."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.cli.user_input import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUP: Final = Path("/proc/self/cgroup")
_USERS: Final = Path("/run/systemd/users")
_READY_TIMEOUT: Final = 5.0
_STOP_TIMEOUT: Final = 5.0


@contextmanager
def password_agent() -> Iterator[None]:
    """Run ``pkttyagent`` for this process at a terminal, unless the caller is root.

    If the session has an agent of its own, such as that of a desktop, that one takes precedence.
    """
    program = shutil.which("pkttyagent") if os.geteuid() != 0 and terminal() else None
    if program is None:
        yield
        return
    ready, notify = os.pipe()
    with os.fdopen(ready, "rb"):
        try:
            # polkit considers fallback agents only for processes in a session.
            fallback = ["--fallback"] if _in_session() else []
            agent = subprocess.Popen(
                [program, "--process", str(os.getpid()), *fallback, "--notify-fd", str(notify)], pass_fds=[notify]
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


def _in_session() -> bool:
    """Return whether logind has a session for this process: its own, or the graphical session of its user."""
    try:
        cgroup = _CGROUP.read_text()
        if "/session-" in cgroup:
            return True
        return "/user.slice/" in cgroup and "\nDISPLAY=" in (_USERS / str(os.getuid())).read_text()
    except OSError:
        return False
