# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an ``mcps`` entry changes of a server: which tools it offers, under which names, with which arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mcpd.bridge.call import Shape
    from mcpd.bridge.jsonrpc import Message


class Policy(Protocol):
    """The rules of one entry."""

    def apply(self, method: str, message: Message) -> tuple[Message, Shape | None]:
        """The request *message* as the server is to see it, and what is to be done with the response.

        Raises the :class:`~mcpd.errors.McpdError` for what the entry does not allow.
        """
