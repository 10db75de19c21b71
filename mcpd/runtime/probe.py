# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a sandbox looks like from inside: run there as a script, by the system's Python (mcpd.runtime.self_check).

Writes one JSON object of what it finds. What of it is as it should be is judged outside.
"""

import ctypes
import json
import os
import socket
import sys

CLONE_NEWUSER = 0x10000000


def writable(path: str) -> bool:
    """Whether the file system at *path* takes writes at all, whoever asks."""
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False


def status() -> dict[str, str]:
    """The fields of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - no need of pathlib
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


def main() -> None:
    """Look around; the arguments are the paths that should not be there."""
    fields = status()
    found = {
        "uid": os.getuid(),
        "visible": [path for path in sys.argv[1:] if os.path.lexists(path)],
        "devices": [name for _, name in socket.if_nameindex()],
        "writable": [path for path in ("/", "/usr", "/etc", "/proc") if writable(path)],
        "capabilities": [key for key in ("CapInh", "CapPrm", "CapEff", "CapAmb") if int(fields[key], 16)],
        "no-new-privileges": fields["NoNewPrivs"] == "1",
        "processes": sum(name.isdigit() for name in os.listdir("/proc")),  # noqa: PTH208
        "environment": sorted(os.environ),
    }
    # Last, for it would change what is looked at.
    found["user-namespaces"] = ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) == 0
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
