# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a command that reaches the network only through mcpd's proxy: ``proxied.py SOCKET COMMAND…``, in the sandbox.

Listens on the loopback interface of the sandbox's network namespace, passes the listening socket to mcpd over the
datagram socket SOCKET (see :mod:`mcpd.install.proxy`), and executes COMMAND with the proxy in its environment.
"""

import os
import socket
import sys

UNSET = ("all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")
PROXY = (
    "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_PROXY", "NPM_CONFIG_PROXY", "NPM_CONFIG_HTTPS_PROXY",
)  # fmt: skip
NO_EXCEPTION = {"NPM_CONFIG_NOPROXY": "none.invalid"}
"""Overrides ``noproxy`` of a configuration file, which an empty value would not."""


def main() -> None:
    """Pass the listening socket to mcpd and execute the command."""
    path, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mcpd:
        mcpd.connect(path)
        socket.send_fds(mcpd, [b"\0"], [listener.fileno()])
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    os.execvpe(command[0], command, environment | dict.fromkeys(PROXY, url) | NO_EXCEPTION)  # noqa: S606 - no shell


main()
