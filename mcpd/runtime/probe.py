# SPDX-License-Identifier: LGPL-2.1-or-later
"""The probe of the self-check, run as a script in the sandbox by the system's Python (mcpd.runtime.self_check).

Writes its findings as one JSON object; they are judged outside.
"""

import ctypes
import json
import os
import socket
import sys

CLONE_NEWUSER = 0x10000000


def writable(path: str) -> bool:
    """Return whether the file system at *path* is mounted read-write."""
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False


def status() -> dict[str, str]:
    """Return the fields of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - pathlib is not needed
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


def main() -> None:
    """Write the findings; the arguments are paths that should not be visible."""
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
    # Last, since it would change the other findings.
    found["user-namespaces"] = ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) == 0
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
