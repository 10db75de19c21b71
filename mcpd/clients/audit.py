# SPDX-License-Identifier: LGPL-2.1-or-later
"""Audit log of changes to configurations (``audit.jsonl``), one JSON object per line.

If a change cannot be recorded, the change fails.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mcpd.clients.errors import InvalidInput
from mcpd.clients.payload import timestamp
from mcpd.errors import InvalidConfig, from_oserror
from mcpd.model import check_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from mcpd.clients.tree import Tree
    from mcpd.model import JsonValue

Outcome: TypeAlias = Literal["ok", "refused", "failed"]

MAX_LOG: Final = 5 * 1024 * 1024
"""Size, in bytes, at which a new log is started; the previous one is kept as ``audit.jsonl.1``."""
MAX_LINE: Final = 64 * 1024
"""Maximum size of one line, in bytes; details that exceed it are replaced with their number."""


class Audit:
    """Audit log of one tree."""

    def __init__(self, tree: Tree, clock: Callable[[], datetime]) -> None:
        """*clock* returns the time, with its zone."""
        self._tree = tree
        self._clock = clock

    def record(
        self,
        event: str,
        *,
        client_id: str,
        profile_id: str,
        artifact_id: str | None = None,
        outcome: Outcome,
        details: dict[str, JsonValue] | None = None,
    ) -> None:
        """Record *event* (such as ``publish``) with its *outcome*; *details* contain no secrets.

        The line is on disk on return. Raises :class:`~mcpd.errors.McpdError` if it cannot be written; then no part of
        it is.
        """
        fields: dict[str, JsonValue] = {
            "client_id": client_id,
            "profile_id": profile_id,
            "artifact_id": artifact_id,
            "outcome": outcome,
            "uid": os.getuid(),
            "pid": os.getpid(),
        }
        with self._tree.lock():
            # The time is taken under the lock, so that lines are in order.
            line = _line(event, timestamp(self._clock()), fields, details)
            self._append(self._tree.audit, line)

    def _append(self, path: Path, line: bytes) -> None:
        try:
            with self._tree.directory(path.parent) as directory:
                if _is_full(self._tree.status(path), len(line)):
                    os.rename(path.name, f"{path.name}.1", src_dir_fd=directory, dst_dir_fd=directory)
                descriptor = _open(path, directory)
                try:
                    if _add(descriptor, line):
                        os.fsync(directory)
                finally:
                    os.close(descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _not_regular(path) from error
            raise from_oserror(error, f"recording in {path}") from error


def _line(event: str, moment: str, fields: dict[str, JsonValue], details: dict[str, JsonValue] | None) -> bytes:
    # The fields come last, so that details cannot replace them.
    document: dict[str, JsonValue] = {"name": event, "ts": moment, "fields": {**(details or {}), **fields}}
    try:
        check_json(document)
        line = json.dumps(document, allow_nan=False).encode("ascii") + b"\n"
    except ValueError as error:
        raise InvalidInput(f"the details of {event} cannot be recorded: {error}") from error
    if len(line) > MAX_LINE and details:
        return _line(event, moment, {**fields, "details_left_out": len(details)}, None)
    return line


def _is_full(status: os.stat_result | None, more: int) -> bool:
    if status is None:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0 and status.st_size + more > MAX_LOG


def _open(path: Path, directory: int) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path.name, flags, 0o600, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def _add(descriptor: int, line: bytes) -> bool:
    """Append *line*, or nothing if the disk is full; return True if it is the first line of the file."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line  # a writer was killed within its line
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise
    return not size


def _not_regular(path: Path) -> InvalidConfig:
    return InvalidConfig(f"{path}: not a regular file, so nothing can be recorded; move it away")
