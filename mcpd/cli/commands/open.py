# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl open``: the pages of the caller's bridge in a browser, signed in by a link that works once."""

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
            "only your own bridge signs a browser in, so: mcpctl --user open; "
            "the servers that the system runs are listed by: mcpctl --system list"
        )
    path = places(from_environment().user).socket
    target = "/sign-in" + (f"?{urlencode({'server': args.id})}" if args.id else "")
    answer = ask(path, "POST", target, system=False)
    url = str(answer["url"])
    if not args.print and _opened(url):
        return 0
    sys.stdout.write(url + "\n")
    note(f"The link works once, within {answer['seconds']} seconds, in a browser of yours on this machine.")
    return 0


def _opened(url: str) -> bool:
    """Whether the desktop took *url*."""
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
        # Some desktops keep it running as long as the browser.
        return True
