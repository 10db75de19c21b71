# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl sign``: sign registries and manifests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.cli.output import clean, note, warn, write
from mcpd.cli.user_input import STDIN, origin, read_input
from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse

MAX_SIGNED: Final = 512 * 1024 * 1024
"""Maximum bytes of a file to sign."""

_OTHERS: Final = 0o077


def sign(args: argparse.Namespace) -> int:
    """``mcpctl sign``: write ``FILE.sig``."""
    from mcpd.files import write_atomic  # see mcpd.trust.signing
    from mcpd.trust.keys import MAX_PEM
    from mcpd.trust.signing import public_of
    from mcpd.trust.signing import sign as signed

    if [args.key, *args.files].count(STDIN) > 1:
        raise InvalidArgument("standard input can be read only once; specify files")
    key = read_input(args.key, MAX_PEM)
    try:
        public_of(key)
    except InvalidArgument as error:
        raise InvalidArgument(f"{origin(args.key)}: {error.message}") from error
    if args.key != STDIN and Path(args.key).stat().st_mode & _OTHERS:
        warn(f"others may read {args.key}; run chmod 600 on it")
    for name in args.files:
        signature = signed(read_input(name, MAX_SIGNED), key)
        if name == STDIN:
            sys.stdout.write(signature.decode())
            continue
        path = Path(name)
        write_atomic(path.with_name(path.name + ".sig"), signature)
        # If standard output carries a signature, nothing else may be written to it.
        (note if STDIN in args.files else write)(f"Signed {clean(name)}: {clean(name)}.sig")
    return 0
