# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes in Markdown what ``git_status``, ``git_log`` and ``ci_detect`` of the server ``workstation`` say."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKUP = re.compile(r"([\\`*_\[\]<>#|])")
MOST = 20
"""Files of each sort that are listed."""


def plain(text: object) -> str:
    """*text* in one line, as text that means nothing in Markdown."""
    return MARKUP.sub(r"\\\1", " ".join(str(text).split()))


def status(found: dict[str, Any]) -> Iterator[str]:
    """Where the work tree stands."""
    where = f"Branch {plain(found['branch'])}" if found.get("branch") else "No branch"
    if found.get("upstream"):
        where += f", {found.get('ahead', 0)} ahead of and {found.get('behind', 0)} behind {plain(found['upstream'])}"
    yield f"{where}."
    if found.get("operation"):
        yield f"A {found['operation']} is under way."
    if found["clean"]:
        yield "Nothing to commit."
        return
    for title in ("conflicts", "staged", "unstaged"):
        yield from listed(title, [f"{plain(each['path'])} ({plain(each['status'])})" for each in found[title]])
    yield from listed("untracked", [plain(each) for each in found["untracked"]])


def listed(title: str, lines: list[str]) -> Iterator[str]:
    """*lines* as a list with a *title*, if there are some."""
    if lines:
        rest = [f"… and {len(lines) - MOST} more"] if len(lines) > MOST else []
        yield f"{title.capitalize()}:\n\n" + "\n".join(f"- {line}" for line in [*lines[:MOST], *rest])


def history(found: dict[str, Any]) -> Iterator[str]:
    """The latest commits."""
    commits = [
        f"{each['date'][:10]} {each['abbreviated']} {plain(each['subject'])} ({plain(each['author'])})"
        for each in found["commits"]
    ]
    yield "\n".join(f"- {commit}" for commit in commits) or "No commits."


def builds(found: dict[str, Any]) -> Iterator[str]:
    """What the project is built with."""
    if not found["ecosystems"]:
        yield "Nothing that is known."
    for each in found["ecosystems"]:
        commands = [
            f"- {command['kind']}: {plain(' '.join(command['command']))}"
            + ("" if command["available"] else f" (not installed: {plain(', '.join(command.get('missing') or []))})")
            for command in each["commands"]
        ]
        yield "\n".join([f"{plain(each['title'])} ({plain(', '.join(each['markers']))})", "", *commands]).rstrip()


SECTIONS = {"status": ("Work tree", status), "history": ("Latest commits", history), "builds": ("Builds", builds)}


def main() -> None:
    """Answer the request on standard input."""
    found = json.load(sys.stdin)["input"]
    place = next((each[key] for each in found.values() for key in ("repository", "path") if key in each), "the project")
    report = [f"# {plain(place)}"]
    for name, (title, section) in SECTIONS.items():
        said = found[name]
        failed = said.get("error") if said.get("status") in {"failed", "skipped", "cancelled"} else None
        report += [f"## {title}", *([f"Not known: {plain(failed)}"] if failed else section(said))]
    json.dump({"success": True, "data": "\n\n".join(report) + "\n"}, sys.stdout)


if __name__ == "__main__":
    main()
