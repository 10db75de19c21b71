# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names on the session bus that no server may call, and those of which it may call one interface only.

A bus name stands for the whole program that owns it: whoever may call the name may call every interface of that
program. The tables hold well-known names of Debian's desktops; they cannot hold every program that runs others.
"""

from __future__ import annotations

from typing import Final

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
"""Beginnings of names, each with the reason that completes "NAME ..."."""

SHARED: Final = frozenset(
    {
        "org.freedesktop.FileManager1", "org.freedesktop.Notifications", "org.freedesktop.ScreenSaver",
        "org.gnome.ScreenSaver", "org.kde.JobViewServer", "org.kde.StatusNotifierWatcher",
    }
)  # fmt: skip
"""Names that on some desktops the shell or the file manager owns. Only the interface of the same name is granted."""


def refusal(name: str) -> str:
    """Return the reason why no server may call *name*, which may end in ``.*``; empty if one may."""
    stem = name.removesuffix(".*")
    for refused, reason in REFUSED.items():
        if stem.startswith(refused) or (stem != name and refused.startswith(f"{stem}.")):
            return f"{refused} {reason}"
    if stem != name and (stem.count(".") < 2 or stem in SHARED):
        return f"{name} covers the names of many programs; name one of them"
    return ""
