# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a command that reaches the network only through mcpd's proxy: ``proxied.py SOCKET URL COMMAND…``, in the sandbox.

Listens on the loopback interface of the sandbox's network namespace, passes the listening socket to mcpd over the
datagram socket SOCKET (see :mod:`mcpd.install.proxy`), and executes COMMAND. Variables of the environment with the
value URL have the address of the proxy instead.
"""

import os
import socket
import sys

UNSET = ("all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


def main() -> None:
    """Pass the listening socket to mcpd and execute the command."""
    path, placeholder, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mcpd:
        mcpd.connect(path)
        socket.send_fds(mcpd, [b"\0"], [listener.fileno()])
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    given = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment = {name: url if value == placeholder else value for name, value in given.items()}
    os.execvpe(command[0], command, environment)  # noqa: S606 - no shell


main()
