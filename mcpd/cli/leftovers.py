# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is kept for a script server beside its file, and what the next one of its id would get: values, secrets, state.

An installed server loses all that when mcpd removes it; the file of a script is removed without mcpd.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcpd.cli import prompt
from mcpd.cli.output import clean, note, paint
from mcpd.cli.session import open_bus
from mcpd.errors import InvalidConfig, McpdError, NotFound, ServiceUnavailable
from mcpd.paths import Scope
from mcpd.store import Store
from mcpd.store.files import remove_tree

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from mcpd.bus.client import Client
    from mcpd.paths import Paths


def is_used(paths: Paths, scope: Scope, server_id: str) -> bool:
    """Whether the scope's own script *server_id* is the server of that id, and so what is kept for that is its own."""
    try:
        server = Store(paths, scope).get(server_id)
    except NotFound:
        return False
    return server.script is not None and server.layer == scope


async def unset(args: argparse.Namespace, server_id: str) -> None:
    """Have mcpd forget all values and secrets of the script server *server_id*, while its script is still there.

    What mcpd refuses is told. Without mcpd nothing happens; :func:`drop` tells what is left.
    """
    try:
        async with open_bus(args, changing=True) as bus:
            await _unset_all(bus, server_id)
    except (NotFound, ServiceUnavailable):
        return
    except McpdError as error:
        _tell(error)


async def _unset_all(bus: Client, server_id: str) -> None:
    values, secrets = await bus.manager.call("GetConfig", "s", [server_id])
    for key in sorted(values):
        try:
            await bus.manager.call("SetConfig", "sa{sv}a{sv}", [server_id, {}, {"unset": [key]}])
        except InvalidConfig as error:
            # One that an earlier version of the script had; the others go all the same.
            _tell(error)
    for key in secrets:
        with prompt.memfd(b"", "secret") as fd:
            await bus.manager.call("SetSecret", "ssha{sv}", [server_id, key, 0, {}], fds=[fd])


def _tell(error: McpdError) -> None:
    note(f"{paint('warning:', 'yellow')} mcpd did not forget what was set: {clean(error.message)}")


def drop(paths: Paths, scope: Scope, server_id: str) -> None:
    """Remove the state of *server_id*, whose script is gone, if it is the user's, and tell what of it is left."""
    layout = paths.layout(scope)
    state = layout.state / server_id
    left = [path for place in (layout.secrets, layout.overlay) if os.path.lexists(path := place / f"{server_id}.json")]
    if state.is_dir() and not state.is_symlink() and not (scope is Scope.USER and _removed(state)):
        left.append(state)
    if left:
        how = "remove it" if scope is Scope.USER else "it is mcpd's; remove it as root when nothing of the server runs"
        kept = ", ".join(clean(path) for path in left)
        note(f"{paint('warning:', 'yellow')} the next server {server_id} gets what is left of this one: {kept}; {how}")


def _removed(state: Path) -> bool:
    try:
        remove_tree(state)
    except OSError:
        return False
    return True
