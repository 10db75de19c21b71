# SPDX-License-Identifier: LGPL-2.1-or-later
"""The record of every call: ``audit.jsonl`` in the state directory, one JSON object a line.

It fails closed: a call that changes something is not begun, and an answer not given, that cannot be recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, NotAuthorized, from_oserror
from mcpd.servers.workstation.jail import MAX_PATH
from mcpd.servers.workstation.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.model import JsonValue
    from mcpd.servers.workstation.jail import Jail

NAME: Final = "audit.jsonl"
MAX_LOG: Final = 10 * 1024 * 1024
"""Bytes after which the record begins anew; the one before is kept as ``audit.jsonl.1``."""
PLACES: Final = ("path", "source", "destination")
"""Arguments that say where something is."""
_PATHS: Final = (*PLACES, "paths")
"""The same, and what there is looked at: from the top of a repository."""
_MOST_PATHS: Final = 20


class Audit:
    """The record in one directory, which other servers of the same user may write, too."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._trail = Trail(self._path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def close(self) -> None:
        """Write what there is to be written."""
        self._writer.shutdown()
        self._trail.close()

    async def record(self, fields: Mapping[str, JsonValue], named: Named | None = None) -> None:
        """Add a line with *fields* and what *named* says of the arguments of one call; it is in the file then.

        Raises McpdError if it is not.
        """
        # Not in the loop: a digest of much content takes its time, and so may the disk.
        await asyncio.get_running_loop().run_in_executor(self._writer, self._add, dict(fields), named)

    def _add(self, fields: dict[str, JsonValue], named: Named | None) -> None:
        line = {
            "ts": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "uid": os.getuid(),
            "pid": os.getpid(),
            **fields,
            **({"arguments_sha256": named.digest, **named.paths} if named is not None else {}),
        }
        try:
            self._trail.add(json.dumps(line).encode("ascii") + b"\n", MAX_LOG)
        except OSError as error:
            raise from_oserror(error, f"recording the call in {self._path}") from error


class Named:
    """What the record has of the arguments of one call."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self._arguments = arguments
        self._digest = ""
        self.paths: dict[str, JsonValue] = {}
        """The paths in them, whole: as they were given, or absolute from :meth:`resolve` on."""
        for name in _PATHS:
            value = arguments.get(name)
            if isinstance(value, str):
                self.paths[name] = _bounded(value)
            elif isinstance(value, list):
                self.paths[name] = [_bounded(each) for each in value[:_MOST_PATHS] if isinstance(each, str)]

    @property
    def digest(self) -> str:
        """SHA-256 of them as JSON with sorted keys."""
        if not self._digest:
            self._digest = hashlib.sha256(json.dumps(self._arguments, sort_keys=True).encode()).hexdigest()
        return self._digest

    def resolve(self, jail: Jail) -> None:
        """Say where the paths are by their text in *jail*; what is in none of its roots stays as it is."""
        for name in PLACES:
            value = self.paths.get(name)
            if isinstance(value, str):
                try:
                    self.paths[name] = jail.place(value).path
                except (InvalidArgument, NotAuthorized):
                    # The tool refuses it, too, and says why.
                    continue


def _bounded(path: str) -> str:
    """At most :data:`~mcpd.servers.workstation.jail.MAX_PATH` bytes of *path*."""
    encoded = path[: MAX_PATH + 1].encode(errors="surrogatepass")
    return path if len(encoded) <= MAX_PATH else encoded[:MAX_PATH].decode(errors="ignore")
