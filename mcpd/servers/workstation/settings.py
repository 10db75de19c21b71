# SPDX-License-Identifier: LGPL-2.1-or-later
"""Settings of the workstation, from its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ToolNameStyle(StrEnum):
    """The form of tool names in ``tools/list``; calls may use all three."""

    UNDERSCORE = "underscore"
    """``filesystem_read``, which every client accepts."""
    SLASH = "slash"
    """``filesystem/read``"""
    DOT = "dot"
    """``filesystem.read``"""


class ToolSet(StrEnum):
    """The set of tools for a client; their list takes up context in each of its conversations."""

    COMMON = "common"
    """The most used ones, listed without the schemas of their results."""
    ALL = "all"


class ErrorMapping(StrEnum):
    """The form in which a client gets errors; a timeout is always a JSON-RPC error."""

    MCP = "mcp"
    """A JSON-RPC error for a tool or arguments that cannot be used; a result with ``isError`` if the tool failed."""
    JSON_RPC = "json-rpc"
    """JSON-RPC errors only."""
    TOOL_RESULT = "tool-result"
    """Results with ``isError`` only."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Paths are absolute, with ``~`` replaced."""

    roots: tuple[Path, ...]
    """As configured, with symlinks."""
    toolchains: tuple[Path, ...]
    """Directories that commands may read; their ``bin``, or they themselves, come first in PATH."""
    home: Path
    """The user's home, with git's configuration."""
    state: Path
    """Directory of the audit log, and of the home of commands."""
    confined: bool = False
    """True if this process runs in mcpd's sandbox, which contains only the roots."""
    problem: str = ""
    """The error in the configuration; if there is one, no path may be accessed, whatever :attr:`roots` are."""
    allow_network: bool = False
    allow_hooks: bool = False
    """True if git may run what a repository's configuration names: hooks, filters, drivers."""
    allow_hard_links: bool = False
    commands_write_git: bool = False
    """True if ci tools may change git directories, which are otherwise read-only for them."""
    tools: ToolSet = ToolSet.COMMON
    tool_name_style: ToolNameStyle = ToolNameStyle.UNDERSCORE
    error_mapping: ErrorMapping = ErrorMapping.MCP
    rate: float = 20.0
    """Calls a second, of which :attr:`burst` may come at once."""
    burst: int = 60
    call_timeout: float = 1800.0
    """Maximum ``timeout_seconds`` of a call, in seconds."""
