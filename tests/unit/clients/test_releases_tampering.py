# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was changed behind its back is named and never handed out."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from signed_parts import EXAMPLE_ID, Site, contents, listed, payload_of, settle

from mcpd.clients.errors import SignatureError
from mcpd.clients.payload import canonical
from mcpd.clients.releases import statement
from mcpd.errors import InvalidConfig, McpdError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "tree")


def index_of(site: Site, client: str = "cursor") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.tree.index(client, "default").read_text())
    return found


def put_index(site: Site, index: object, client: str = "cursor") -> None:
    site.tree.index(client, "default").write_text(json.dumps(index))


def check_refused(site: Site, match: str) -> None:
    """By who has it in memory, and by who has not."""
    for releases in (site.releases, site.again().releases):
        for attempt in (
            lambda r: r.latest("cursor", "default"),
            lambda r: r.history("cursor", "default"),
            lambda r: r.get("cursor", "default", EXAMPLE_ID),
        ):
            with pytest.raises(SignatureError, match=match) as caught:
                attempt(releases)
            assert "client publish cursor --profile default" in caught.value.message


def _other_content(path: Path) -> None:
    path.write_bytes(canonical(payload_of("evil")))


def _one_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _spaced(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))


def _symlink(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


BLOBS: dict[str, Callable[[Path], object]] = {
    "other-content": _other_content,
    "one-byte": _one_byte,
    "cut": _cut,
    "empty": lambda path: path.write_bytes(b""),
    "spaced": _spaced,
    "missing": lambda path: path.unlink(),
    "symlink": _symlink,
    "fifo": _fifo,
    "huge": _huge,
}


@pytest.mark.parametrize("kind", BLOBS)
def test_a_changed_artifact_is_refused_until_it_is_published_again(site: Site, kind: str) -> None:
    made = site.publish()
    settle(site.tree.root)
    assert site.releases.latest("cursor", "default") == made
    BLOBS[kind](site.blob())
    check_refused(site, EXAMPLE_ID)

    site.clock.forward(hours=1)
    again = site.publish()
    assert site.blob().read_bytes() == canonical(again.payload)
    for releases in (site.releases, site.again().releases):
        assert releases.latest("cursor", "default") == again
        assert releases.history("cursor", "default") == listed(again, made)


def test_another_artifact_does_not_suffer(site: Site) -> None:
    good = site.publish(payload_of("good"))
    site.publish()
    _cut(site.blob())
    assert site.again().releases.get("cursor", "default", good.artifact_id) == good


@pytest.mark.parametrize("member", ["artifact_id", "created_at", "signature", "signing_key_id", "release_signature"])
@pytest.mark.parametrize("source", ["made-up", "of-another-release"])
def test_a_release_that_was_changed_is_refused(site: Site, member: str, source: str) -> None:
    site.publish(payload_of("other"), client="zed")
    site.clock.forward(hours=1)
    site.keys.initialize(regenerate=True)
    site.publish()
    settle(site.tree.root)
    assert site.releases.latest("cursor", "default") is not None
    index = index_of(site)
    entry = index["releases"][0]
    made_up = {
        "artifact_id": "0" * 64,
        "created_at": "2027-01-01T00:00:00Z",
        "signature": base64.b64encode(bytes(64)).decode(),
        "signing_key_id": "orchestration-0123456789abcdef",
        "release_signature": base64.b64encode(bytes(64)).decode(),
    }
    other = index_of(site, "zed")["releases"][0]
    assert other[member] != entry[member]
    entry[member] = other[member] if source == "of-another-release" else made_up[member]
    put_index(site, index)
    for releases in (site.releases, site.again().releases):
        with pytest.raises(SignatureError, match="cursor/default"):
            releases.latest("cursor", "default")


def test_a_release_for_one_client_is_not_valid_for_another(site: Site) -> None:
    site.publish(client="zed")
    site.publish(payload_of("other"), client="cursor")
    put_index(site, index_of(site, "zed"))
    check_refused(site, "release signature")


def test_a_release_that_was_made_with_a_key_of_somebody_else(site: Site, tmp_path: Path) -> None:
    site.publish()
    other = Site(tmp_path / "other")
    other.publish()
    put_index(site, index_of(other))
    check_refused(site, "is not in")


def test_an_old_release_that_was_changed_is_refused_where_it_is_asked_for(site: Site) -> None:
    old = site.publish(payload_of("old"))
    new = site.publish()
    index = index_of(site)
    index["releases"][1]["created_at"] = "2020-01-01T00:00:00Z"
    put_index(site, index)
    assert site.releases.latest("cursor", "default") == new
    assert site.releases.get("cursor", "default", EXAMPLE_ID) == new
    for attempt in (
        lambda: site.releases.history("cursor", "default"),
        lambda: site.releases.get("cursor", "default", old.artifact_id),
    ):
        with pytest.raises(SignatureError, match="release signature"):
            attempt()


def _without(member: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        index = json.loads(path.read_text())
        del index["releases"][0][member]
        path.write_text(json.dumps(index))

    return change


def _wrong_type(path: Path) -> None:
    index = json.loads(path.read_text())
    index["releases"][0]["signature"] = 5
    path.write_text(json.dumps(index))


INDEXES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": _cut,
    "not-json": lambda path: path.write_bytes(b"not JSON"),
    "not-utf8": lambda path: path.write_bytes(b'{"releases": ["\xff"]}'),
    "array": lambda path: path.write_bytes(b"[]"),
    "no-list": lambda path: path.write_bytes(b"{}"),
    "null": lambda path: path.write_bytes(b'{"releases": null}'),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "deep-member": lambda path: path.write_bytes(b'{"releases": [], "x": ' + b"[" * 100 + b"]" * 100 + b"}"),
    "half-surrogate": lambda path: path.write_bytes(b'{"releases": [], "x": "\\ud800"}'),
    "nan": lambda path: path.write_bytes(b'{"releases": [NaN]}'),
    "long-number": lambda path: path.write_bytes(b'{"releases": [' + b"9" * 5000 + b"]}"),
    "no-signature": _without("signature"),
    "no-id": _without("artifact_id"),
    "wrong-type": _wrong_type,
    "symlink": _symlink,
    "fifo": _fifo,
    "huge": _huge,
}


@pytest.mark.parametrize("kind", INDEXES)
def test_a_list_that_is_broken_is_named_and_never_overwritten(site: Site, kind: str) -> None:
    made = site.publish()
    path = site.tree.index("cursor", "default")
    settle(site.tree.root)
    assert site.releases.latest("cursor", "default") == made
    INDEXES[kind](path)
    before = path.lstat().st_ino, path.lstat().st_ctime_ns
    check_refused(site, r"default\.json")
    with pytest.raises(SignatureError, match=r"default\.json.*move it away"):
        site.publish()
    assert (path.lstat().st_ino, path.lstat().st_ctime_ns) == before

    path.unlink()
    again = site.publish()
    assert site.again().releases.history("cursor", "default") == listed(again)


@pytest.mark.parametrize(
    "content",
    [
        b"{}", b"[]", b'"text"', b'{"mcpServers":[]}', b'{"mcpServers":{"a":5}}', b'{"mcpServers": {}}', b"not JSON",
        b'{"mcpServers":{},"mcpServers":{"a":{}}}', b'{"mcpServers":{"a":{"b":NaN}}}', b"\xff", b"[" * 100_000,
        b'{"mcpServers":{"a":{"b":' + b"[" * 200 + b"]" * 200 + b"}}}",
    ],
    ids=[
        "nothing", "array", "text", "servers", "entry", "spaced", "not-json", "twice", "nan", "not-utf8", "deep",
        "deep-entry",
    ],
)  # fmt: skip
def test_what_is_signed_and_no_configuration_is_refused(site: Site, content: bytes) -> None:
    """Who took over a server has its key too."""
    site.publish()
    name, created = hashlib.sha256(content).hexdigest(), "2026-11-23T13:00:00Z"
    site.blob(name).write_bytes(content)
    signature, key = site.keys.sign(content)
    index = index_of(site)
    index["releases"][:0] = [
        {
            "artifact_id": name,
            "created_at": created,
            "signature": signature,
            "signing_key_id": key,
            "release_signature": site.keys.sign(statement(name, "cursor", "default", created, key))[0],
        }
    ]
    put_index(site, index)
    for attempt in (
        lambda: site.releases.latest("cursor", "default"),
        lambda: site.releases.history("cursor", "default"),
        lambda: site.releases.get("cursor", "default", name),
    ):
        with pytest.raises(SignatureError, match=rf"{name}\.json \(cursor/default\).*client publish cursor"):
            attempt()
    again = site.publish()
    assert site.releases.latest("cursor", "default") == again


@pytest.mark.parametrize("place", ["index", "index/cursor", "artifacts"])
def test_releases_that_lie_elsewhere_are_none(site: Site, tmp_path: Path, place: str) -> None:
    site.publish()
    (site.tree.root / place).rename(tmp_path / "outside")
    (site.tree.root / place).symlink_to(tmp_path / "outside")
    before = contents(tmp_path / "outside")
    match = f"{site.tree.root / place}: a symlink"
    with pytest.raises(SignatureError, match=match):
        site.again().releases.latest("cursor", "default")
    with pytest.raises(SignatureError, match=match):
        site.again().releases.history("cursor", "default")
    if place != "artifacts":
        with pytest.raises(InvalidConfig, match=match):
            site.releases.published()
    with pytest.raises(McpdError, match=match):
        site.publish(payload_of("new"))
    assert contents(tmp_path / "outside") == before


def test_nothing_is_written_when_the_key_cannot_be_used(site: Site) -> None:
    site.publish()
    site.signing_key.chmod(0o644)
    before = contents(site.tree.root)
    with pytest.raises(SignatureError, match="chmod 600"):
        site.publish(payload_of("new"))
    assert contents(site.tree.root) == before


def test_one_release_that_cannot_be_trusted_does_not_keep_others_from_being_signed_again(site: Site) -> None:
    bad = site.publish(payload_of("bad"), client="cursor")
    site.publish(client="zed")
    (site.tree.artifacts / f"{bad.artifact_id}.json").write_bytes(b"{}")
    key = site.keys.initialize(regenerate=True).key_id
    with pytest.raises(SignatureError, match="cursor/default"):
        site.releases.resign()
    latest = site.releases.latest("zed", "default")
    assert latest is not None
    assert latest.signing_key_id == key
    with pytest.raises(SignatureError):
        site.releases.latest("cursor", "default")
