# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the program was told: the directories, and what agents may."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DIRECTORY = ".llm-orc"
"""Where a project has its ensembles, scripts, ``config.yaml`` and artifacts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The same for all that one process does."""

    projects: tuple[Path, ...]
    """The directories that have, or may have, a :data:`DIRECTORY`; earlier ones come first where names clash."""
    user: Path
    """The user's own: ``ensembles``, ``scripts`` and ``config.yaml``; ``~/.config/llm-orc``."""
    data: Path
    """``artifacts`` of runs that belong to no project; ``~/.local/share/llm-orc``."""
    shipped: Path
    """The package's: ``*.yaml`` and ``scripts``; ``/usr/share/mcp/ensembles``."""
    cache: Path
    """A directory that may be lost."""
    state: Path
    """The home of scripts."""
    home: Path
    confined: bool = False
    """True if a sandbox shows nothing else."""
    script_network: bool = False
    """True if scripts, and what hears of runs, may use the network."""
    commands_write_git: bool = False
    """True if they may change git directories, which are read-only for them otherwise."""
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The keys of models' APIs, by the base URL that alone gets them."""
    problem: str | None = None
    """What is wrong with them; it is the answer to every call."""
