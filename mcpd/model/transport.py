# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a server is reached (seed 001 §6.1)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from mcpd.model.base import Document, Strings, Text
from mcpd.model.legacy import modern_transport_type


class TransportType(StrEnum):
    """Kinds of transport; only ``stdio`` is started as a process."""

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


class Transport(Document):
    """One way to reach a server."""

    type: Annotated[TransportType | str, Field(union_mode="left_to_right"), BeforeValidator(modern_transport_type)]
    """A kind mcpd does not know is kept and never used."""
    command: Text = ""
    args: Strings = Field(default_factory=list)
    description: Text = ""
    url: Text = ""
    ws_url: Text = ""
    platforms: JsonValue = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if isinstance(self.type, TransportType):
            field, name = _NEEDED[self.type]
            if not getattr(self, field):
                raise ValueError(f"a {self.type} transport needs {name!r}")
        return self

    @property
    def runs_here(self) -> bool:
        """Whether the transport is meant for Linux."""
        return covers_linux(self.platforms)


def covers_linux(platforms: JsonValue) -> bool:
    """Whether a ``platforms`` declaration covers Linux: absent and empty do, one that cannot be read does not."""
    if platforms is None:
        return True
    if not isinstance(platforms, list) or not all(isinstance(name, str) for name in platforms):
        return False
    named = [str(name).strip().lower() for name in platforms if str(name).strip()]
    return not named or "linux" in named
