# SPDX-License-Identifier: LGPL-2.1-or-later
"""All tools, in the order in which they are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation import ci, filesystem, git
from mcpd.servers.workstation.moves import while_git_writes_no_files, while_nothing_moves

if TYPE_CHECKING:
    from mcpd.servers.workstation.tool import Tool

TOOLS: Final[tuple[Tool, ...]] = (
    *filesystem.TOOLS,
    *(while_nothing_moves(tool) for tool in git.TOOLS),
    *(while_nothing_moves(while_git_writes_no_files(tool)) for tool in ci.TOOLS),
)
