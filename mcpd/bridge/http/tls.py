# SPDX-License-Identifier: LGPL-2.1-or-later
"""The certificate that TCP clients are shown, where one is configured."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidConfig, from_oserror

if TYPE_CHECKING:
    from pathlib import Path

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds in which a client must have come to terms."""


class Certificate:
    """A certificate with its chain, and its key, in files; the key may be in the same file."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._files = certificate, key
        self.context = _context()
        self.load()

    def load(self) -> None:
        """Read the files, for connections from now on.

        Raises :class:`~mcpd.errors.InvalidConfig`, and leaves everything as it is, if they cannot be used.
        """
        # A context whose certificate has been replaced, but not its key, could greet nobody any more.
        self._load_into(_context())
        self._load_into(self.context)

    def _load_into(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        where = str(certificate) if key is None else f"{certificate} with the key {key}"
        try:
            # A password, which nobody could give, must not be asked for at the terminal.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except ssl.SSLError as error:
            why = error.reason or "no certificate, or none with this key"
            raise InvalidConfig(f"{where} cannot be used for HTTPS ({why}): give a PEM file with the certificate "
                                "and its chain, and one with its key, without a password") from error  # fmt: skip
        except OSError as error:
            raise from_oserror(error, f"reading {where}") from error


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    return context
