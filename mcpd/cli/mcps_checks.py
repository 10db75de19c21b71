# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is wrong with the files of the mcps map (``docs/mcps.md``), as mcpd itself goes on without them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.checks import Check
from mcpd.errors import InvalidManifest
from mcpd.model import load_json
from mcpd.model.mcps import parse_entry, unknown_fields
from mcpd.store.files import is_missing, read_file
from mcpd.store.mcps import files_in, layers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from mcpd.paths import Paths, Scope

NAME: Final = "mcps map"


def map_checks(paths: Paths, scope: Scope, installed: Collection[str] | None = None) -> Iterator[Check]:
    """A failure for each file that is not used, and for each entry that is not understood.

    *installed*, if it is known, are the ids of the installed servers: what is said of others has no effect, which is
    a warning.
    """
    known: list[Path] = []
    faults: list[Check] = []
    for first, directory in layers(paths, scope):
        known += first
        try:
            known += files_in(directory)
        except OSError as error:
            if not is_missing(error):
                faults.append(_unused(f"{directory}: {error.strerror}", "the directory"))
    read = 0
    for path in known:
        found = _file(path, installed)
        read += found is not None
        faults += found or ()
    yield from faults
    if read and not faults:
        yield Check(NAME, "ok", f"{read} file{'s' if read > 1 else ''} understood")


def _file(path: Path, installed: Collection[str] | None) -> list[Check] | None:
    """What is wrong with the file *path*; ``None`` if there is none."""
    try:
        text = read_file(path)
        data = load_json(text, str(path))
    except InvalidManifest as error:
        return [_unused(error.message)]
    except OSError as error:
        return None if is_missing(error) else [_unused(f"{path}: {error.strerror}")]
    if not isinstance(data, dict):
        return [_unused(f"{path}:1: the map is an object, from server ids to entries")]
    return list(_entries(path, text, data, installed))


def _entries(path: Path, text: bytes, data: dict[str, Any], installed: Collection[str] | None) -> Iterator[Check]:
    for server_id, raw in data.items():
        where = f"{path}:{_line(text.decode(errors='replace'), server_id)}"
        try:
            parse_entry(server_id, raw, where)
        except InvalidManifest as error:
            advice = "mend the entry; its server is disabled until then"
            yield Check(NAME, "fail", error.message, advice)
            continue
        for field in unknown_fields(raw):
            message = f"{where}: the entry has {field!r}, which is no field of it and has no effect"
            yield Check(NAME, "warn", message, "docs/mcps.md has all fields")
        if installed is not None and server_id not in installed:
            message = f"{where}: there is no server {server_id!r}, so its entry has no effect"
            yield Check(NAME, "warn", message, "'mcpctl list' shows the ids of what is installed")


def _unused(fault: str, what: str = "the file") -> Check:
    return Check(
        NAME,
        "fail",
        f"{fault}; {what} counts as empty: what it takes away is NOT taken away",
        f"mend {what}; mcpd looks at it every other second",
    )


def _line(text: str, server_id: str) -> int:
    """Where the entry begins; 1 if its id is written in another way."""
    key = re.search(re.escape(json.dumps(server_id, ensure_ascii=False)) + r"\s*:", text)
    return text.count("\n", 0, key.start()) + 1 if key is not None else 1
