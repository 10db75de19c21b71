# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transports: ways to reach a server."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from mcpd.errors import InvalidManifest
from mcpd.model.base import Document, Strings, Text
from mcpd.model.legacy import modern_transport_type


class TransportType(StrEnum):
    """Types of transport; only ``stdio`` is started as a process."""

    STDIO = "stdio"
    SSE = "sse"
    STREAMABLE_HTTP = "streamable-http"
    WEBSOCKET = "websocket"


_NEEDED: Final = {
    TransportType.STDIO: ("command", "command"),
    TransportType.SSE: ("url", "url"),
    TransportType.STREAMABLE_HTTP: ("url", "url"),
    TransportType.WEBSOCKET: ("ws_url", "wsUrl"),
}


SCHEMES: Final = {
    TransportType.SSE: ("http://", "https://"),
    TransportType.STREAMABLE_HTTP: ("http://", "https://"),
    TransportType.WEBSOCKET: ("ws://", "wss://"),
}
"""Valid beginnings of a remote server's URL, by transport type."""


class Transport(Document):
    """One way to reach a server."""

    type: Annotated[TransportType | str, Field(union_mode="left_to_right"), BeforeValidator(modern_transport_type)]
    """An unknown type is kept and never used."""
    command: Text = ""
    args: Strings = Field(default_factory=list)
    description: Text = ""
    url: Text = ""
    ws_url: Text = ""
    headers: JsonValue = None
    """HTTP headers for a remote server; the values may contain ``{config.KEY}``."""
    platforms: JsonValue = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if isinstance(self.type, TransportType):
            field, name = _NEEDED[self.type]
            if not getattr(self, field):
                raise ValueError(f"a {self.type} transport needs {name!r}")
        return self

    @property
    def address(self) -> str:
        """URL of a remote server."""
        return self.ws_url if self.type is TransportType.WEBSOCKET else self.url

    @property
    def is_remote(self) -> bool:
        """True for a remote server, which ``mcpd-remote`` connects to."""
        return isinstance(self.type, TransportType) and self.type is not TransportType.STDIO

    def check_remote(self) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` if the URL or headers are invalid."""
        schemes = SCHEMES.get(self.type, ()) if isinstance(self.type, TransportType) else ()
        if not self.address.lower().startswith((*schemes, "{config.")):
            raise InvalidManifest(f"the URL of its {self.type} transport does not begin with {' or '.join(schemes)}")
        self.header_texts()

    def header_texts(self) -> dict[str, str]:
        """Return :attr:`headers` by name. Raises :class:`~mcpd.errors.InvalidManifest` if any is not a string."""
        found = self.headers if self.headers is not None else {}
        if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
            raise InvalidManifest(f"the headers of its {self.type} transport are not an object of strings")
        return {name: str(text) for name, text in found.items()}

    @property
    def runs_here(self) -> bool:
        """True if the transport supports Linux."""
        return covers_linux(self.platforms)


def covers_linux(platforms: JsonValue) -> bool:
    """Return whether *platforms* includes Linux: true if absent or empty, false if invalid."""
    if platforms is None:
        return True
    if not isinstance(platforms, list) or not all(isinstance(name, str) for name in platforms):
        return False
    named = [str(name).strip().lower() for name in platforms if str(name).strip()]
    return not named or "linux" in named
