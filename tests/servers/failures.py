# SPDX-License-Identifier: LGPL-2.1-or-later
"""Failed calls of tools, in either form that a server may give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mcp.shared.exceptions import MCPError
from mcp.types import TextContent

if TYPE_CHECKING:
    from mcp import Client


@dataclass(frozen=True)
class Failure:
    """The error of a call."""

    form: Literal["json-rpc", "result"]
    code: int
    message: str
    """For a result, its text."""
    data: Any


async def refused(client: Client, name: str, /, **arguments: Any) -> Failure:
    """Call the tool *name*, which has to fail."""
    try:
        result = await client.call_tool(name, arguments)
    except MCPError as error:
        return Failure("json-rpc", error.error.code, error.error.message, error.error.data)
    assert result.is_error, result
    assert result.structured_content is None
    (block,) = result.content
    assert result.meta is not None
    data = dict(result.meta["org.mcpd/error"])
    code, message = data.pop("code"), data.pop("message")
    assert isinstance(block, TextContent)
    assert block.text == message
    return Failure("result", code, message, data)
