# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs of a shell script: the worker becomes its interpreter."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from mcpd.servers.scripts.calls.worker import Script

SHELL: Final = "/bin/sh"


class Changed(Exception):
    """The script's file is not any more what the server has read."""


def interpreter(source: str) -> list[str]:
    """The interpreter of the first line of *source*, with its one argument if there is one, as the kernel reads it."""
    first = source.partition("\n")[0]
    words = first[2:].strip().split(maxsplit=1) if first.startswith("#!") else []
    return words or [SHELL]


def execute(script: Script, task: dict[str, Any]) -> NoReturn:
    """Execute *script*; ``OSError`` if that cannot be, :class:`Changed` if its file is not what its digest says."""
    path, source = script.path, script.source
    if path and script.digest:
        _check(path, script.digest)
    stdin: bytes = task["stdin"]
    if stdin:
        # A file, as nobody would be left to fill a pipe.
        os.dup2(_in_memory("stdin", stdin), 0)
    if not path or not Path(path).is_file():
        path = f"/proc/self/fd/{_in_memory('script', source.encode(errors='surrogatepass'))}"
    program = interpreter(source)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(program[0], [*program, path, *task["words"]], os.environ | task["environment"])  # noqa: S606
    except ValueError as error:
        raise OSError(errno.EINVAL, f"an argument that no program can be given ({error})") from None


def _check(path: str, digest: str) -> None:
    import hashlib  # the zygote has loaded it if there is something to check

    try:
        data = Path(path).read_bytes()
    except OSError:
        data = b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise Changed(f"{path} was changed; the server is about to be started again: try again.")


def _in_memory(name: str, data: bytes) -> int:
    """A descriptor of *data*, which what is executed inherits."""
    fd = os.memfd_create(name, 0)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
