# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asking a bridge at its unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import McpdError, NotAuthorized, NotFound, ServiceUnavailable

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT: Final = 30.0
"""Seconds in which a bridge must answer, its start included."""
LARGEST_ANSWER: Final = 65536


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


def ask(path: Path, method: str, target: str, *, system: bool) -> dict[str, Any]:
    """What the bridge at the unix socket *path* answers to a request without a body.

    Raises :class:`~mcpd.errors.NotAuthorized` or :class:`~mcpd.errors.ServiceUnavailable` if it cannot be asked,
    :class:`~mcpd.errors.NotFound` or McpdError for what it refuses.
    """
    whose, scope = ("the system's", "") if system else ("your", " --user")
    connection = _Connection(path)
    try:
        connection.request(method, target)
        reply = connection.getresponse()
        status, body = reply.status, json.loads(reply.read(LARGEST_ANSWER))
    except PermissionError as error:
        raise NotAuthorized(
            f"{path} is open to members of the group mcp only; an administrator adds you with: usermod -aG mcp USER, "
            "and it holds from your next login on"
            if system
            else f"{path} is open to its owner only, who is somebody else"
        ) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise ServiceUnavailable(
            f"{whose} bridge does not listen at {path}; start it with: systemctl{scope} enable --now mcpd-bridge.socket"
            f"{'' if system else ', or where there is no systemd: mcpd-bridge --user'}"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServiceUnavailable(f"{whose} bridge at {path} gave no answer that makes sense: {error}") from error
    finally:
        connection.close()
    if status == 200 and isinstance(body, dict):
        return body
    try:
        why = str(body["error"]["message"])
    except (KeyError, TypeError):
        why = f"HTTP {status}"
    raise (NotFound if status == 404 else McpdError)(f"{whose} bridge refused: {why}")
