# SPDX-License-Identifier: LGPL-2.1-or-later
"""All tools, in the order in which they are listed, and the most used ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation import ci, filesystem, git
from mcpd.servers.workstation.moves import while_git_writes_no_files, while_nothing_moves
from mcpd.servers.workstation.settings import ToolSet

if TYPE_CHECKING:
    from mcpd.servers.workstation.tool import Tool

TOOLS: Final[tuple[Tool, ...]] = (
    *filesystem.TOOLS,
    *(while_nothing_moves(tool) for tool in git.TOOLS),
    *(while_nothing_moves(while_git_writes_no_files(tool)) for tool in ci.TOOLS),
)
_COMMON: Final = (
    *("filesystem_read", "filesystem_write", "filesystem_edit", "filesystem_list", "filesystem_search"),
    *("filesystem_move", "filesystem_delete"),
    *("git_status", "git_log", "git_diff", "git_add", "git_commit"),
    *("ci_detect", "ci_build", "ci_test"),
)


def tools_of(chosen: ToolSet) -> tuple[Tool, ...]:
    """Return the tools of the set *chosen*."""
    return TOOLS if chosen is ToolSet.ALL else tuple(tool for tool in TOOLS if tool.name in _COMMON)
