# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records that the store returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.scripts.mcps import NO_ENTRY, ServerEntry

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.files import Signature
    from mcpd.model import ConfigProperty, JsonValue, Manifest
    from mcpd.paths import LayerName, Scope
    from mcpd.scripts.servers import ScriptFile

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class InstalledServer:
    """An installed server, possibly a broken one."""

    id: str
    """Printable id. An invalid one (see ``problem``) is never used in a path."""
    scope: Scope
    layer: LayerName
    manifest: Manifest | None
    """None if the server is broken; ``config`` has no sensitive values."""
    directory: Path
    """``installDir``: the server's own path, the same for all its generations."""
    generation: Path
    """The real directory behind ``directory``."""
    problem: str
    """Reason why the server cannot be used; empty if it can."""
    writable: bool
    """True if this instance may update and remove the server."""
    configured: bool
    """True if all required values are set."""
    entry: ServerEntry = NO_ENTRY
    """The effect of the mcps map on the server."""
    values: tuple[Signature | None, ...] = ()
    """Signatures of the files with its values and secrets."""
    script: ScriptFile | None = None
    """The script, for a script server; its manifest is in no file."""
    manifest_path: Path | None = None
    """The manifest file, which may be outside ``directory``; None for a script server."""
    clash: str = ""
    """Message about a script that is ignored because it has the same id; else empty."""
    pending: str = ""
    """Version of the pending update; empty if there is none or it has none."""
    pending_generation: int = 0
    """Generation number of the pending update; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One version of a server in its final place, being built until it is activated or discarded."""

    server_id: str
    number: int
    path: Path


@dataclass(frozen=True, slots=True)
class Configuration:
    """Public configuration of a server."""

    values: dict[str, JsonValue]
    """Default < system < user; sensitive values are absent."""
    secrets_set: list[str]
    """Keys of the sensitive values that are set."""
    missing: list[ConfigProperty]
    """Required properties without a value."""


@dataclass(frozen=True, slots=True)
class LaunchManifest:
    """Manifest and values that a server is started with. Holds secrets: only for the server itself."""

    manifest: Manifest
    """The public manifest."""
    data: bytes = field(repr=False)
    """``manifest.json`` with all values whose target is the manifest (or a header, for remote servers)."""
    values: dict[str, JsonValue] = field(repr=False)
    """All values, for the targets ``env`` and ``arg``."""
