# SPDX-License-Identifier: LGPL-2.1-or-later
"""Questions to the person at the terminal, and values that must not be seen."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mcpd.cli.output import clean
from mcpd.errors import InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET_LIMIT: Final = 64 * 1024
"""Bytes of one secret (design §4, ``SetSecret``)."""


def terminal() -> bool:
    """Whether somebody can be asked: standard input and standard error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask *question*; only ``y`` or ``yes`` is consent."""
    return _ask(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def ask(label: str) -> str:
    """Ask for a value."""
    return _ask(f"{clean(label)}: ")


def ask_secret(label: str) -> bytes:
    """Ask for a sensitive value, without echo."""
    import getpass  # noqa: PLC0415

    with _interruptible():
        return _checked(getpass.getpass(f"{clean(label)}: ").encode())


def read_secret(name: str) -> bytes:
    """A secret from the file *name* (``-``: standard input); one line break at its end is not part of it."""
    if name == "-":
        data = sys.stdin.buffer.read(SECRET_LIMIT + 2)
    else:
        with open(name, "rb") as file:  # noqa: PTH123 - a name like /dev/fd/3 stays what it is
            data = file.read(SECRET_LIMIT + 2)
    return _checked(data.removesuffix(b"\n").removesuffix(b"\r"))


@contextmanager
def memfd(data: bytes, name: str) -> Iterator[int]:
    """A descriptor of an anonymous file that holds *data*, open at its beginning."""
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


def _ask(text: str) -> str:
    with _interruptible():
        sys.stderr.write(text)
        sys.stderr.flush()
        line = sys.stdin.readline()
    if not line:
        raise KeyboardInterrupt  # Ctrl-D: whoever ends the input wants no more questions
    return line.rstrip("\n")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a read; the event loop's handler would only take note of it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
