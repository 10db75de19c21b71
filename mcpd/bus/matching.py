# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signals, and the rules that tell a message bus which of them a connection wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mcpd.bus.names import DBUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.bus.transport import Frame


class Signal(NamedTuple):
    """A received signal."""

    sender: str
    path: str
    interface: str
    member: str
    args: list[Any]


class Match(NamedTuple):
    """Which signals a listener wants; empty fields match anything."""

    sender: str = ""
    path: str = ""
    interface: str = ""
    member: str = ""
    arg0: str = ""
    arg2: str | None = None
    """Here the empty string is a value: NameOwnerChanged has it for a name that lost its owner."""

    def rule(self) -> str:
        """The match rule for the bus."""
        wanted = {key: value for key, value in self._asdict().items() if value or (key, value) == ("arg2", "")}
        return ",".join(["type='signal'", *(f"{key}='{value}'" for key, value in wanted.items())])

    def accepts(self, frame: Frame) -> bool:
        """Whether *frame* may be meant. A well-known sender name is the bus's to check."""
        return (
            self.path in ("", frame.path)
            and self.interface in ("", frame.interface)
            and self.member in ("", frame.member)
            and (not self.sender.startswith((":", DBUS)) or self.sender == frame.sender)
        )

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether a signal with *args* is meant."""
        return (not self.arg0 or args[:1] == [self.arg0]) and (self.arg2 is None or args[2:3] == [self.arg2])
