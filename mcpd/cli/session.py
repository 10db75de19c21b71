# SPDX-License-Identifier: LGPL-2.1-or-later
"""The way of a command to mcpd: which bus, and whether somebody can be asked for a password."""

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
    """Connect to the instance that *args* name; for a *changing* command, somebody may be asked for a password.

    A server that the block does not find is answered with the id that may have been meant. Raises
    :class:`~mcpd.errors.ServiceUnavailable`.
    """
    with asking(args, system=changing and args.system):
        async with connect(args.system, interactive=changing and args.interactive) as bus:
            try:
                yield bus
            except NotFound as error:
                from mcpd.cli.suggestions import with_suggestion  # noqa: PLC0415 - only mistakes need it

                raise await with_suggestion(bus, args, error) from None


def asking(args: argparse.Namespace, *, system: bool) -> AbstractContextManager[None]:
    """Polkit's text agent, for calls to the *system* instance that need authorization."""
    if not (system and args.interactive):
        return nullcontext()
    from mcpd.cli.agent import password_agent  # noqa: PLC0415 - only changes of the system need it

    return password_agent()
