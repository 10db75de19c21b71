# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the store hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mcpd.store.mcps import NO_ENTRY, ServerEntry

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.model import ConfigProperty, JsonValue, Manifest
    from mcpd.paths import Scope
    from mcpd.store.files import Signature

MANIFEST: Final = "manifest.json"
LayerName: TypeAlias = Literal["user", "system", "vendor"]


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """What a script server is made from."""

    path: Path | None
    """None for an entry of the mcps map that has no script."""
    sha256: str
    """Of its content, in hexadecimal."""
    contents: tuple[Path, ...]
    """Where the content ids of its entry are looked up."""


@dataclass(frozen=True, slots=True)
class InstalledServer:
    """A server as it is installed, also a broken one."""

    id: str
    """As it is listed. One that is no server id (see ``problem``) is never part of a path."""
    scope: Scope
    layer: LayerName
    manifest: Manifest | None
    """None if it cannot be used; ``config`` holds what is in the file without sensitive values."""
    directory: Path
    """``installDir``: the path a server knows itself by, the same over all its generations."""
    generation: Path
    """The real directory behind ``directory``."""
    problem: str
    """Why the server cannot be used; empty if it can."""
    writable: bool
    """Whether this instance may update and remove it."""
    configured: bool
    """Whether all required values are set."""
    entry: ServerEntry = NO_ENTRY
    """What the mcps map says about it."""
    values: tuple[Signature | None, ...] = ()
    """What changes when the files with its values and secrets do."""
    script: ScriptFile | None = None
    """Of a script server, whose manifest is in no file."""
    manifest_path: Path | None = None
    """The file with its manifest, which another tool may keep apart from ``directory``; None for a script server."""
    clash: str = ""
    """What has the same id and is not used because of that."""
    pending: str = ""
    """The version of an update that waits for approval, empty if none does or if it has none."""
    pending_generation: int = 0
    """The number of that update, 0 if none waits."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One version of a server in its final place, being built until it is activated or discarded."""

    server_id: str
    number: int
    path: Path


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of a server as everybody may see it."""

    values: dict[str, JsonValue]
    """Default < system < user; sensitive values are absent."""
    secrets_set: list[str]
    """Keys of the sensitive values that are set."""
    missing: list[ConfigProperty]
    """Required ones without a value."""


@dataclass(frozen=True, slots=True)
class LaunchManifest:
    """What a server gets at its start. Holds secrets: for the server's eyes only."""

    manifest: Manifest
    """The public one."""
    data: bytes = field(repr=False)
    """``manifest.json`` with all values whose target is the manifest (or a header, for remote servers)."""
    values: dict[str, JsonValue] = field(repr=False)
    """All values, for the targets ``env`` and ``arg``."""
