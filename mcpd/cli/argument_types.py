# SPDX-License-Identifier: LGPL-2.1-or-later
"""Argument types for argparse, and arguments that several commands have."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final

_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")


def add_id(parser: argparse.ArgumentParser, **kwargs: Any) -> None:
    """Add the argument ``ID`` to *parser*; *kwargs* go to ``add_argument``."""
    parser.add_argument("id", metavar="ID", help="id of the server", **kwargs)


def add_consent(parser: argparse.ArgumentParser) -> None:
    """Add ``--yes`` and ``--verbose`` to *parser*."""
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="list each package with its version and hash, and the time that each step took",
    )
    parser.add_argument(
        "-y",
        "--yes",
        action="store_true",
        help="consent to the permissions that the server asks for, and to unverified packages",
    )


def pair(text: str) -> tuple[str, str]:
    """Parse ``KEY=VALUE``."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def seconds(text: str) -> float:
    """Parse a duration of at most a day, in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 0 and 86400")
    return value


def sha256(text: str) -> str:
    """Parse a SHA-256 digest; return it in lower case."""
    if not _SHA256.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a SHA-256 digest (64 hexadecimal digits)")
    return text.lower()
