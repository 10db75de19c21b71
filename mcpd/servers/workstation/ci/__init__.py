# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ci tools: build, test and check projects below the roots, and parse the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.tools import BUILD, DETECT, DIAGNOSTICS, LINT, RESTORE, TASK, TEST

if TYPE_CHECKING:
    from mcpd.servers.workstation.tool import Tool

TOOLS: Final[tuple[Tool, ...]] = (DETECT, BUILD, TEST, LINT, RESTORE, TASK, DIAGNOSTICS)
