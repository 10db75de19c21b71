# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the workstation is allowed to do, from its arguments."""

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
    """The tools that a client gets; their list takes room in each of its conversations."""

    COMMON = "common"
    """The most used ones, listed without the schemas of their results."""
    ALL = "all"


class ErrorMapping(StrEnum):
    """The form in which a client gets errors; a time-out always is a JSON-RPC error."""

    MCP = "mcp"
    """A JSON-RPC error for a tool or arguments that cannot be used; a result with ``isError`` if the tool failed."""
    JSON_RPC = "json-rpc"
    """JSON-RPC errors only."""
    TOOL_RESULT = "tool-result"
    """Results with ``isError`` only."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it. Paths are absolute, ``~`` filled in."""

    roots: tuple[Path, ...]
    """As they were configured, symlinks and all."""
    toolchains: tuple[Path, ...]
    """Directories that commands may read, whose ``bin``, or they themselves, come first in PATH."""
    home: Path
    """The user's, where git's configuration is."""
    state: Path
    """Where the audit trail is, and the home of commands."""
    confined: bool = False
    """True if this process sees no more than the roots anyway, in mcpd's sandbox."""
    problem: str = ""
    """Why nothing may be touched, whatever :attr:`roots` say: what is wrong with the configuration."""
    allow_network: bool = False
    allow_hooks: bool = False
    """True if git runs what a repository's own configuration names: hooks, filters, drivers."""
    allow_hard_links: bool = False
    commands_write_git: bool = False
    """True if ci tools may change git directories, which are read-only for them otherwise."""
    tools: ToolSet = ToolSet.COMMON
    tool_name_style: ToolNameStyle = ToolNameStyle.UNDERSCORE
    error_mapping: ErrorMapping = ErrorMapping.MCP
    rate: float = 20.0
    """Calls a second, of which :attr:`burst` may come at once."""
    burst: int = 60
    call_timeout: float = 1800.0
    """Seconds that ``timeout_seconds`` of a call can be at most."""
