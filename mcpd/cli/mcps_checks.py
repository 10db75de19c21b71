# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is wrong with the files of the mcps map (``docs/mcps.md``), as mcpd itself goes on without them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from mcpd.cli.checks import Check
from mcpd.errors import InvalidManifest
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from mcpd.paths import Paths

NAME: Final = "mcps map"


def files(paths: Paths, scope: Scope) -> list[Path]:
    """Those that there are for *scope*, by rising precedence. Raises OSError for a directory that cannot be read."""
    layouts = [paths.system, *([paths.user] if scope is Scope.USER else [])]
    found = [paths.vendor_mcps]
    for layout in layouts:
        more = layout.mcps_dir.iterdir() if layout.mcps_dir.is_dir() else ()
        found += [layout.mcps, *sorted(path for path in more if path.suffix == ".json" and path.name[0] != ".")]
    return [path for path in found if path.exists()]


def map_checks(paths: Paths, scope: Scope, installed: Collection[str] | None = None) -> Iterator[Check]:
    """A failure for each file that is not used, and for each entry that is not understood.

    *installed*, if it is known, are the ids of the installed servers: what is said of others has no effect, which is
    a warning.
    """
    try:
        known = files(paths, scope)
    except OSError as error:
        yield _unused(f"{error.filename}: {error.strerror}")
        return
    faults = False
    for path in known:
        for check in _file(path, installed):
            faults = True
            yield check
    if known and not faults:
        yield Check(NAME, "ok", f"{len(known)} file{'s' if len(known) > 1 else ''} understood")


def _file(path: Path, installed: Collection[str] | None) -> Iterator[Check]:
    from mcpd.model import load_json  # noqa: PLC0415 -- few have such files
    from mcpd.model.mcps import parse_entry  # noqa: PLC0415
    from mcpd.store.files import read_file  # noqa: PLC0415

    try:
        text = read_file(path)
        data = load_json(text, str(path))
    except InvalidManifest as error:
        yield _unused(error.message)
        return
    except OSError as error:
        yield _unused(f"{path}: {error.strerror}")
        return
    if not isinstance(data, dict):
        yield _unused(f"{path}:1: the map is an object, from server ids to entries")
        return
    for server_id, raw in data.items():
        where = f"{path}:{_line(text.decode(errors='replace'), server_id)}"
        try:
            parse_entry(server_id, raw, where)
        except InvalidManifest as error:
            advice = "mend the entry; its server is disabled until then"
            yield Check(NAME, "fail", error.message, advice)
            continue
        if installed is not None and server_id not in installed:
            message = f"{where}: there is no server {server_id!r}, so its entry has no effect"
            yield Check(NAME, "warn", message, "'mcpctl list' shows the ids of what is installed")


def _unused(fault: str) -> Check:
    return Check(
        NAME,
        "fail",
        f"{fault}; the file counts as empty: what it takes away is NOT taken away",
        "mend the file; mcpd looks at it every other second",
    )


def _line(text: str, server_id: str) -> int:
    """Where the entry begins; 1 if its id is written in another way."""
    key = re.search(re.escape(json.dumps(server_id, ensure_ascii=False)) + r"\s*:", text)
    return text.count("\n", 0, key.start()) + 1 if key is not None else 1
