# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line of ``mcpd-bridge``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from mcpd import __version__


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line of ``mcpd-bridge``."""
    parser = argparse.ArgumentParser(
        prog="mcpd-bridge",
        description="Serve stdio MCP servers over Streamable HTTP: those of mcpd, or commands.",
    )
    parser.add_argument("--version", action="version", version=f"mcpd-bridge {__version__}", help="print the version")
    parser.add_argument("--listen", metavar="ADDR", help="also listen on HOST:PORT; port 0 takes a free one")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more messages")
    user = parser.add_argument_group("servers of mcpd")
    scope = user.add_mutually_exclusive_group()
    scope.add_argument("--user", action="store_true", help="serve the user's servers (the default)")
    scope.add_argument("--system", action="store_true", help="serve the servers that run as the system, to all users")
    alone = parser.add_argument_group("without mcpd")
    alone.add_argument(
        "--server", metavar="NAME=COMMAND", action="append", default=[], help="serve COMMAND as /mcp/NAME"
    )
    alone.add_argument(
        "--config", metavar="FILE", type=Path, help='serve the commands below "mcpServers" in a JSON file'
    )
    alone.add_argument("--auth", choices=["none"], help="accept everybody who can connect; for tests only")
    alone.add_argument("--token-file", metavar="FILE", type=Path, help="require the token in FILE")
    alone.add_argument("--allow-remote", action="store_true", help="allow --listen on addresses of other interfaces")
    alone.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        type=_host_name,
        help="accept an additional host name",
    )
    alone.add_argument(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        type=_web_origin,
        help="accept requests of web pages from ORIGIN",
    )
    alone.add_argument("--tls-cert", metavar="FILE", type=Path, help="use HTTPS with this PEM certificate")
    alone.add_argument("--tls-key", metavar="FILE", type=Path, help="PEM key, if it is not in the certificate file")
    alone.add_argument("--audit", metavar="WHERE", help="record tool calls: /FILE, - for stdout, journal, or off")
    alone.add_argument(
        "--call-timeout", metavar="S", type=float, help="seconds without an answer or progress until a call fails"
    )
    alone.add_argument("--idle-timeout", metavar="S", type=float, help="seconds until an unused server is stopped")
    alone.add_argument("--keepalive", metavar="S", type=float, help="seconds between comments on silent event streams")
    alone.add_argument("--max-line", metavar="N", type=int, help="maximum size of a message from a server, in bytes")
    alone.add_argument("--max-sessions", metavar="N", type=int, help="maximum sessions of one caller with a process")
    alone.add_argument("--max-children", metavar="N", type=int, help="maximum server processes of one caller")
    alone.add_argument(
        "--sharing", choices=["session", "caller"], help="clients that share a process (default: session)"
    )
    alone.add_argument(
        "--rate", metavar="N", type=float, help="calls per second of one caller to one server, on average"
    )
    alone.add_argument("--burst", metavar="N", type=int, help="simultaneous calls of one caller to one server")
    alone.add_argument("--strict-sessions", action="store_true", help="refuse requests without a session")
    return parser


def _host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a host name: give it without scheme, port and path")
    return text


def _web_origin(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+|null", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an origin: give scheme, host and port, such as https://app.example"
        )
    return text
