# SPDX-License-Identifier: LGPL-2.1-or-later
"""An MCP server over stdio that needs only the standard library, to be installed and looked out of."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from typing import Any

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


def _tool(name: str, description: str, *arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"name": name, "description": description, "inputSchema": schema}


TOOLS = [
    _tool("echo", "Returns the text", "text"),
    _tool("python", "Runs Python code in this process and returns what it prints", "code"),
    _tool("stderr", "Writes the text to standard error", "text"),
]


def call(name: str, arguments: dict[str, str]) -> dict[str, Any]:
    """The result of one tool call."""
    failed = False
    if name == "echo":
        text = arguments["text"]
    elif name == "stderr":
        print(arguments["text"], file=sys.stderr, flush=True)
        text = ""
    else:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(arguments["code"], {"__name__": "__tool__"})
            except BaseException:  # noqa: BLE001 - whatever the code does is the answer
                failed = True
                print(traceback.format_exc())
        text = printed.getvalue()
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request, without its id."""
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        wanted = params.get("protocolVersion")
        return {
            "result": {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "echo", "version": "1.0"},
            }
        }
    if method == "ping":
        return {"result": {}}
    if method == "tools/list":
        return {"result": {"tools": TOOLS}}
    if method == "tools/call" and params["name"] in {tool["name"] for tool in TOOLS}:
        return {"result": call(params["name"], params.get("arguments") or {})}
    return {"error": {"code": -32601, "message": f"no such method: {method}"}}


def main() -> None:
    """Serve until standard input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message)}), flush=True)


if __name__ == "__main__":
    main()
