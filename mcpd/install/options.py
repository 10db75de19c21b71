# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a caller may say about an installation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcpd.model import JsonValue


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """Options of ``Install``, ``InstallManifest`` and ``Update``."""

    consent: bool = False
    """The caller has seen the permissions and agrees to them."""
    config: dict[str, JsonValue] = field(default_factory=dict)
    """Values for properties that are not sensitive."""
    version: str = ""
    """Version (pypi, npm) or revision (git) to install instead of the entry's; updates then leave the server alone."""
    source: str = ""
    """URL of the registry to take the entry from; empty for the first that has it."""
    dry_run: bool = False
    """End as cancelled once it is known what would be done."""
    reinstall: bool = False
    """Install again what is installed in this version already, or replace what came from elsewhere."""
    check: bool = True
    """Try the server before it is put into use; without, a remote server is installed that may be offline."""
