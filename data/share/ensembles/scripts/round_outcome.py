# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a round came to: the answer, and whether it passed. An answer that could not be checked has not passed."""

from __future__ import annotations

import json
import sys
from typing import Any


def outcome(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to *request*."""
    found = request["input"]
    task, answer, check = found["task"], found["answer"], found["check"]
    if isinstance(answer, dict) and answer.get("status") in {"failed", "skipped"} and "error" in answer:
        return {"success": False, "error": f"there is no answer: {answer['error']}"}
    verdict = check if isinstance(check, dict) and isinstance(check.get("passed"), bool) else {"passed": False}
    remarks = verdict.get("remarks") or ("" if verdict["passed"] else "The answer could not be checked.")
    data = {
        "question": task["question"],
        "answer": answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False),
        "passed": verdict["passed"],
        "remarks": str(remarks),
        "round": task["round"],
    }
    return {"success": True, "data": data}


def main() -> None:
    """Answer the request on standard input."""
    json.dump(outcome(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
