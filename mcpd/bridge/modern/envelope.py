# SPDX-License-Identifier: LGPL-2.1-or-later
"""The information about the client in each request of revision 2026-07-28, in ``params._meta``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.handshake.greeting import CLIENT as BRIDGE
from mcpd.bridge.handshake.greeting import greeting
from mcpd.bridge.jsonrpc import Raw
from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    from mcpd.bridge.jsonrpc import Message

PREFIX: Final = eras.META
VERSION: Final = eras.META_VERSION
CAPABILITIES: Final = eras.META_CAPABILITIES
CLIENT: Final = eras.META_CLIENT
LOG_LEVEL: Final = eras.META + "logLevel"
SERVER_INFO: Final = eras.META + "serverInfo"
SUBSCRIPTION: Final = eras.META_SUBSCRIPTION
MAX_CAPABILITIES: Final = 15000
"""Bytes of the capabilities that a client may declare."""
MAX_KEPT: Final = 4096
"""Bytes of an envelope that is remembered."""
_OWN: Final = frozenset({VERSION, CAPABILITIES, LOG_LEVEL, CLIENT})


@dataclass(frozen=True, slots=True)
class Envelope:
    """The envelope of a request, read."""

    version: str
    capabilities: bytes
    """Canonical JSON: equal declarations have equal bytes."""
    asks: frozenset[str]
    """What a server may ask the client, as ``sampling`` or ``elicitation/url``."""
    level: str
    """The least severe log messages that the client wants; empty if it wants none."""
    rest: bytes
    """The ``_meta`` without all this, as a JSON object; empty if nothing is left."""
    greeting: bytes
    """That of the processes of the handshake era which serve clients with these capabilities."""
    is_lasting: bool
    """True if other requests of the client are likely to have it, too."""


def read(meta: Raw | None) -> Envelope:
    """The envelope in the raw *meta*. Raises :class:`~mcpd.errors.InvalidArgument` if it is not complete."""
    text = bytes(meta) if meta is not None else b""
    if len(text) > MAX_KEPT or b"progressToken" in text:
        return _read(text)
    return _read_kept(text)


def _read(text: bytes) -> Envelope:
    # The first byte tells an object from everything else that is JSON.
    if text[:1] != b"{":
        raise InvalidArgument(f'"params._meta" must be an object with {VERSION!r} and {CAPABILITIES!r}')
    meta = jsonrpc.members(Raw(text))
    missing = [name for name in (VERSION, CAPABILITIES) if name not in meta]
    if missing:
        raise InvalidArgument(f'"params._meta" lacks {" and ".join(missing)}')
    version = _text(meta, VERSION)
    level = _text(meta, LOG_LEVEL) if LOG_LEVEL in meta else ""
    if level and level not in eras.LEVELS:
        raise InvalidArgument(f"{LOG_LEVEL} is {level[:40]!r}: it must be one of {', '.join(eras.LEVELS)}")
    capabilities, asks = _capabilities(bytes(meta[CAPABILITIES]))
    rest = {name: value for name, value in meta.items() if name not in _OWN}
    return Envelope(
        version,
        capabilities,
        asks,
        level,
        jsonrpc.encode(rest) if rest else b"",
        greeting(eras.LATEST_HANDSHAKE, capabilities),
        len(text) <= MAX_KEPT and jsonrpc.PROGRESS_TOKEN not in rest,
    )


def of_bridge(said: Envelope) -> bytes:
    """The ``_meta`` with which the bridge asks something for all clients that have the capabilities of *said*."""
    meta = {VERSION: said.version, CAPABILITIES: Raw(said.capabilities), CLIENT: BRIDGE}
    return jsonrpc.encode(meta)


_read_kept = lru_cache(maxsize=256)(_read)


def _text(meta: Message, name: str) -> str:
    try:
        return msgspec.json.decode(meta[name], type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidArgument(f"{name} in params._meta must be a string") from None


@lru_cache(maxsize=256)
def _capabilities(text: bytes) -> tuple[bytes, frozenset[str]]:
    if len(text) > MAX_CAPABILITIES:
        raise InvalidArgument(f"{CAPABILITIES} has more than {MAX_CAPABILITIES} bytes")
    try:
        declared: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument(f"{CAPABILITIES} must be an object") from None
    # Tasks were of 2025-11-25 alone; that roots change is told by no client of this revision.
    kept = {name: value for name, value in declared.items() if name != "tasks" and isinstance(value, dict)}
    if "roots" in kept:
        kept["roots"] = {}
    asks = set(kept) & {"roots", "sampling"}
    if "elicitation" in kept:
        modes: dict[str, Any] = {
            mode: {} for mode in ("form", "url") if isinstance(kept["elicitation"].get(mode), dict)
        }
        # A client that names no mode means forms.
        kept["elicitation"] = {**kept["elicitation"], **(modes or {"form": {}})}
        asks |= {f"elicitation/{mode}" for mode in modes or ("form",)}
    asks |= {f"sampling/{part}" for part in ("tools", "context") if part in kept.get("sampling", {})}
    return msgspec.json.encode(kept, order="sorted"), frozenset(asks)
