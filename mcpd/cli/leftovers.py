# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is kept for a script server beside its file, and what the next one of its id would get: values, secrets, state.

An installed server loses all that when mcpd removes it; the file of a script is removed without mcpd.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from mcpd.cli.output import warn
from mcpd.cli.session import open_bus
from mcpd.errors import NotFound, ServiceUnavailable
from mcpd.paths import Scope
from mcpd.store import Store
from mcpd.store.files import remove_tree

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from mcpd.paths import Paths


def is_used(paths: Paths, scope: Scope, server_id: str) -> bool:
    """Whether the scope's own script *server_id* is the server of that id, and so what is kept for that is its own."""
    try:
        server = Store(paths, scope).get(server_id)
    except NotFound:
        return False
    return server.script is not None and server.layer == scope


async def forget(args: argparse.Namespace, paths: Paths, scope: Scope, server_id: str) -> None:
    """Have all that is kept for the script server *server_id* removed, whatever is wrong with its script.

    Without mcpd a user's own values and secrets are removed here; :func:`drop` tells what is left. Raises what mcpd
    refuses it with, and then nothing was removed.
    """
    try:
        async with open_bus(args, changing=True) as bus:
            (await bus.run_job("Uninstall", "sa{sv}", [server_id, {"forget": True}])).check()
    except ServiceUnavailable:
        if scope is Scope.USER:
            await asyncio.to_thread(Store(paths, scope).forget, server_id)


def drop(paths: Paths, scope: Scope, server_id: str) -> bool:
    """Remove the state of *server_id*, whose script is gone, if it is the user's; whether nothing is left.

    What is left is told.
    """
    layout = paths.layout(scope)
    state = layout.state / server_id
    left = [path for place in (layout.secrets, layout.overlay) if os.path.lexists(path := place / f"{server_id}.json")]
    if state.is_dir() and not state.is_symlink() and not (scope is Scope.USER and _removed(state)):
        left.append(state)
    if left:
        how = "remove it" if scope is Scope.USER else "it is mcpd's; remove it as root when nothing of the server runs"
        warn(f"the next server {server_id} gets what is left of this one: {', '.join(map(str, left))}; {how}")
    return not left


def _removed(state: Path) -> bool:
    try:
        remove_tree(state)
    except OSError:
        return False
    return True
