# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl token``: what HTTP clients show to the bridge."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mcpd.bridge.http.tokens import load_token, write_token
from mcpd.bridge.places import places
from mcpd.cli.bridge import ask
from mcpd.paths import from_environment

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


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


def _of_system(path: Path, *, renew: bool) -> str:
    return str(ask(path, "POST" if renew else "GET", "/token", system=True)["token"])
