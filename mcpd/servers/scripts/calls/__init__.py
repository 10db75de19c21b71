# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of a script, each in processes of its own that end with it.

:class:`Calls` is the whole interface. It starts a small *zygote*, which forks a *keeper* for each call; the keeper
forks the *worker* that runs the script, and ends the call's whole process tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcpd.servers.scripts.calls.calls import Calls
    from mcpd.servers.scripts.calls.job import Limits, Outcome, PythonJob, ShellJob

__all__ = ["Calls", "Limits", "Outcome", "PythonJob", "ShellJob"]


def __getattr__(name: str) -> object:
    """Import on demand: the zygote imports this package as well, and must not load asyncio."""
    if name == "Calls":
        from mcpd.servers.scripts.calls import calls

        return calls.Calls
    if name in __all__:
        from mcpd.servers.scripts.calls import job

        return getattr(job, name)
    raise AttributeError(name)
