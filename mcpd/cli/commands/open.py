# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl open``: open the pages of the caller's bridge in a browser, with a sign-in link that works once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from mcpd.bridge.places import places
from mcpd.cli.bridge import ask
from mcpd.cli.output import note
from mcpd.errors import NotSupported
from mcpd.paths import from_environment

if TYPE_CHECKING:
    import argparse

OPENER: Final = "xdg-open"
_TIMEOUT: Final = 20.0
_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")


def open_pages(args: argparse.Namespace) -> int:
    """Open the list of servers, or the page of one; with ``--print``, or without a desktop, print the link."""
    if args.system:
        raise NotSupported(
            "only your own bridge has a sign-in for browsers; use 'mcpctl --user open', or 'mcpctl --system list' for "
            "the servers of the system"
        )
    path = places(from_environment().user).socket
    target = "/sign-in" + (f"?{urlencode({'server': args.id})}" if args.id else "")
    answer = ask(path, "POST", target, system=False)
    url = str(answer["url"])
    if not args.print and _opened(url):
        return 0
    sys.stdout.write(url + "\n")
    note(f"The link works once, within {answer['seconds']} seconds, in your browser on this machine.")
    return 0


def _opened(url: str) -> bool:
    """Open *url* on the desktop; return whether that worked."""
    opener = shutil.which(OPENER)
    if opener is None or not any(map(os.environ.get, _DISPLAYS)):
        return False
    try:
        process = subprocess.Popen([opener, url], stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        return False
    try:
        return process.wait(_TIMEOUT) == 0
    except subprocess.TimeoutExpired:
        # On some desktops xdg-open runs as long as the browser.
        return True
