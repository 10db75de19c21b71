# SPDX-License-Identifier: LGPL-2.1-or-later
"""The output of programs as plain text: what it says, without what would only be done on a terminal."""

from __future__ import annotations

import re
from typing import Final

_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, moves
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]"
    r"|\x1b"
)
"""ECMA-48. Where one does not end it is only its beginning; no part can match in two ways."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_OVERWRITTEN: Final = re.compile(r"^.*\r(?!$)", re.MULTILINE)
_PIECE: Final = 64 * 1024
_FIRST_LINE: Final = 4096
"""Bytes that are left out at most so that a line is whole."""
_CONTINUATION: Final = range(0x80, 0xC0)


def plain(text: str) -> str:
    """*text* without escape sequences and control characters; of a line that is written over, what it is at last.

    It is looked at in pieces, of whole lines where these are not very long: other threads wait while one is.
    """
    pieces = []
    start = 0
    while start < len(text):
        end = text.rfind("\n", start, start + _PIECE) + 1 or start + _PIECE
        pieces.append(_plain(text[start:end]))
        start = end
    return "".join(pieces)


def _plain(text: str) -> str:
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n")
    return _CONTROLS.sub("", _OVERWRITTEN.sub("", text).replace("\r", ""))


def end_of(data: bytes, most: int, *, is_cut: bool = False) -> tuple[str, bool]:
    """The last *most* bytes of *data* as plain text that begins with a line, and whether there was more.

    With *is_cut* something before *data* is missing already. A long line is cut where it has to be.
    """
    cut = data[-most:] if most else b""
    is_cut |= len(cut) < len(data)
    if is_cut:
        newline = cut.find(b"\n", 0, _FIRST_LINE)
        if 0 <= newline < len(cut) - 1:
            cut = cut[newline + 1 :]
        else:
            cut = cut[next((n for n, byte in enumerate(cut[:4]) if byte not in _CONTINUATION), 0) :]
    return plain(cut.decode("utf-8", "replace")), is_cut


def last_lines(text: str, most: int) -> str:
    """The last *most* characters of *text*, from the beginning of a line if one begins there."""
    if len(text) <= most:
        return text
    start = text.find("\n", len(text) - most)
    return text[start + 1 :] if 0 <= start < len(text) - 1 else text[-most:]
