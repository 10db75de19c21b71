# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counts the lines, the characters and each word of one part of a text."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter

WORD = re.compile(r"\w+(?:['’-]\w+)*")


def main() -> None:
    """Answer the request on standard input."""
    text = json.load(sys.stdin)["input"]["input"]
    words = Counter(word.casefold() for word in WORD.findall(text))
    data = {"lines": len(text.splitlines()), "characters": len(text), "words": words}
    json.dump({"success": True, "data": data}, sys.stdout)


if __name__ == "__main__":
    main()
