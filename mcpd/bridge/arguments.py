# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line of ``mcpd-bridge``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from mcpd import __version__


def build_parser() -> argparse.ArgumentParser:
    """What ``mcpd-bridge`` understands."""
    parser = argparse.ArgumentParser(
        prog="mcpd-bridge",
        description="Serves stdio MCP servers over Streamable HTTP: those of mcpd, or commands of your choice.",
    )
    parser.add_argument("--version", action="version", version=f"mcpd-bridge {__version__}", help="print the version")
    parser.add_argument("--listen", metavar="ADDR", help="HOST:PORT on loopback; port 0 takes a free one")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")
    user = parser.add_argument_group("servers of mcpd")
    scope = user.add_mutually_exclusive_group()
    scope.add_argument("--user", action="store_true", help="serve the user's servers (the default)")
    scope.add_argument("--system", action="store_true", help="serve those that the system runs, to its users")
    alone = parser.add_argument_group("alone, without mcpd")
    alone.add_argument("--server", metavar="NAME=COMMAND", action="append", default=[], help="serve this command")
    alone.add_argument("--config", metavar="FILE", type=Path, help='serve the "mcpServers" of a JSON file')
    alone.add_argument("--auth", choices=["none"], help="let everybody in who can connect: for trials only")
    alone.add_argument("--token-file", metavar="FILE", type=Path, help="file with the token that clients must send")
    alone.add_argument("--allow-remote", action="store_true", help="let --listen be reachable from other machines")
    alone.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], type=_host_name, help="a further name of this host"
    )
    alone.add_argument(
        "--allow-origin", metavar="ORIGIN", action="append", default=[], type=_web_origin, help="serve pages from there"
    )
    alone.add_argument("--tls-cert", metavar="FILE", type=Path, help="PEM certificate: speak HTTPS")
    alone.add_argument("--tls-key", metavar="FILE", type=Path, help="its PEM key, if that is in a file of its own")
    alone.add_argument("--audit", metavar="WHERE", help="record calls of tools: /FILE, - for stdout, journal, or off")
    alone.add_argument("--call-timeout", metavar="S", type=float, help="seconds for a call without a sign of life")
    alone.add_argument("--idle-timeout", metavar="S", type=float, help="seconds after which an unused server stops")
    alone.add_argument("--keepalive", metavar="S", type=float, help="seconds between comments on silent streams")
    alone.add_argument("--max-line", metavar="N", type=int, help="bytes of one message from a server")
    alone.add_argument("--max-sessions", metavar="N", type=int, help="sessions of one caller that have a process")
    alone.add_argument("--max-children", metavar="N", type=int, help="processes of one caller at once")
    alone.add_argument("--sharing", choices=["session", "caller"], help="who shares a process (default: nobody)")
    alone.add_argument("--rate", metavar="N", type=float, help="calls a second of one caller to one server, on average")
    alone.add_argument("--burst", metavar="N", type=int, help="calls of one caller to one server at once")
    alone.add_argument("--strict-sessions", action="store_true", help="refuse requests without a session")
    return parser


def _host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a host: give it without scheme, port and path")
    return text


def _web_origin(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+|null", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no origin: give one page's scheme, host and port, such as https://app.example"
        )
    return text
