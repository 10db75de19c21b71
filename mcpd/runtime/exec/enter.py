# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs before every server, so it loads no slow modules: not even os, which -S leaves out.
# ruff: noqa: SLF001
"""The last step of a launch, inside the sandbox: enter a Landlock domain and execute the program.

``bwrap … -- /usr/bin/python3 -IS /proc/self/fd/SELF SELF LAUNCH REPORT DOMAIN``: three inherited descriptors, and 1 or
0. LAUNCH contains the program's arguments and environment, see :meth:`mcpd.runtime.exec.confined.Confined.start`. To
REPORT ``x`` is written just before the program is executed, which closes it; if that fails, the reason follows. With
DOMAIN 0 no domain is entered.

The domain (landlock(7)) allows everything below the sandbox's own ``/`` and nothing else, so that a descriptor of an
outside directory, however the server gets it, gives no access to files. If the kernel supports it, abstract unix
sockets and signals (Linux 6.12) and the paths of unix sockets (7.1) are limited to the domain as well. A kernel without
Landlock is accepted; ``mcpctl doctor`` reports it.
"""

from __future__ import annotations

import _ctypes
import _signal  # type: ignore[import-not-found]
import posix
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG = 1
PATH_BENEATH = 1
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16, 6: 16, 7: 16, 8: 16}
"""Number of file access rights by Landlock version; 17 from version 9 on."""
FILE_RIGHTS = 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""The access rights to write, read and truncate files, and to call ioctl(2) on devices."""
SCOPES = 1 << 0 | 1 << 1
"""The scopes for abstract unix sockets and signals."""
S_IFMT, S_IFREG, S_IFCHR = 0o170000, 0o100000, 0o020000
SIGPIPE, SIGXFSZ, SIG_DFL = 13, 25, 0


def landlock() -> None:
    """Enter a Landlock domain of the sandbox's own files.

    Raises :class:`OSError` if the kernel supports Landlock, but refuses.
    """
    function = _ctypes.dlsym(_ctypes.dlopen(None, posix.RTLD_NOW), "syscall")  # type: ignore[arg-type]

    def call(*arguments: object) -> int:
        return _ctypes.call_cdeclfunction(function, arguments)  # type: ignore[no-any-return]

    def checked(*arguments: object) -> int:
        if (result := call(*arguments)) < 0:
            raise OSError("the kernel refused a Landlock domain")
        return result

    def word(number: int, size: int = 8) -> bytes:
        return number.to_bytes(size, sys.byteorder)

    version = call(CREATE_RULESET, None, 0, VERSION_FLAG)
    if version < 1:
        return
    rights = (1 << RIGHTS.get(version, 17)) - 1
    attributes = (word(rights) + word(0) + word(SCOPES))[: 8 if version < 4 else 16 if version < 6 else 24]
    domain = checked(CREATE_RULESET, attributes, len(attributes), 0)

    root = posix.open("/", posix.O_PATH)
    checked(ADD_RULE, domain, PATH_BENEATH, word(rights) + word(root, 4), 0)
    for number in (0, 1, 2):
        # A terminal, a file or /dev/null of the host has to be usable as /dev/stderr. A memfd, for which there can be
        # no rule, is usable anyway.
        if posix.fstat(number).st_mode & S_IFMT in {S_IFREG, S_IFCHR}:
            call(ADD_RULE, domain, PATH_BENEATH, word(rights & FILE_RIGHTS) + word(number, 4), 0)
    checked(RESTRICT_SELF, domain, 0)
    posix.close(domain)
    posix.close(root)


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Execute ``argv[0]``, looked up in the ``PATH`` of *env*. Raises the most informative :class:`OSError`."""
    found: OSError = FileNotFoundError(2, posix.strerror(2))
    for directory in [b""] if b"/" in argv[0] else env.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            posix.execve(directory + b"/" + argv[0] if directory else argv[0], argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            found = error
    raise found


def main() -> None:
    """Read what to execute, enter the domain if requested, and execute the program."""
    script, launch, report, domain = map(int, sys.argv[1:])
    posix.set_inheritable(report, False)
    posix.close(script)
    data = b""
    while chunk := posix.read(launch, 1 << 20):
        data += chunk
    posix.close(launch)
    count, *words = data.split(b"\0")
    argv = words[: int(count)]
    env = dict(variable.split(b"=", 1) for variable in words[int(count) :])
    # Python ignores these signals, and the program would inherit that.
    for ignored in (SIGPIPE, SIGXFSZ):
        _signal.signal(ignored, SIG_DFL)
    try:
        if domain:
            landlock()
        posix.write(report, b"x")
        execute(argv, env)
    except OSError as error:
        posix.write(report, (error.strerror or str(error)).encode())
    posix._exit(127)


main()
