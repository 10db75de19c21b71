# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ``initialize`` request that the bridge sends to a process that several clients share."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from mcpd import __version__
from mcpd.bridge import eras, jsonrpc
from mcpd.errors import InvalidArgument

MOST_GREETING: Final = 16384
"""Bytes of declared capabilities."""
_ASKING: Final = ("elicitation", "sampling", "roots")
CLIENT: Final = {"name": "mcpd-bridge", "version": __version__}
"""The name and version of the bridge."""


def greeting(revision: str, capabilities: bytes) -> bytes:
    """The ``initialize`` params of the bridge for clients that asked for *revision* and declared *capabilities*.

    *capabilities* is a JSON object. Equal ones give equal bytes; what makes no difference to a process is left out.
    Raises :class:`~mcpd.errors.InvalidArgument` if they are too large, or no object.
    """
    if len(capabilities) > MOST_GREETING or len(revision) > 64:
        raise InvalidArgument(f"the declared capabilities are longer than {MOST_GREETING} bytes")
    return _greeting(revision, capabilities)


@lru_cache(maxsize=64)
def _greeting(revision: str, capabilities: bytes) -> bytes:
    try:
        found = msgspec.json.decode(capabilities or b"{}", type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument("the declared capabilities are not a JSON object") from None
    kept = {name: value for name, value in found.items() if value is not None}
    if kept.get("elicitation") == {"form": {}}:
        kept["elicitation"] = {}
    if "roots" in kept:
        # Which client's roots have changed could not be told to a process of several.
        kept["roots"] = {}
    for name in ("experimental", "extensions"):
        if kept.get(name) == {}:
            del kept[name]
    params = {"protocolVersion": revision, "capabilities": kept, "clientInfo": CLIENT}
    return msgspec.json.encode(params, order="deterministic")


POOL_GREETING: Final = greeting(eras.LATEST_HANDSHAKE, b"{}")
"""That of the processes for clients of which nothing is known."""


@lru_cache(maxsize=64)
def may_ask(of: bytes) -> bool:
    """Return True if the greeting *of* a process lets its server ask clients."""
    capabilities = jsonrpc.members(jsonrpc.members(jsonrpc.Raw(of)).get("capabilities"))
    return any(name in capabilities for name in _ASKING)
