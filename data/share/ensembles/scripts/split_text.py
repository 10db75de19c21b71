# SPDX-License-Identifier: LGPL-2.1-or-later
"""Splits a text into parts of so many lines: a list, which another agent can fan out over.

Parameters: ``lines``, of a part (500).
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    given = request["input"]
    if not isinstance(given, str):
        # The text happens to be JSON.
        given = os.environ.get("INPUT_TEXT") or json.dumps(given, ensure_ascii=False)
    lines = given.splitlines(keepends=True)
    size = max(1, int(request["parameters"].get("lines", 500)))
    parts = ["".join(lines[at : at + size]) for at in range(0, len(lines), size)]
    json.dump({"success": True, "data": parts}, sys.stdout)


if __name__ == "__main__":
    main()
