# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tests of signed configurations are made with: a tree with a clock of its own."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from mcpd.clients.keys import Keys
from mcpd.clients.releases import Entry, Release, Releases
from mcpd.clients.tree import Tree
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLE: dict[str, Any] = {
    "mcpServers": {
        "filesystem": {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/user/projects"],
        },
        "brave-search": {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-brave-search"],
            "env": {"BRAVE_API_KEY": "${BRAVE_API_KEY}"},
        },
    }
}
"""A payload."""
EXAMPLE_ID = "5d1e89f8b569eb213a5cf1bf10dcee64c305f19b5da834332891eb4c53e9a130"


@dataclass
class Clock:
    """Says what it is told."""

    time: datetime = field(default_factory=lambda: datetime(2026, 11, 23, 12, 0, 0, 5, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.time

    def forward(self, **by: float) -> None:
        self.time += timedelta(**by)


class Site:
    """The parts for one tree, as one process has them."""

    def __init__(self, root: Path, scope: Scope = Scope.USER, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.scope = scope
        self.tree = Tree(root, scope)
        self.keys = Keys(self.tree, self.clock)
        self.releases = Releases(self.tree, self.keys, self.clock)
        self.signing_key = root / "keys/signing_key.pem"
        self.list = root / "keys/keys.json"

    def again(self) -> Site:
        """What another process sees."""
        return Site(self.tree.root, self.scope, self.clock)

    def publish(self, payload: Any = EXAMPLE, client: str = "cursor", profile: str = "default") -> Release:
        return self.releases.publish(
            client, profile, payload, generator="mcpd", generator_version="1.0", changelog="Something new", source="x"
        )

    def blob(self, artifact_id: str = EXAMPLE_ID) -> Path:
        return self.tree.artifacts / f"{artifact_id}.json"


def listed(*releases: Release) -> list[Entry]:
    """What the history says of *releases*."""
    told = [{**release.to_json(), **release.metadata} for release in releases]
    return [Entry.model_validate({name: each[name] for name in Entry.model_fields}) for each in told]


def payload_of(*names: str) -> dict[str, Any]:
    return {"mcpServers": {name: {"command": "mcpctl", "args": ["run", name]} for name in names}}


def settle(root: Path) -> None:
    """Make all files so old that what was read of them may be kept."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (1_000_000_000, 1_000_000_000))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def contents(root: Path) -> dict[str, bytes]:
    """What every file below *root* holds."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@contextmanager
def not_mine(root: Path) -> Iterator[None]:
    """Be somebody else, who may write nothing below *root* and read only what everybody may."""
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)
        return
    before = {path: mode(path) for path in (root, *root.rglob("*")) if not path.is_symlink()}
    for path, bits in sorted(before.items(), reverse=True):
        path.chmod(((bits & 0o007) << 6) & ~0o222)
    try:
        yield
    finally:
        for path, bits in sorted(before.items()):
            path.chmod(bits)


def check_whole(site: Site) -> None:
    """All files belong to the one key in use."""
    secret = load_pem_private_key(site.signing_key.read_bytes(), None)
    assert isinstance(secret, Ed25519PrivateKey)
    raw = secret.public_key().public_bytes_raw()
    name = "orchestration-" + hashlib.sha256(raw).hexdigest()[:16]
    assert site.keys.current() == name
    assert [record.key_id for record in site.keys.listing() if record.retired_at is None] == [name]
    assert site.tree.verification_key_raw.read_bytes() == raw
    for path in (site.tree.verification_key, site.tree.keys / f"{name}.pem", site.tree.keys / "signing.pub"):
        public = load_pem_public_key(path.read_bytes())
        assert isinstance(public, Ed25519PublicKey)
        assert public.public_bytes_raw() == raw
    for record in site.keys.listing():
        assert isinstance(load_pem_public_key(record.path.read_bytes()), Ed25519PublicKey)
    assert (site.tree.keys / "signing.key").read_bytes() == site.signing_key.read_bytes()
    assert mode(site.signing_key) == 0o600
