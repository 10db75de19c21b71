# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mcpctl client deploy`` writes, read back by a program of others that knows many clients' files: add-mcp."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.clients.families import Families, packaged
from mcpd.paths import from_environment

if TYPE_CHECKING:
    import pytest

    from tests.conformance.conftest import Tools

KNOWN = {
    "antigravity": "Antigravity",
    "claude-code": "Claude Code",
    "claude-desktop": "Claude Desktop",
    "cline": "Cline VSCode Extension",
    "cline-cli": "Cline CLI",
    "codex": "Codex",
    "copilot-cli": "GitHub Copilot CLI",
    "cursor": "Cursor",
    "fx": "fx",
    "gemini-cli": "Gemini CLI",
    "goose": "Goose",
    "grok": "Grok Build",
    "kilo-code": "Kilo Code",
    "kimi": "Kimi Code",
    "kiro": "Kiro CLI",
    "mastracode": "Mastra Code",
    "mcporter": "MCPorter",
    "opencode": "OpenCode",
    "pi": "Pi",
    "vscode": "VS Code",
    "windsurf": "Windsurf",
    "zed": "Zed",
}
"""What add-mcp calls the families that it knows."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def test_add_mcp_reads_back_what_was_deployed(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("XDG_", "MCP"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_ROOT", str(tmp_path / "system"))
    notes = from_environment().user.installed / "notes"
    notes.mkdir(parents=True)
    transports = [{"type": "stdio", "command": "python3", "args": ["server.py"]}]
    (notes / "manifest.json").write_text(json.dumps({"id": "notes", "name": "Notes", "transports": transports}))
    families = {family.id: family for family in Families([packaged("clients")]).all()}
    for client in KNOWN:
        # A client counts for add-mcp if its directories are there.
        for directory in families[client].linux_directories(tmp_path, os.environ):
            directory.mkdir(parents=True, exist_ok=True)
        mcpctl = Path(sys.executable).with_name("mcpctl")
        done = subprocess.run(
            [mcpctl, "--user", "client", "deploy", client, "--yes"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    done = tools.run("add-mcp/dist/index.js", "list", "-g", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = _STYLE.sub("", done.stdout)
    found = {line.removesuffix(":"): rest.split("\n")[0].strip() for line, rest in _sections(printed)}
    assert found == dict.fromkeys(KNOWN.values(), "- notes (mcpctl run notes)")


def _sections(printed: str) -> list[tuple[str, str]]:
    """Each client that is listed, and what follows its name."""
    parts = re.split(r"^(\S[^\n]*:)\n", printed, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))
