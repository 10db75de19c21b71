# SPDX-License-Identifier: LGPL-2.1-or-later
"""Connections of commands to mcpd: the bus of the scope, and authorization."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from mcpd.bus.client import connect
from mcpd.errors import NotFound

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager

    from mcpd.bus.client import Client


@asynccontextmanager
async def open_bus(args: argparse.Namespace, *, changing: bool = False) -> AsyncIterator[Client]:
    """Connect to mcpd in the scope of *args*; a *changing* command may ask for a password.

    If the block raises ``NotFound``, a similar id is suggested. Raises
    :class:`~mcpd.errors.ServiceUnavailable`.
    """
    with asking(args, system=changing and args.system):
        async with connect(args.system, interactive=changing and args.interactive) as bus:
            try:
                yield bus
            except NotFound as error:
                from mcpd.cli.suggestions import with_suggestion

                raise await with_suggestion(bus, args, error) from None


def asking(args: argparse.Namespace, *, system: bool) -> AbstractContextManager[None]:
    """Return a context with polkit's text agent, for calls to the *system* instance that need authorization."""
    if not (system and args.interactive):
        return nullcontext()
    from mcpd.cli.agent import password_agent  # only for changes in the system scope

    return password_agent()
