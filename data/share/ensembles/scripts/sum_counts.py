# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sums up the counts of all parts of a text.

Parameters: ``commonest``, how many words to list (10).
"""

from __future__ import annotations

import json
import sys
from collections import Counter


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    gathered = request["input"]
    parts = [part for part in gathered["response"] if part is not None]
    words: Counter[str] = Counter()
    for part in parts:
        words.update(part["words"])
    # By number, and where that is the same by word, so that the same text always has the same answer.
    commonest = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    data = {
        "lines": sum(part["lines"] for part in parts),
        "words": words.total(),
        "characters": sum(part["characters"] for part in parts),
        "different_words": len(words),
        "commonest": dict(commonest[: int(request["parameters"].get("commonest", 10))]),
        "parts": len(gathered["response"]),
        "complete": len(parts) == len(gathered["response"]),
    }
    json.dump({"success": True, "data": data}, sys.stdout)


if __name__ == "__main__":
    main()
