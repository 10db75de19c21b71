# SPDX-License-Identifier: LGPL-2.1-or-later
"""Logging to systemd's journal with fields (systemd.journal-fields(7)), or as lines to standard error.

An ``extra`` key of :mod:`logging` that is the name of a journal field (``MCP_SERVER_ID``) becomes that field. The
protocol is https://systemd.io/JOURNAL_NATIVE_PROTOCOL. No content of a message or field can become another field.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import struct
import sys
from contextlib import suppress
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION_STARTED: Final = "d64aef435d4c455ebd9fd9161d94ba02"
SESSION_ENDED: Final = "8a284f559cfe439d991785604b2cbf23"
JOB_FINISHED: Final = "6c58cd69762c414f80437b6d2708ad18"
POLKIT_DECISION: Final = "f62d8bdca6b343fc8cb06dbe794743fa"
LEASH_REFUSED: Final = "d676dce6287345458a17dc9dd63df8bf"
TOOL_CALLED: Final = "cb20c6dc90b3481e8a619f581c9f5c37"
CALLS_NOT_RECORDED: Final = "fe335b1bb19345a785580fc0bf717bf2"

SOCKET: Final = "/run/systemd/journal/socket"
FORMAT: Final = "%(levelname)s %(name)s: %(message)s"
"""Format of lines on standard error."""

Target: TypeAlias = Literal["journal", "console"]
_TARGETS: Final[dict[str, Target]] = {"journal": "journal", "console": "console"}

NOTICE: Final = 25
_LEVELS: Final[dict[str, tuple[int, int]]] = {
    "emerg": (logging.CRITICAL + 30, 0),
    "alert": (logging.CRITICAL + 20, 1),
    "crit": (logging.CRITICAL, 2),
    "err": (logging.ERROR, 3),
    "warning": (logging.WARNING, 4),
    "notice": (NOTICE, 5),
    "info": (logging.INFO, 6),
    "debug": (logging.DEBUG, 7),
}
"""Level names of syslog(3): the level in :mod:`logging`, and the priority in the journal."""
_ALIASES: Final = {"error": "err", "critical": "crit", "warn": "warning"}
_FIELD: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_SEND_BUFFER: Final = 8 * 1024 * 1024
_MESSAGE: Final = logging.Formatter("%(message)s")
"""Formats a message together with its traceback."""
_SEND_TIMEOUT: Final = 0.01
"""Seconds to wait for room in the socket for a log message; no wait after a lost message, until one is sent again."""
_ENTRY_TIMEOUT: Final = 1.0
"""Seconds to wait for room in the socket for an entry that must not be lost."""
_TOO_LARGE: Final = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
_SEALS: Final = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL


class LogSettings:
    """Level and target of the root logger, which can be changed at run time."""

    def __init__(self, level: str, target: Target, identifier: str) -> None:
        self.identifier: Final = identifier
        """The syslog identifier of this program, as in ``journalctl -t``."""
        self._level = ""
        self._target: Target = target
        self._install(target)
        self.level = level

    @property
    def level(self) -> str:
        """The least important level that is logged, by its name in syslog(3).

        The setter accepts ``error``, ``critical`` and ``warn`` too, and raises :class:`~mcpd.errors.InvalidArgument`
        for other names.
        """
        return self._level

    @level.setter
    def level(self, name: str) -> None:
        known = _ALIASES.get(name, name)
        if known not in _LEVELS:
            raise InvalidArgument(f"unknown log level {name!r}; use one of {', '.join(_LEVELS)}")
        self._level = known
        logging.getLogger().setLevel(_LEVELS[known][0])

    @property
    def target(self) -> Target:
        """The destination of messages: ``journal``, or ``console`` for lines on standard error.

        The setter raises :class:`~mcpd.errors.InvalidArgument` for other values.
        """
        return self._target

    @target.setter
    def target(self, target: str) -> None:
        known = _TARGETS.get(target)
        if known is None:
            raise InvalidArgument(f"unknown log target {target!r}; use one of {', '.join(_TARGETS)}")
        if known != self._target:
            self._install(known)
            self._target = known

    def _install(self, target: Target) -> None:
        handler: logging.Handler
        if target == "journal":
            handler = JournalHandler(self.identifier, SOCKET)
        else:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(FORMAT))
        root = logging.getLogger()
        for old in list(root.handlers):
            root.removeHandler(old)
            old.close()
        root.addHandler(handler)


def configure(level: str, *, identifier: str) -> LogSettings:
    """Configure the root logger for the journal if standard error is connected to it, else for lines on standard error.

    Replaces existing handlers. Raises :class:`~mcpd.errors.InvalidArgument` for an unknown *level*.
    """
    logging.addLevelName(NOTICE, "NOTICE")
    return LogSettings(level, "journal" if _stderr_is_journal() else "console", identifier)


def _stderr_is_journal() -> bool:
    """Return whether standard error is the stream in ``$JOURNAL_STREAM``, as systemd.exec(5) recommends.

    The variable alone proves nothing: it may be inherited by a program whose standard error goes elsewhere.
    """
    with suppress(OSError):
        status = os.fstat(2)
        return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


class EntrySender:
    """Sends entries to the journal, and reconnects after the journal was restarted."""

    def __init__(self, identifier: str, address: str = SOCKET) -> None:
        self._own = field("SYSLOG_IDENTIFIER", identifier)
        self._address = address
        self._socket: socket.socket | None = None

    def send(self, fields: bytes, timeout: float = _ENTRY_TIMEOUT) -> None:
        """Send one entry of *fields*, each made by :func:`field` or in the same format.

        Raises :class:`OSError` if the journal is not running, :class:`TimeoutError` if it does not read for *timeout*
        seconds, or :class:`BlockingIOError` instead if *timeout* is 0.
        """
        try:
            _send_entry(self._connected(timeout), self._own + fields)
        except ConnectionError:
            self.close()
            _send_entry(self._connected(timeout), self._own + fields)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self, timeout: float) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                self._socket.connect(self._address)
            except OSError:
                self.close()
                raise
        self._socket.settimeout(timeout)
        return self._socket


class JournalHandler(logging.Handler):
    """Log handler that sends each record to the journal, or to standard error if the journal is not running."""

    def __init__(self, identifier: str, address: str) -> None:
        super().__init__()
        self._sender = EntrySender(identifier, address)
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send *record*."""
        try:
            fields = b"".join(_record_fields(record))
            try:
                if self._lost:
                    self._sender.send(_loss_fields(self._lost), 0)
                    self._lost = 0
                self._sender.send(fields, _SEND_TIMEOUT)
            except (BlockingIOError, TimeoutError):
                self._lost += 1
            except OSError:
                self._sender.close()
                _write_lines(record)
        except Exception:  # noqa: BLE001 -- as logging's own handlers do for records that cannot be formatted
            self.handleError(record)

    def close(self) -> None:
        """Close the socket."""
        self.acquire()
        try:
            self._sender.close()
        finally:
            self.release()
        super().close()


def _send_entry(sock: socket.socket, entry: bytes) -> None:
    """Send *entry*, in a sealed memfd if it is too large for a datagram."""
    try:
        sock.send(entry)
    except OSError as error:
        if error.errno not in _TOO_LARGE:
            raise
        fd = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with os.fdopen(fd, "wb") as file:
            file.write(entry)
            file.flush()
            fcntl(file, F_ADD_SEALS, _SEALS)
            socket.send_fds(sock, [b""], [fd])


def _record_fields(record: logging.LogRecord) -> Iterator[bytes]:
    """Yield the fields of the entry for *record*."""
    own: dict[str, object] = {
        "MESSAGE": _MESSAGE.format(record),
        "PRIORITY": _priority(record.levelno),
        "LOGGER": record.name,
        "CODE_FILE": record.pathname,
        "CODE_LINE": record.lineno,
        "CODE_FUNC": record.funcName,
    }
    if record.exc_info and record.exc_info[0] is not None:
        own["EXCEPTION"] = record.exc_info[0].__qualname__
    for name, value in own.items():
        yield field(name, value)
    for name, value in record.__dict__.items():
        if value is not None and name not in own and name != "SYSLOG_IDENTIFIER" and _FIELD.fullmatch(name):
            yield field(name, value)


def _loss_fields(count: int) -> bytes:
    """Return the fields of an entry that reports *count* lost messages."""
    message = f"{count} log messages were lost because the journal was not reading"
    return field("MESSAGE", message) + field("PRIORITY", _LEVELS["warning"][1])


def field(name: str, value: object) -> bytes:
    """Return one field in the journal's protocol, in the binary form if the value has several lines."""
    data = value if isinstance(value, bytes) else str(value).encode(errors="backslashreplace")
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"


def _priority(level: int) -> int:
    return next(priority for least, priority in _LEVELS.values() if level >= least or priority == 7)


def _write_lines(record: logging.LogRecord) -> None:
    """Write *record* to standard error.

    If standard error is connected to the journal, each line begins with the priority (``<4>``), which the journal
    removes (``SyslogLevelPrefix=``), so that no line of a message can set another priority.
    """
    lines = logging.Formatter(FORMAT).format(record).splitlines()
    prefix = f"<{_priority(record.levelno)}>" if _stderr_is_journal() else ""
    with suppress(OSError, ValueError):
        sys.stderr.write("".join(f"{prefix}{line}\n" for line in lines))
        sys.stderr.flush()
