# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running a shell script: the worker is replaced by its interpreter."""

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
    """The file of the script has changed since the server read it."""


def interpreter(source: str) -> list[str]:
    """Return the interpreter in the first line of *source* and its argument, if any, as the kernel parses it."""
    first = source.partition("\n")[0]
    words = first[2:].strip().split(maxsplit=1) if first.startswith("#!") else []
    return words or [SHELL]


def execute(script: Script, task: dict[str, Any]) -> NoReturn:
    """Execute *script*; raises ``OSError`` on failure, :class:`Changed` if its file does not match its digest."""
    path, source = script.path, script.source
    if path and script.digest:
        _check(path, script.digest)
    stdin: bytes = task["stdin"]
    if stdin:
        # A file, as nobody would be left to write to a pipe.
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
    import hashlib  # the zygote has loaded it if there is a digest

    try:
        data = Path(path).read_bytes()
    except OSError:
        data = b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise Changed(f"{path} was changed; the server is about to be started again: try again.")


def _in_memory(name: str, data: bytes) -> int:
    """Return a descriptor of *data* that the executed program inherits."""
    fd = os.memfd_create(name, 0)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
