# SPDX-License-Identifier: LGPL-2.1-or-later
"""Input of commands: files and standard input, questions at the terminal, and secrets."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.cli.output import clean
from mcpd.errors import Cancelled, InvalidArgument, LimitExceeded, McpdError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

STDIN: Final = "-"
LIMIT: Final = 8 * 1024 * 1024
"""The default limit of bytes of a file."""


def read_input(name: str, limit: int = LIMIT) -> bytes:
    """Read the file *name*, or standard input (``-``).

    Raises :class:`~mcpd.errors.NotFound` for a missing file, and :class:`~mcpd.errors.InvalidArgument` for one that is
    not regular or larger than *limit* bytes.
    """
    from mcpd.files import is_missing, read_file  # few commands read files

    if name == STDIN:
        data = sys.stdin.buffer.read(limit + 1)
        if len(data) > limit:
            raise InvalidArgument(f"standard input is larger than {limit} bytes")
        return data
    try:
        return read_file(Path(name), limit)
    except OSError as error:
        if is_missing(error):
            raise NotFound(f"there is no file {name}") from error
        raise
    except McpdError as error:
        raise InvalidArgument(error.message) from error


def origin(name: str) -> str:
    """Return the name by which messages refer to the input *name*."""
    return "standard input" if name == STDIN else name


_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SECRET_LIMIT: Final = 64 * 1024
"""Maximum bytes of one secret."""


def terminal() -> bool:
    """Return whether questions can be asked: standard input and standard error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask *question*; return whether the answer is ``y`` or ``yes``."""
    return _ask(question, " [y/N] ").strip().lower() in {"y", "yes"}


def ask(label: str) -> str:
    """Ask for a value."""
    return _ask(clean(label), ": ")


def ask_secret(label: str) -> bytes:
    """Ask for a secret, without echo."""
    import getpass

    with _interruptible():
        try:
            text = getpass.getpass(f"{clean(label)}: ")
        except EOFError:
            raise _unanswered(label) from None
    return _checked(text.encode(errors="surrogateescape"))


def read_secret(name: str) -> bytes:
    """Read a secret from the file *name* (``-``: standard input), without a line break at its end."""
    if name == "-":
        data = sys.stdin.buffer.read(SECRET_LIMIT + 2)
    else:
        with open(name, "rb") as file:  # noqa: PTH123 - a name like /dev/fd/3 stays what it is
            data = file.read(SECRET_LIMIT + 2)
    return _checked(data.removesuffix(b"\n").removesuffix(b"\r"))


@contextmanager
def memfd(data: bytes, name: str) -> Iterator[int]:
    """Yield the descriptor of an anonymous file with *data*, positioned at its start."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _checked(data: bytes) -> bytes:
    if not data:
        raise InvalidArgument("the secret is empty; use 'mcpctl secret unset' to remove one")
    if len(data) > SECRET_LIMIT:
        raise LimitExceeded(f"the secret is longer than {SECRET_LIMIT} bytes")
    return data


def _ask(question: str, end: str) -> str:
    with _interruptible():
        sys.stderr.write(question + end)
        sys.stderr.flush()
        line = sys.stdin.readline()
    if not line:
        raise _unanswered(question)
    return line.rstrip("\n")


def _unanswered(question: str) -> Cancelled:
    sys.stderr.write("\n")
    return Cancelled(f"cancelled: the input ended at the question {clean(question)!r}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP interrupt a blocking read with KeyboardInterrupt.

    The event loop only records SIGINT; the other signals would end the process without cancelling the job.
    """
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, signal.default_int_handler) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
