# SPDX-License-Identifier: LGPL-2.1-or-later
"""The filesystem tools: files and directories below the roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.filesystem.listing import LIST, TREE
from mcpd.servers.workstation.filesystem.moving import DELETE, MOVE
from mcpd.servers.workstation.filesystem.reading import READ, STAT
from mcpd.servers.workstation.filesystem.searching import SEARCH
from mcpd.servers.workstation.filesystem.writing import EDIT, MKDIR, WRITE

if TYPE_CHECKING:
    from mcpd.servers.workstation.tool import Tool

TOOLS: Final[tuple[Tool, ...]] = (READ, WRITE, EDIT, LIST, TREE, SEARCH, STAT, MKDIR, MOVE, DELETE)
