# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of ``mcpctl mcps`` have in common."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.cli.conftest import Mcpctl

HELLO = (
    '"""Says hello."""\n\n\ndef hello(name: str = "you") -> str:\n    """Greets\n\n    somebody."""\n    return name\n'
)
TRANSFORM = """\
import os

def generate_tools(server_name, context):
    seen = os.path.exists({secret!r})
    try:
        open({mark!r}, "w")
    except OSError:
        seen = seen or "only"
    schema = {{"type": "object"}}
    return [{{"name": f"seen-{{seen}}", "description": "Made", "inputSchema": schema, "function": "hello"}}]
"""


async def checked(mcpctl: Mcpctl, *files: Path) -> tuple[int, dict[str, Any]]:
    ended = await mcpctl("mcps", "check", "--json", *map(str, files))
    return ended.code, json.loads(ended.out)


def messages(found: Mapping[str, Any], result: str) -> list[str]:
    return [check["message"] for check in found["checks"] if check["result"] == result]
