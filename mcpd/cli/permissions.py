# SPDX-License-Identifier: LGPL-2.1-or-later
"""Descriptions and checks of permission strings (``docs/permissions.md``)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, InvalidManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_PROPERTY: Final = re.compile(r"\{config\.([A-Za-z0-9_.-]+)")


def described(permission: str) -> str:
    """Return one line for *permission*: the string and an explanation."""
    from mcpd.runtime.permissions import explain  # slow to import, and few commands need it

    words, fault = explain(permission)
    if fault:
        words = f"{fault}: the server will not be started"
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
    from mcpd.runtime.permissions import KNOWN, explain

    for permission in permissions:
        words, fault = explain(permission)
        if not words:
            reason = fault if fault.startswith("never") else f"not a permission; known permissions: {KNOWN}"
            raise InvalidArgument(f"--permission {permission[:200]!r}: {reason}")


def missing_paths(permissions: Iterable[str], values: Mapping[str, Any], home: Path) -> Iterator[tuple[str, Path]]:
    """Yield the key and path of each path in *values* that *permissions* need and that does not exist.

    ``~`` stands for *home*. Directories that are created for the server are left out, and inaccessible paths are
    assumed to exist.
    """
    named = [permission for permission in permissions if _PROPERTY.search(permission)]
    if not named:
        return
    from mcpd.runtime.permissions import parse

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
