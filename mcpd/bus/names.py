# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus names and object paths of mcpd."""

from __future__ import annotations

from typing import Final

BUS_NAME: Final = "org.mcpd.Mcp1"
ROOT: Final = "/org/mcpd/Mcp1"

MANAGER: Final = BUS_NAME + ".Manager"
SERVER: Final = BUS_NAME + ".Server"
JOB: Final = BUS_NAME + ".Job"
SESSION: Final = BUS_NAME + ".Session"

SERVERS: Final = ROOT + "/server"
JOBS: Final = ROOT + "/job"
SESSIONS: Final = ROOT + "/session"

LOG_CONTROL: Final = "org.freedesktop.LogControl1"
LOG_CONTROL_PATH: Final = "/org/freedesktop/LogControl1"

DBUS: Final = "org.freedesktop.DBus"
DBUS_PATH: Final = "/org/freedesktop/DBus"
PROPERTIES: Final = DBUS + ".Properties"
INTROSPECTABLE: Final = DBUS + ".Introspectable"
OBJECT_MANAGER: Final = DBUS + ".ObjectManager"
PEER: Final = DBUS + ".Peer"


def escape(label: str) -> str:
    """Return *label* as one element of an object path, escaped as ``sd_bus_path_encode()`` does.

    ``com.example`` becomes ``com_2eexample``; a leading digit is escaped, too, and the empty label becomes ``_``.
    """
    if not label:
        return "_"
    return "".join(
        chr(byte)
        if chr(byte).isascii() and chr(byte).isalnum() and not (at == 0 and chr(byte).isdigit())
        else f"_{byte:02x}"
        for at, byte in enumerate(label.encode())
    )


def server_path(server_id: str) -> str:
    """Return the object path of the installed server *server_id*."""
    return f"{SERVERS}/{escape(server_id)}"


def job_path(number: int) -> str:
    """Return the object path of job *number*."""
    return f"{JOBS}/{number}"


def session_path(number: int) -> str:
    """Return the object path of session *number*."""
    return f"{SESSIONS}/{number}"
