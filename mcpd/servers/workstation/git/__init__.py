# SPDX-License-Identifier: LGPL-2.1-or-later
"""The git tools: status, history and changes of repositories below the roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.git.blame import BLAME
from mcpd.servers.workstation.git.branches import BRANCHES, CURRENT_BRANCH
from mcpd.servers.workstation.git.checkout import CHECKOUT
from mcpd.servers.workstation.git.committing import ADD, COMMIT
from mcpd.servers.workstation.git.diff import DIFF
from mcpd.servers.workstation.git.log import LOG, SHOW
from mcpd.servers.workstation.git.stashing import STASH
from mcpd.servers.workstation.git.status import STATUS

if TYPE_CHECKING:
    from mcpd.servers.workstation.tool import Tool

TOOLS: Final[tuple[Tool, ...]] = (
    STATUS, LOG, DIFF, SHOW, BRANCHES, CURRENT_BRANCH, ADD, COMMIT, CHECKOUT, STASH, BLAME
)  # fmt: skip
