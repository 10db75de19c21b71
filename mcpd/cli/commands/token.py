# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl token``: print the token of HTTP clients of the bridge."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mcpd.bridge.http.tokens import load_token, remove_token, write_token
from mcpd.bridge.places import places
from mcpd.cli import bridge
from mcpd.cli.bridge import ask
from mcpd.errors import Busy
from mcpd.paths import Scope, from_environment

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from mcpd.paths import Paths


def token(args: argparse.Namespace) -> int:
    """Print the caller's token for the bridge; with ``--renew`` revoke it and print a new one.

    Raises :class:`~mcpd.errors.Busy` while clients would send the token to another user; ``--renew`` revokes the old
    token even then.
    """
    known = from_environment()
    scope = Scope.SYSTEM if args.system else Scope.USER
    if faults := [fault for address in bridge.listen_addresses(known, scope) if (fault := address.fault())]:
        if args.renew:
            _revoke(known, scope)
        result = "the old one is revoked, and no new one is created" if args.renew else "it is not printed"
        raise Busy(f"{'; '.join(faults)}, and clients would send the token there: {result}; see 'mcpctl doctor'")
    if args.system:
        found = _of_system(places(known.system).socket, renew=args.renew)
    else:
        file = places(known.user).token
        found = write_token(file) if args.renew else load_token(file)
    sys.stdout.write(found + "\n")
    return 0


def _revoke(known: Paths, scope: Scope) -> None:
    if scope is Scope.SYSTEM:
        _of_system(places(known.system).socket, renew=True)
    else:
        remove_token(places(known.user).token)


def _of_system(path: Path, *, renew: bool) -> str:
    return str(ask(path, "POST" if renew else "GET", "/token", system=True)["token"])
