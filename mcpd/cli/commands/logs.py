# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl logs``.

Anybody may send entries with ``MCP_SERVER_ID`` to the journal, so only entries from the users that mcpd and its servers
run as are shown. The journal itself records the sender.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.cli.output import note
from mcpd.cli.session import open_bus
from mcpd.errors import NotAuthorized, NotFound, NotSupported, ServiceUnavailable
from mcpd.journal import SOCKET

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

_WRITERS: Final = ("mcpd", "mcp-server")
"""The users that the system's mcpd and its servers run as."""
_JOURNALS: Final = (Path("/var/log/journal"), Path("/run/log/journal"))
_SOCKET: Final = Path(SOCKET)
"""The socket of journald, whose directories may exist without it."""
_MACHINE_ID: Final = Path("/etc/machine-id")


async def logs(args: argparse.Namespace) -> int:
    """``mcpctl logs``: execute journalctl.

    The standard error of a server that a client started directly is not in the journal; it goes to the client.
    """
    program = shutil.which("journalctl")
    if program is None or not _SOCKET.is_socket() or not any(place.is_dir() for place in _JOURNALS):
        raise NotSupported(
            f"this system has no journal; look in the output of mcpd for lines that begin with '{args.id}: '"
        )
    users = list(_users(system=args.system))
    _check_readable(system=args.system)
    argv = [program, "--quiet", *(f"_UID={uid}" for uid in users), f"MCP_SERVER_ID={args.id}"]
    try:
        async with open_bus(args) as bus:
            await bus.manager.call("GetServer", "s", [args.id])
    except ServiceUnavailable:
        note("mcpd is not responding; showing the journal anyway.")
    except NotFound as error:
        if not _any(argv):
            raise NotFound(f"{error.message}, and the journal has no entries for it") from error
        note(f"Server {args.id} no longer exists; showing its journal.")
    os.execv(program, [*argv, *_chosen(args)])  # noqa: S606 - argv of our own, and no shell is wanted


def _users(*, system: bool) -> Iterator[int]:
    """Yield the uids whose entries are shown. Raises :class:`~mcpd.errors.NotSupported` if a user does not exist."""
    if not system:
        yield os.getuid()
        return
    for name in _WRITERS:
        try:
            yield pwd.getpwnam(name).pw_uid
        except KeyError:
            raise NotSupported(
                f"the system service is not set up here: there is no user {name!r}; run systemd-sysusers, or reinstall "
                "mcpd"
            ) from None


def _check_readable(*, system: bool) -> None:
    """Raise :class:`~mcpd.errors.NotAuthorized` if the caller may not read the journal."""
    machine = _MACHINE_ID.read_text(encoding="ascii").strip() if _MACHINE_ID.exists() else ""
    own = () if system else (f"user-{os.getuid()}.journal",)
    files = [place / machine / name for place in _JOURNALS for name in ("system.journal", *own)]
    there = [file for file in files if file.exists()]
    if there and not any(os.access(file, os.R_OK) for file in there):
        raise NotAuthorized(
            "only root and members of the groups systemd-journal and adm may read the journal; "
            "an administrator can add you with: usermod -aG systemd-journal USER"
            + ("" if system else ". You can read your own entries once /var/log/journal exists")
        )


def _any(argv: Sequence[str]) -> bool:
    """Return whether the command *argv* finds at least one entry."""
    found = subprocess.run([*argv, "-n", "1", "-o", "cat"], capture_output=True, check=False)
    return bool(found.stdout)


def _chosen(args: argparse.Namespace) -> list[str]:
    return [
        *(["-n", str(args.lines)] if args.lines else []),
        *(["-f"] if args.follow else []),
        *([f"--since={args.since}"] if args.since else []),
    ]
