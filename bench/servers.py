# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the benchmarks install: many manifests, and a server that costs next to nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ECHO = """\
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}},
             "serverInfo": {"name": "echo", "version": "1"}}
    elif m.get("method") == "tools/list":
        r = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    elif m.get("method") == "tools/call":
        r = {"content": [{"type": "text", "text": m["params"]["arguments"]["text"]}]}
    else:
        r = {}
    if "id" in m:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}) + "\\n")
        sys.stdout.flush()
"""
"""A stdio server in the standard library."""


def put_server(installed: Path, server_id: str, files: dict[str, str], **fields: object) -> None:
    """Write a server into *installed* as another implementation of the format would: a plain directory."""
    directory = installed / server_id
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    manifest = {
        "id": server_id,
        "name": server_id.replace("-", " ").title(),
        "summary": "A server of the benchmark, with a summary of usual length",
        "version": "1.0.0",
        "description": "Some lines of description, as registries have them. " * 3,
        "author": "Example",
        "homepage": f"https://example.com/{server_id}",
        "license": "MIT",
        "categories": ["mcp", "mcp-development"],
        "transports": [{"type": "stdio", "command": "python3", "args": ["server.py"]}],
        "installDir": str(directory),
        "config": {},
    } | fields
    (directory / "manifest.json").write_text(json.dumps(manifest))


def put_many(installed: Path, count: int) -> None:
    """Install servers that are only listed, so that there are *count* with those that are there."""
    for number in range(count - sum(path.is_dir() for path in installed.iterdir())):
        put_server(installed, f"server-{number:04}", {})
    index = {
        "servers": {p.name: {"location": str(p / "manifest.json")} for p in sorted(installed.iterdir()) if p.is_dir()}
    }
    (installed / "index.json").write_text(json.dumps(index))
