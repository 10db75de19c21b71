# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-exec`` as a transient unit of ``systemd --user`` (design §6, launcher 2)."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from mcpd.errors import McpdError, SpawnFailed
from mcpd.runtime.launch import STOP_GRACE, Leash, NobodysKeeper
from mcpd.runtime.plain import exec_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.runtime.launch import LaunchSpec

    Property: TypeAlias = (
        "str | bool | int | list[str] | list[tuple[str, list[str], bool]] | tuple[list[int], list[int]]"
    )

GIB: Final = 1 << 30
SLICE: Final = "app-mcp.slice"
"""Below ``app.slice``, as the desktops' conventions want it for what is no session service."""


class UnitManager(Protocol):
    """The user's service manager; the bus layer implements it with ``StartTransientUnit``."""

    async def start_transient(self, name: str, properties: Mapping[str, tuple[str, Property]], fd: int) -> None:
        """Start the unit *name* and return when its job is done.

        *properties* maps each name to its D-Bus signature and value. *fd* is passed as the property
        ``StandardInputFileDescriptor`` (signature ``h``) and stays the caller's.

        Raises :class:`~mcpd.errors.McpdError` if the manager refuses or is gone.
        """


class SystemdUserLauncher:
    """Gives every server a unit and a cgroup of its own, which the service manager cleans up."""

    name = "systemd-user"

    def __init__(self, units: UnitManager) -> None:
        self._units = units

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """See :meth:`mcpd.runtime.launch.Launcher.launch`."""
        name = unit_name(spec.id)
        ours, theirs = socket.socketpair()
        try:
            await self._units.start_transient(name, properties(spec.id), theirs.fileno())
        except McpdError as error:
            ours.close()
            raise SpawnFailed(f"{spec.id}: the user's service manager did not start {name}: {error.message}") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return await Leash.start(ours, spec, fds, NobodysKeeper())


def unit_name(spec_id: str) -> str:
    """A fresh unit name that says which server it runs."""
    safe = "".join(c if c.isalnum() or c in "._" else "_" for c in spec_id)
    return f"mcp-{safe}-{secrets.token_hex(4)}.service"


def properties(spec_id: str) -> dict[str, tuple[str, Property]]:
    """What the unit is, as ``StartTransientUnit`` wants it.

    No environment and no credential is set here: a unit's properties and its file can be read by everybody.
    """
    command = list(exec_command())
    build = spec_id.startswith("build:")
    return {
        "Description": ("s", f"MCP server {spec_id}"),
        "Type": ("s", "exec"),
        "CollectMode": ("s", "inactive-or-failed"),
        "ExecStart": ("a(sasb)", [(command[0], command, False)]),
        # What was wrong with a launch is told to mcpd.
        "SuccessExitStatus": ("(aiai)", ([1], [])),
        "LimitCORE": ("t", 0),
        # mcpd-exec stops its tree itself; what is left a little later is killed.
        "KillMode": ("s", "mixed"),
        "TimeoutStopUSec": ("t", int((STOP_GRACE + 2) * 1_000_000)),
        "Slice": ("s", SLICE),
        "UMask": ("u", 0o077),
        # stdin alone is a descriptor: with more of them stderr would land in stdout.
        "StandardOutput": ("s", "null"),
        "StandardError": ("s", "journal"),
        "OOMPolicy": ("s", "kill"),
        # As mcpd-spawn@.service and mcpd-build@.service have it.
        "TasksMax": ("t", 1024 if build else 512),
        "MemoryMax": ("t", (8 if build else 4) * GIB),
        "MemorySwapMax": ("t", (2 if build else 1) * GIB),
    }
