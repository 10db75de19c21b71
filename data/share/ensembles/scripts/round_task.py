# SPDX-License-Identifier: LGPL-2.1-or-later
"""The task of a round: the question, and from the second round on the answer so far and what was remarked on it."""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Answer the request on standard input."""
    given = json.load(sys.stdin)["input"]
    if isinstance(given, dict) and isinstance(given.get("question"), str):
        task = {key: given[key] for key in ("question", "answer", "remarks") if key in given}
        task["round"] = int(given.get("round", 0)) + 1
    else:
        question = given if isinstance(given, str) else os.environ.get("INPUT_TEXT") or json.dumps(given)
        task = {"question": question, "round": 1}
    json.dump({"success": True, "data": task}, sys.stdout)


if __name__ == "__main__":
    main()
