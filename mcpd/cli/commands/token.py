# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl token``: what HTTP clients show to the bridge."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from typing import TYPE_CHECKING, Final

from mcpd.bridge.places import places
from mcpd.bridge.tokens import load_token, write_token
from mcpd.errors import McpdError, NotAuthorized, ServiceUnavailable
from mcpd.paths import from_environment

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

TIMEOUT: Final = 30.0
"""Seconds in which the system's bridge must answer, its start included."""
LARGEST_ANSWER: Final = 65536


def token(args: argparse.Namespace) -> int:
    """Print the caller's token for the bridge; with ``--renew`` another one, and the old one is void."""
    known = from_environment()
    if args.system:
        found = _of_system(places(known.system).socket, renew=args.renew)
    else:
        file = places(known.user).token
        found = write_token(file) if args.renew else load_token(file)
    sys.stdout.write(found + "\n")
    return 0


class _Connection(http.client.HTTPConnection):
    """HTTP over the unix socket *path*."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Open the socket, which starts the bridge if it does not run."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _of_system(path: Path, *, renew: bool) -> str:
    connection = _Connection(path)
    try:
        connection.request("POST" if renew else "GET", "/token")
        reply = connection.getresponse()
        status, body = reply.status, json.loads(reply.read(LARGEST_ANSWER))
    except PermissionError as error:
        raise NotAuthorized(
            f"{path} is open to members of the group mcp only; an administrator adds you with: usermod -aG mcp USER, "
            "and it holds from your next login on"
        ) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise ServiceUnavailable(
            f"the system's bridge does not listen at {path}; start it with: systemctl enable --now mcpd-bridge.socket"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServiceUnavailable(f"the system's bridge at {path} gave no answer that makes sense: {error}") from error
    finally:
        connection.close()
    if status != 200:
        raise McpdError(f"the system's bridge gave no token: {body['error']['message']}")
    return str(body["token"])
