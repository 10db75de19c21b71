# SPDX-License-Identifier: LGPL-2.1-or-later
"""Settings of the program: its directories, and permissions of agents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DIRECTORY = ".llm-orc"
"""Directory of a project with its ensembles, scripts, ``config.yaml`` and artifacts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one process."""

    projects: tuple[Path, ...]
    """The directories that have, or may have, a :data:`DIRECTORY`; for equal names, earlier ones take precedence."""
    user: Path
    """The user's own directory: ``ensembles``, ``scripts`` and ``config.yaml``; ``~/.config/llm-orc``."""
    data: Path
    """Directory of the ``artifacts`` of runs that belong to no project; ``~/.local/share/llm-orc``."""
    shipped: Path
    """Directory of the package: ``*.yaml`` and ``scripts``; ``/usr/share/mcp/ensembles``."""
    cache: Path
    """Directory for caches, which may be deleted."""
    state: Path
    """Directory that contains the home of scripts."""
    home: Path
    confined: bool = False
    """True if a sandbox shows only these directories."""
    script_network: bool = False
    """True if scripts, and the Plexus server, may use the network."""
    commands_write_git: bool = False
    """True if scripts may change git directories, which are otherwise read-only for them."""
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The keys of models' APIs, by the only base URL to which each is sent."""
    problem: str | None = None
    """The error in the settings; if there is one, it is the answer to every call."""
