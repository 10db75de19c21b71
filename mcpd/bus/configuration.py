# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configuration values and secrets as they arrive in a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.readfd import read_all
from mcpd.bus.wire import Handle
from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    from mcpd.bus.caller import Call
    from mcpd.model import JsonValue

MAX_SECRET: Final = 64 * 1024
"""Bytes of one secret."""


def values(changes: Mapping[str, Any]) -> dict[str, JsonValue]:
    """*changes*, as unwrapped from an ``a{sv}``, if they are values that JSON has.

    Raises :class:`~mcpd.errors.InvalidArgument` naming the key for bytes and file descriptors.
    """
    return {key: _value(key, value) for key, value in changes.items()}


def _value(key: str, value: object) -> JsonValue:
    if isinstance(value, Mapping):
        return {str(inner): _value(f"{key}.{inner}", item) for inner, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(key, item) for item in value]
    if isinstance(value, Handle) or not isinstance(value, (bool, int, float, str)):
        raise InvalidArgument(f"{key}: a value is a string, number, boolean, list or dictionary")
    return value


async def secret(call: Call, index: int, key: str) -> str | None:
    """The secret in file descriptor *index* of *call*, ``None`` if it is empty.

    Raises what :func:`~mcpd.bus.readfd.read_all` raises, and :class:`~mcpd.errors.InvalidArgument` unless it is
    UTF-8.
    """
    data = await read_all(call.fds.get(index), MAX_SECRET, f"the value of {key!r}")
    try:
        return data.decode() or None
    except UnicodeDecodeError:
        raise InvalidArgument(f"the value of {key!r} is not UTF-8") from None
