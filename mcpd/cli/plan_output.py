# SPDX-License-Identifier: LGPL-2.1-or-later
"""The plan of an installation (the property ``Plan`` of a job) as text."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean
from mcpd.cli.permissions import described_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PINNED: Final = ("key", "version", "integrity")
_NETWORK: Final = "network"


def plan_lines(items: Sequence[Mapping[str, Any]], *, verbose: bool = False) -> list[str]:
    """Return the plan *items* as lines: package source, size, packages, command, permissions, properties, signers.

    Packages are counted; with *verbose* each is listed with its version and hash.
    """
    rows = [(heading, clean(text)) for heading, text in _rows(items, verbose=verbose)]
    width = max(len(heading) for heading, _ in rows) + 2
    lines, last = [], ""
    for heading, text in rows:
        lines.append(f"  {('' if heading == last else heading).ljust(width)}{text}")
        last = heading
    return lines


def named(items: Sequence[Mapping[str, Any]], file: str) -> list[dict[str, Any]]:
    """Return the plan *items* with the name of *file* added, since mcpd only received its content."""
    digests = {item.get("integrity") for item in items if item.get("kind") == "source"} - {None, ""}
    shown = []
    for item in items:
        kind, is_file = item.get("kind"), item.get("integrity") in digests
        own = {"source": {"key": file}, "package": {"key": file, "label": file} if is_file else {}}.get(str(kind), {})
        shown.append({**item, **own})
    return shown


def _rows(items: Sequence[Mapping[str, Any]], *, verbose: bool) -> Iterator[tuple[str, str]]:
    kinds: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for item in items:
        kinds[str(item.get("kind", ""))].append(item)
    yield from (("from", _words(item, "label", *_PINNED)) for item in kinds["source"])
    yield from (("size", _size(str(item.get("key", "")))) for item in kinds["size"])
    if verbose:
        yield from (("packages", _words(item, *_PINNED)) for item in kinds["package"])
    elif kinds["package"]:
        yield "packages", f"{len(kinds['package'])}  (--verbose lists them with their hashes)"
    yield from (("starts", _command(item)) for item in kinds["command"])
    yield from (("sets", _words(item, "key")) for item in kinds["variable"])
    granted = [(str(item.get("key", "")), str(item.get("label", ""))) for item in kinds["permission"]]
    for line in [described_as(text, label) for text, label in granted] or ["none beyond the sandbox"]:
        yield "permissions", line
    permissions = [text for text, _ in granted]
    yield "network", _network(permissions)
    yield from (("runs as", _words(item, "key")) for item in kinds["run-as"])
    yield from (("to be set", _setting(item)) for item in kinds["setting"])
    signers = [f"the key {item.get('key', '')}" for item in kinds["verified"]]
    yield "verified by", ", ".join(signers) or "nobody: no trusted key signed it"


def _words(item: Mapping[str, Any], *keys: str) -> str:
    return "  ".join(str(item[key]) for key in keys if item.get(key))


def _size(digits: str) -> str:
    """Return *digits*, a number of bytes, in MiB."""
    return f"{int(digits) / 2**20:.1f} MiB" if digits.isascii() and digits.isdigit() else digits


def _command(item: Mapping[str, Any]) -> str:
    """Return the command, or the address of a remote server with its transport."""
    how = item.get("label", "")
    return str(item.get("key", "")) + (f"  ({how})" if how not in {"", "stdio"} else "")


def _setting(item: Mapping[str, Any]) -> str:
    """Return the key and label of a required property without a value."""
    key, label = str(item.get("key", "")), item.get("label", "")
    return key + (f"  ({label})" if label not in {"", key} else "")


def _network(permissions: Sequence[str]) -> str:
    if _NETWORK in permissions:
        return "yes"
    conditions = [text.removeprefix(_NETWORK + "?") for text in permissions if text.startswith(_NETWORK + "?")]
    return f"while {' or '.join(conditions)} is true" if conditions else "no"
