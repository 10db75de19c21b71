# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools filesystem/*: files and directories below the roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.filesystem.deleting import DELETE
from mcpd.servers.workstation.filesystem.editing import EDIT
from mcpd.servers.workstation.filesystem.listing import LIST
from mcpd.servers.workstation.filesystem.making import MKDIR
from mcpd.servers.workstation.filesystem.moving import MOVE
from mcpd.servers.workstation.filesystem.reading import READ
from mcpd.servers.workstation.filesystem.searching import SEARCH
from mcpd.servers.workstation.filesystem.status import STAT
from mcpd.servers.workstation.filesystem.trees import TREE
from mcpd.servers.workstation.filesystem.writing import WRITE

if TYPE_CHECKING:
    from mcpd.servers.workstation.tool import Tool

TOOLS: Final[tuple[Tool, ...]] = (READ, WRITE, EDIT, LIST, TREE, SEARCH, STAT, MKDIR, MOVE, DELETE)
