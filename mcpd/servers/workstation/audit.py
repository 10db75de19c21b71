# SPDX-License-Identifier: LGPL-2.1-or-later
"""The record of every call (A-7, A-20): ``audit.jsonl`` in the state directory, one JSON object a line.

It fails closed: a call that changes something is not begun, and an answer not given, that cannot be recorded.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError, from_oserror
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.model import JsonValue

NAME: Final = "audit.jsonl"
MAX_LOG: Final = 10 * 1024 * 1024
"""Bytes after which the record begins anew; the one before is kept as ``audit.jsonl.1``."""
_PATHS: Final = ("path", "source", "destination", "paths")
_MOST_PATHS: Final = 20


class Audit:
    """The record in one directory, which other servers of the same user may write, too."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def close(self) -> None:
        """Write what there is to be written."""
        self._writer.shutdown()

    async def record(self, fields: Mapping[str, JsonValue], arguments: Mapping[str, object]) -> None:
        """Add a line with *fields*, a digest of *arguments* and the paths in them; it is in the file then.

        Raises McpdError if it is not.
        """
        # Not in the loop: a digest of much content takes its time, and so may the disk.
        await asyncio.get_running_loop().run_in_executor(self._writer, self._add, dict(fields), dict(arguments))

    def _add(self, fields: dict[str, JsonValue], arguments: dict[str, object]) -> None:
        line = {
            "ts": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "uid": os.getuid(),
            "pid": os.getpid(),
            **fields,
            "arguments_sha256": _digest(arguments),
            **_named(arguments),
        }
        data = json.dumps(line).encode("ascii") + b"\n"
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._turn(len(data))
            fd = os.open(
                self._path,
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
                0o600,
            )
            try:
                _write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            raise from_oserror(error, f"recording the call in {self._path}") from error

    def _turn(self, more: int) -> None:
        try:
            size = self._path.lstat().st_size
        except FileNotFoundError:
            return
        if size + more > MAX_LOG:
            self._path.rename(self._path.with_name(f"{NAME}.1"))


def _write(fd: int, data: bytes) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise McpdError(f"the call cannot be recorded: {NAME} is not a regular file; move it away")
    # One write, so that lines of several servers do not mix; a part of one, on a full disk, is an error.
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _digest(arguments: Mapping[str, object]) -> str:
    """SHA-256 of *arguments* as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()


def _named(arguments: Mapping[str, object]) -> dict[str, JsonValue]:
    """The paths in *arguments*: what of them says most."""
    found: dict[str, JsonValue] = {}
    for name in _PATHS:
        value = arguments.get(name)
        if isinstance(value, str):
            found[name] = printable(value)
        elif isinstance(value, list):
            found[name] = [printable(each) for each in value[:_MOST_PATHS] if isinstance(each, str)]
    return found
