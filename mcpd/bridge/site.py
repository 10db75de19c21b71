# SPDX-License-Identifier: LGPL-2.1-or-later
"""The owner of a bridge and its addresses, for its pages."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import socket as sockets
    from collections.abc import Awaitable, Callable

    from mcpd.bridge.http.tls import Certificate


@dataclass(slots=True)
class Site:
    """One bridge."""

    kind: Literal["alone", "user", "system"] = "alone"
    socket: Path | None = None
    """Its unix socket."""
    urls: list[str] = field(default_factory=list)
    """The base URLs of its TCP listeners."""
    port_changes: bool = False
    """True if they are others after the next start."""
    needs_token: bool = True
    """True if TCP clients show a token."""
    key: Path | None = None
    """The file with the public key that the configurations of clients are verified with; absent until one is made."""
    mcps: tuple[str, ...] = ()
    """Where the mcps map is read from, later files winning."""
    certificate: Certificate | None = None
    """What TCP clients are shown; without one they speak plain HTTP."""
    listen: Callable[[sockets.socket], Awaitable[None]] | None = None
    """Serves a further socket, once the bridge serves."""
    open_tcp: Callable[[], Awaitable[str]] | None = None
    """Makes it listen on TCP if it does not yet; returns its base URL, or raises what forbids to."""

    @property
    def scheme(self) -> str:
        """Of its URLs."""
        return "http" if self.certificate is None else "https"

    @property
    def mcpctl(self) -> list[str]:
        """How ``mcpctl`` is called to speak of this bridge's servers: by its path, if applications may not find it."""
        name = "mcpctl"
        beside = Path(sys.executable).with_name(name)
        if sys.prefix != sys.base_prefix and beside.exists():
            name = str(beside)
        if self.kind == "system":
            return [name, "--system"]
        # Root's usual instance is the system's.
        return [name, "--user"] if os.getuid() == 0 else [name]

    @property
    def shell(self) -> str:
        """The same for a shell."""
        return shlex.join(self.mcpctl)
