# SPDX-License-Identifier: LGPL-2.1-or-later
"""The dictionaries of options that methods end in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from mcpd.bus import configuration
from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.install.options import InstallOptions

T = TypeVar("T")
_NAMES: Final[Mapping[type, str]] = {
    str: "a string", int: "a number", bool: "true or false", dict: "a dictionary", list: "a list of strings",
}  # fmt: skip


def option(options: Mapping[str, Any], key: str, kind: type[T], default: T) -> T:
    """The option *key*. Raises :class:`~mcpd.errors.InvalidArgument` for one that is no *kind*."""
    value = options.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidArgument(f"option {key!r} is {_NAMES[kind]}")
    return value


def flag(options: Mapping[str, Any], key: str) -> bool | None:
    """The option *key*, true or false; None if it is not given."""
    return option(options, key, bool, default=False) if key in options else None


def install_options(options: Mapping[str, Any]) -> InstallOptions:
    """What the caller says about an installation."""
    from mcpd.install.options import InstallOptions  # noqa: PLC0415 -- installing is not needed to start

    return InstallOptions(
        consent=option(options, "consent", bool, default=False),
        config=configuration.values(option(options, "config", dict, {})),
        version=option(options, "version", str, ""),
        source=option(options, "source", str, ""),
        dry_run=option(options, "dry-run", bool, default=False),
        reinstall=option(options, "reinstall", bool, default=False),
        check=not option(options, "no-check", bool, default=False),
    )
