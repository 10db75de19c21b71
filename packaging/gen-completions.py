# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python packaging/gen-completions.py DIRECTORY``: what the shells need to complete mcpctl's command line.

The files only say that mcpctl completes itself (argcomplete); mcpd/cli/completion.py has what it offers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import argcomplete

FILES = {"bash": "mcpctl", "zsh": "_mcpctl", "fish": "mcpctl.fish"}
"""The name that each shell looks for."""


def main() -> None:
    """Write the files."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for shell, name in FILES.items():
        code = argcomplete.shellcode(["mcpctl"], shell=shell)
        (directory / name).write_text(code.strip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
