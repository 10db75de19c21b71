# SPDX-License-Identifier: LGPL-2.1-or-later
"""Descriptions and checks of permission strings (``docs/permissions.md``)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, InvalidManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_CONDITION: Final = re.compile(r"(.*)\?([A-Za-z0-9_.-]+)", re.DOTALL)
_PROPERTY: Final = re.compile(r"\{config\.([A-Za-z0-9_.-]+)")
_BUS: Final = "session-bus:talk:"
_WHOLE: Final = {
    "network": "may use the network",
    "devices": "may use the devices of this machine",
    "mcp": "may call all your other servers",
    "installed": "may see the installed servers and their configuration",
}
_BEGINNINGS: Final = {
    "filesystem:ro:": "may read {}",
    "filesystem:rw:": "may read and change {}",
    "filesystem:create:": "may read and change {}, which is created for it",
    _BUS: "may call {} on the session bus, and use everything that this program offers",
    "mcp:": "may call the server {}",
}


def meaning(permission: str) -> str:
    """Describe what *permission* grants; return an empty text for a remark for people, which grants nothing.

    Raises :class:`~mcpd.errors.InvalidManifest` for an invalid permission, and for one that is never granted.
    """
    # Slow to import, and few commands need it.
    from mcpd.runtime.permissions import SHARED, parse  # noqa: PLC0415

    if parse("the manifest", [permission], {}).ignored:
        return ""
    what, condition = _conditional(permission)
    name = what.removeprefix(_BUS)
    words = _WHOLE.get(what) or (f"may call {name} on the session bus" if name in SHARED else "")
    words = words or next(
        (text.format(what.removeprefix(begin)) for begin, text in _BEGINNINGS.items() if what.startswith(begin)), ""
    )
    return f"{words}, while {condition} is true" if condition else words


def described(permission: str) -> str:
    """Return one line for *permission*: the string, and what it grants."""
    try:
        words = meaning(permission)
    except InvalidManifest:
        words = f"{_refusal(permission) or 'not a permission'}: the server is not started"
    return f"{permission}  ({words or 'a remark, grants nothing'})"


def described_as(permission: str, filled_in: str) -> str:
    """Return one line for *permission* with the values of its properties, from *filled_in*, and their keys."""
    if filled_in in {"", permission}:
        return described(permission)
    beginning = permission.partition("{config.")[0]
    parts = filled_in.split(f", {beginning}") if beginning else [filled_in]
    each = [parts[0], *(beginning + part for part in parts[1:])]
    names = ", ".join(dict.fromkeys(_PROPERTY.findall(permission)))
    return "; ".join(map(described, each)) + (f"  (from property {names})" if names else "")


def check(permissions: Iterable[str]) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` unless each of *permissions* grants something."""
    for permission in permissions:
        try:
            words = meaning(permission)
        except InvalidManifest:
            words = ""
        if not words:
            from mcpd.runtime.permissions import KNOWN  # noqa: PLC0415 - as above

            raise InvalidArgument(
                f"--permission {permission[:200]!r}: {_refusal(permission) or f'not a permission; there are {KNOWN}'}"
            )


def missing_paths(permissions: Iterable[str], values: Mapping[str, Any], home: Path) -> Iterator[tuple[str, Path]]:
    """Yield the paths in *values* that *permissions* need and that do not exist, each with its key.

    ``~`` stands for *home*. Directories that are created for the server do not count, and inaccessible paths are
    assumed to exist.
    """
    named = [permission for permission in permissions if _PROPERTY.search(permission)]
    if not named:
        return
    from mcpd.runtime.permissions import parse  # noqa: PLC0415 - as above

    try:
        grants = parse("the manifest", named, values).paths
    except InvalidManifest:
        # The server does not start with invalid permissions anyway.
        return
    seen: set[Path] = set()
    for grant in grants:
        path = home / grant.path[2:] if grant.path == "~" or grant.path.startswith("~/") else Path(grant.path)
        if not grant.create and path not in seen and _is_missing(path):
            seen.add(path)
            yield _PROPERTY.findall(grant.permission)[0], path


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError:
        return False
    except (OSError, ValueError):
        return True
    return False


def _refusal(permission: str) -> str:
    """Return why *permission* is never granted; empty if it can be."""
    from mcpd.runtime.permissions import refusal  # noqa: PLC0415 - as above

    what, _ = _conditional(permission)
    reason = refusal(what.removeprefix(_BUS)) if what.startswith(_BUS) else ""
    return reason and f"never granted, as {reason}"


def _conditional(permission: str) -> tuple[str, str]:
    """Split *permission* into the part before ``?KEY``, and KEY."""
    found = _CONDITION.fullmatch(permission)
    return (found[1], found[2]) if found else (permission, "")
