# SPDX-License-Identifier: LGPL-2.1-or-later
"""A form of a JSON document: what is needed of it, and what is done with that."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.servers.workstation.ci.formats.findings import Findings

T = TypeVar("T")


class Form:
    """One form. A document that is not of it has other fields, or none of some that this needs."""

    def __init__(self, kind: type[T], take: Callable[[Findings, T], None]) -> None:
        """*take* is given what *kind* needs of a document of the form."""
        decoder = msgspec.json.Decoder(kind)

        def read(findings: Findings, text: str) -> None:
            take(findings, decoder.decode(text))

        self._read = read

    def read(self, findings: Findings, text: str) -> bool:
        """Whether *text* is a document of this form, which is taken then."""
        try:
            self._read(findings, text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True
