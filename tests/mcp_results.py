# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results of tools, as the official SDK reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.types import CallToolResult


def first_text(result: CallToolResult) -> str:
    """Return the text of the first block of *result*, which has to be a text."""
    block = result.content[0]
    assert block.type == "text"
    return block.text
