# SPDX-License-Identifier: LGPL-2.1-or-later
"""The permission strings of a manifest: :data:`PERMISSIONS`, each optionally followed by ``?KEY``.

With ``?KEY`` a permission is granted only while the boolean configuration value KEY is true.

Registries also list plain descriptions under ``permissions`` ("Reads your calendar", "filesystem"). A string is a
permission if it is in the table, or begins like one that takes an argument. It must then be valid as a whole, or the
server is not started. Any other string grants nothing and is listed in :attr:`Permissions.ignored`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from mcpd.errors import InvalidManifest
from mcpd.model.base import ID_PATTERN
from mcpd.model.placeholders import expand, placeholders

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from mcpd.model import JsonValue


class Permission(NamedTuple):
    """One row of :data:`PERMISSIONS`."""

    form: str
    """The words and the name of the argument, if any, which is a key of :data:`_ARGUMENTS`."""
    meaning: str
    """Description of what the permission lets a server do; ``{}`` stands for the argument."""

    @property
    def argument(self) -> str:
        """Name of the argument; empty if there is none."""
        last = self.form.rpartition(":")[2]
        return last if last in _ARGUMENTS else ""

    @property
    def family(self) -> str:
        """The first word of the form."""
        return self.form.partition(":")[0]


PERMISSIONS: Final = (
    Permission("network", "may use the network"),
    Permission("devices", "may use the devices of this machine"),
    Permission("filesystem:ro:PATH", "may read {}"),
    Permission("filesystem:rw:PATH", "may read and change {}"),
    Permission("filesystem:create:PATH", "may read and change {}, which is created for it"),
    Permission("session-bus:talk:NAME", "may call {} on the session bus, and use everything that this program offers"),
    Permission("mcp", "may call all your other servers"),
    Permission("mcp:ID", "may call the server {}"),
    Permission("installed", "may see the installed servers and their configuration"),
)
"""All permissions. :func:`parse` collects what they grant, and :mod:`mcpd.runtime.sandbox` adds it to the sandbox."""
_ARGUMENTS: Final = {
    "PATH": re.compile(r".+", re.DOTALL),
    "NAME": re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*(\.[A-Za-z_-][A-Za-z0-9_-]*)+(\.\*)?", re.ASCII),
    "ID": ID_PATTERN,
}
_FORMS: Final = [each.form for each in PERMISSIONS]
KNOWN: Final = f"{', '.join(_FORMS[:-1])} and {_FORMS[-1]}, each optionally followed by ?KEY"
"""List of all permissions, for messages."""
_SHAPED: Final = re.compile(
    rf"({'|'.join(each.form for each in PERMISSIONS if not each.argument)})(\?\S|$)"
    rf"|({'|'.join({each.family for each in PERMISSIONS})}):\S"
)
_CONDITION: Final = re.compile(r"(.*)\?([A-Za-z0-9_.-]+)", re.DOTALL)

_UNITS: Final = "starts any program as the user"
_PORTALS: Final = "opens files with the user's programs, and starts programs at the next login"
_PASSWORDS: Final = "hands out the user's passwords"
_SETTINGS: Final = "changes settings that hold commands, such as keyboard shortcuts"
_DESKTOP: Final = "controls the desktop: it runs scripts, or sees the screen and types for the user"
_TERMINAL: Final = "runs commands in a terminal"
_FILES: Final = "changes or runs any file of the user"

REFUSED: Final = {
    "org.freedesktop.systemd1": _UNITS,
    "org.mcpd": "installs and starts servers, and hands them the user's secrets",
    "org.freedesktop.Flatpak": _UNITS,
    "org.freedesktop.portal": _PORTALS,
    "org.freedesktop.host.portal": _PORTALS,
    "org.freedesktop.impl.portal": _PORTALS,
    "org.freedesktop.secrets": _PASSWORDS,
    "org.gnome.keyring": _PASSWORDS,
    "org.gnome.OnlineAccounts": _PASSWORDS,
    "org.kde.kpasswdserver": _PASSWORDS,
    "org.kde.kwalletd": _PASSWORDS,
    "im.pidgin.purple": _PASSWORDS,
    "ca.desrt.dconf": _SETTINGS,
    "org.lxqt.global_key_shortcuts": _SETTINGS,
    "org.kde.kglobalaccel": _SETTINGS,
    "org.xfce.Xfconf": _SETTINGS,
    "com.canonical.Unity": _DESKTOP,
    "org.Cinnamon": _DESKTOP,
    "org.awesomewm.awful": _DESKTOP,
    "org.gnome.Mutter": _DESKTOP,
    "org.gnome.Shell": _DESKTOP,
    "org.kde.KWin": _DESKTOP,
    "org.kde.NotificationManager": _DESKTOP,
    "org.kde.klipper": _DESKTOP,
    "org.kde.kuiserver": _DESKTOP,
    "org.kde.osdService": _DESKTOP,
    "org.kde.plasmashell": _DESKTOP,
    "com.gexperts.Tilix": _TERMINAL,
    "com.mitchellh.ghostty": _TERMINAL,
    "io.elementary.terminal": _TERMINAL,
    "net.tenshu.Terminator": _TERMINAL,
    "org.gnome.Console": _TERMINAL,
    "org.gnome.Ptyxis": _TERMINAL,
    "org.gnome.Terminal": _TERMINAL,
    "org.guake3": _TERMINAL,
    "org.kde.konsole": _TERMINAL,
    "org.mate.terminal": _TERMINAL,
    "org.kde.yakuake": _TERMINAL,
    "org.xfce.Terminal": _TERMINAL,
    "org.bluez.obex": _FILES,
    "org.gnome.ArchiveManager1": _FILES,
    "org.gnome.Nautilus": _FILES,
    "org.kde.kdeconnect": _FILES,
    "org.kde.klauncher": _UNITS,
    "org.kde.krunner": _UNITS,
    "org.lxqt.runner": _UNITS,
    "org.xfce.Appfinder": _UNITS,
    "org.xfce.FileManager": _FILES,
    "org.xfce.Thunar": _FILES,
}
"""Prefixes of bus names that no server may call, each with the reason, which completes "NAME ..."."""

SHARED: Final = frozenset(
    {
        "org.freedesktop.FileManager1", "org.freedesktop.Notifications", "org.freedesktop.ScreenSaver",
        "org.gnome.ScreenSaver", "org.kde.JobViewServer", "org.kde.StatusNotifierWatcher",
    }
)  # fmt: skip
"""Bus names that on some desktops belong to the shell or the file manager. Only the interface with the same name is
granted."""


def refusal(name: str) -> str:
    """Return why no server may call *name*, which may end in ``.*``; empty if servers may."""
    stem = name.removesuffix(".*")
    for refused, reason in REFUSED.items():
        if stem.startswith(refused) or (stem != name and refused.startswith(f"{stem}.")):
            return f"{refused} {reason}"
    if stem != name and (stem.count(".") < 2 or stem in SHARED):
        return f"{name} covers the names of many programs; specify one of them"
    return ""


@dataclass(frozen=True, slots=True)
class PathGrant:
    """One path of a permission, with placeholders filled in, but not yet checked."""

    path: str
    writable: bool
    permission: str
    """The permission string, for messages."""
    create: bool = False
    """True to create a missing directory."""
    number: int = 0
    """Position, from 1, in a configured list; 0 for a single path."""
    listed: bool = False
    """True if the path is from a configured list; the server starts without the path if it is missing."""

    @property
    def shown(self) -> str:
        """The path for messages, which must not contain configuration values."""
        if self.path in self.permission:
            return repr(self.path)
        return f"{f'path {self.number}' if self.number else 'the path'} that the configuration gives"


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions that a manifest grants with the current configuration."""

    network: bool = False
    devices: bool = False
    paths: tuple[PathGrant, ...] = ()
    bus_names: tuple[str, ...] = ()
    mcp: tuple[str, ...] | None = None
    """Ids of the servers that the server may call, empty for all; None without the permission."""
    installed: bool = False
    """True if the server may read the installed servers and their configuration."""
    ignored: tuple[str, ...] = ()
    """Plain descriptions, which grant nothing."""


def parse(
    server_id: str, strings: Iterable[str], values: Mapping[str, JsonValue], *, sensitive: Collection[str] = ()
) -> Permissions:
    """Return the permissions of *strings* with the configuration *values*, where the keys *sensitive* are secrets.

    Raises :class:`~mcpd.errors.InvalidManifest` for a string that begins like a permission but is invalid, that names a
    secret, or that names a bus name that no server may call, even while its condition is false.
    """
    granted: defaultdict[str, list[str]] = defaultdict(list)
    paths: list[PathGrant] = []
    ignored: list[str] = []
    for string in strings:
        if not _SHAPED.match(string):
            ignored.append(string)
            continue
        row, argument, key = _row(string)
        _refuse_secrets(server_id, string, sensitive)
        if row is None:
            raise InvalidManifest(f"{server_id}: {string[:200]!r} is not a permission; known permissions: {KNOWN}")
        if row.argument == "NAME" and (reason := refusal(argument)):
            raise InvalidManifest(f"{server_id}: permission {string[:200]!r} is never granted: {reason}")
        if key and values.get(key) is not True:
            continue
        granted[row.family].append(argument)
        if row.argument == "PATH":
            mode = row.form.split(":")[1]
            named = expand(argument, values)
            listed = any(isinstance(values.get(key), list) for key in placeholders(argument))
            paths += (
                PathGrant(path, mode != "ro", string, mode == "create", number if len(named) > 1 else 0, listed)
                for number, path in enumerate(named, 1)
            )
    mcp = granted.get("mcp")
    return Permissions(
        network="network" in granted,
        devices="devices" in granted,
        paths=tuple(paths),
        bus_names=tuple(dict.fromkeys(granted["session-bus"])),
        mcp=None if mcp is None else () if "" in mcp else tuple(sorted(set(mcp))),
        installed="installed" in granted,
        ignored=tuple(ignored),
    )


def explain(string: str) -> tuple[str, str]:
    """Return what *string* grants, and why it cannot be granted, as text; both are empty for a description."""
    if not _SHAPED.match(string):
        return "", ""
    row, argument, key = _row(string)
    if row is None:
        return "", "not a permission"
    if row.argument == "NAME" and (reason := refusal(argument)):
        return "", f"never granted, because {reason}"
    # Only one interface of a shared name is granted.
    meaning = row.meaning.partition(",")[0] if argument in SHARED else row.meaning
    return meaning.format(argument) + (f", while {key} is true" if key else ""), ""


def _refuse_secrets(server_id: str, string: str, sensitive: Collection[str]) -> None:
    for key in placeholders(string):
        if key in sensitive:
            raise InvalidManifest(
                f"{server_id}: permission {string[:200]!r}: {key!r} is sensitive, but permissions are shown in"
                " messages; the manifest must use a property that is not sensitive"
            )


def _row(string: str) -> tuple[Permission | None, str, str]:
    """Return the row of *string*, None if it is invalid, with its argument and the key of its condition."""
    found = _CONDITION.fullmatch(string)
    permission, key = (found[1], found[2]) if found else (string, "")
    for row in PERMISSIONS:
        argument = permission.removeprefix(row.form.removesuffix(row.argument))
        if argument != permission and (_ARGUMENTS[row.argument].fullmatch(argument) if row.argument else not argument):
            return row, argument, key
    return None, "", key
