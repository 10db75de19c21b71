# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keys that are wrong, gone, not ours or not where they should be: nothing is signed with them, and nothing is lost."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from signed_parts import Site, check_whole, contents

from mcpd.clients.errors import SignatureError
from mcpd.errors import InvalidConfig, NoSpace

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

DATA = b'{"mcpServers":{}}'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "tree")


def pem(key: PrivateKeyTypes, password: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)  # type: ignore[union-attr]


def foreign() -> dict[str, bytes]:
    good = pem(Ed25519PrivateKey.generate())
    return {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "cut-at-a-line": good.splitlines(keepends=True)[0],
        "garbage": b"\xff\x00" * 100,
        "encrypted": pem(Ed25519PrivateKey.generate(), b"password"),
        "rsa": pem(rsa.generate_private_key(65537, 2048)),
        "ec": pem(ec.generate_private_key(ec.SECP256R1())),
        "another": good,
        "huge": b"-" * 100_000,
        "32 bytes": bytes(32),
    }


FOREIGN = foreign()


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_signing_key_that_is_not_the_right_one_signs_nothing(site: Site, kind: str) -> None:
    signature, old = site.keys.sign(DATA)
    site.signing_key.write_bytes(FOREIGN[kind])
    before = contents(site.tree.root)
    for attempt in (lambda keys: keys.sign(DATA), lambda keys: keys.initialize()):
        for keys in (site.keys, site.again().keys):
            with pytest.raises(SignatureError, match="signing_key") as caught:
                attempt(keys)
            assert "BEGIN" not in caught.value.message
    assert contents(site.tree.root) == before
    site.keys.verify(DATA, signature, old)

    change = site.keys.initialize(regenerate=True)
    assert change.previous == old
    check_whole(site)
    site.keys.verify(DATA, signature, old)
    site.keys.verify(DATA, *site.keys.sign(DATA))


def test_a_signing_key_that_is_gone_is_not_replaced_unasked(site: Site) -> None:
    _, old = site.keys.sign(DATA)
    site.signing_key.unlink()
    for attempt in (lambda: site.keys.sign(DATA), site.keys.initialize):
        with pytest.raises(SignatureError, match="keys rotate"):
            attempt()
    assert not site.signing_key.exists()
    assert site.keys.initialize(regenerate=True).previous == old
    check_whole(site)


def test_a_signing_key_that_was_retired_is_refused(site: Site) -> None:
    site.keys.sign(DATA)
    old = site.signing_key.read_bytes()
    site.keys.initialize(regenerate=True)
    site.signing_key.write_bytes(old)
    before = contents(site.tree.root)
    with pytest.raises(SignatureError, match="in use"):
        site.keys.sign(DATA)
    assert contents(site.tree.root) == before


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o666])
def test_a_signing_key_that_others_may_read_signs_nothing(site: Site, bits: int) -> None:
    site.keys.sign(DATA)
    site.signing_key.chmod(bits)
    with pytest.raises(SignatureError, match="chmod 600"):
        site.keys.sign(DATA)
    site.signing_key.chmod(0o600)
    check_whole(site)


@pytest.mark.parametrize("bits", [0o770, 0o702])
def test_a_directory_where_others_may_put_keys_signs_nothing(site: Site, bits: int) -> None:
    site.keys.sign(DATA)
    site.tree.keys.chmod(bits)
    with pytest.raises(SignatureError, match="chmod go-w"):
        site.keys.sign(DATA)


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
@pytest.mark.parametrize(
    "name", ["keys/signing_key.pem", "keys/keys.json", "verification_key.pem", "verification_key.raw"]
)
def test_what_is_no_file_is_no_key(site: Site, name: str, kind: str) -> None:
    site.keys.sign(DATA)
    path = site.tree.root / name
    path.rename(path.with_name("moved"))
    if kind == "symlink":
        path.symlink_to("moved")
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.mkdir()
    with pytest.raises(SignatureError, match=path.name):
        site.keys.sign(DATA)


def test_a_new_key_replaces_a_symlink_and_not_what_it_leads_to(site: Site, tmp_path: Path) -> None:
    site.keys.sign(DATA)
    target = tmp_path / "elsewhere.pem"
    site.signing_key.rename(target)
    site.signing_key.symlink_to(target)
    before = target.read_bytes()
    site.keys.initialize(regenerate=True)
    assert target.read_bytes() == before
    check_whole(site)


@pytest.mark.parametrize("name", ["verification_key.pem", "verification_key.raw"])
@pytest.mark.parametrize("content", ["another", "garbage", "empty"])
def test_a_verification_key_that_does_not_match_is_not_overwritten(site: Site, name: str, content: str) -> None:
    _, key = site.keys.sign(DATA)
    path = site.tree.root / name
    path.write_bytes({"another": bytes(range(32)), "garbage": b"garbage", "empty": b""}[content])
    before = contents(site.tree.root)
    for attempt in (lambda: site.keys.sign(DATA), site.keys.initialize):
        with pytest.raises(SignatureError, match=f"{name}.*remove it"):
            attempt()
    assert contents(site.tree.root) == before
    path.unlink()
    assert site.keys.sign(DATA)[1] == key
    check_whole(site)


def test_a_verification_key_of_somebody_else_keeps_keys_from_being_made(site: Site) -> None:
    site.tree.root.mkdir()
    site.tree.verification_key_raw.write_bytes(bytes(range(32)))
    with pytest.raises(SignatureError, match="verification_key"):
        site.keys.sign(DATA)
    assert not site.signing_key.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"keys": 5}',
        b'{"keys": [{}]}',
        b'{"keys": [{"key_id": "../../x", "created_at": "2026-01-01T00:00:00Z"}]}',
        b'{"keys": [{"key_id": "orchestration-0123456789abcdef", "created_at": "2026-01-01T00:00:00"}]}',
        b'{"keys": [{"key_id": "orchestration-0123456789abcdef", "created_at": "yesterday"}]}',
        b'{"keys": [%s]}'
        % b",".join([b'{"key_id": "orchestration-0123456789abcdef", "created_at": "2026-01-01T00:00:00Z"}'] * 2),
        b"[" * 100_000,
        b"\xff\xfe",
        b" " * 2_000_000,
    ],
    ids=[
        "empty",
        "cut",
        "array",
        "no-keys",
        "number",
        "no-id",
        "path",
        "no-zone",
        "no-time",
        "twice",
        "deep",
        "not-utf8",
        "huge",
    ],
)
def test_a_broken_list_of_keys_is_named_and_kept(site: Site, content: bytes) -> None:
    signature, key = site.keys.sign(DATA)
    site.list.write_bytes(content)
    for attempt in (
        lambda keys: keys.sign(DATA),
        lambda keys: keys.verify(DATA, signature, key),
        lambda keys: keys.current(),
        lambda keys: keys.listing(),
        lambda keys: keys.initialize(regenerate=True),
    ):
        with pytest.raises(SignatureError, match=r"keys\.json"):
            attempt(site.keys)
    assert site.list.read_bytes() == content
    site.list.unlink()
    site.keys.initialize()
    site.keys.verify(DATA, signature, key)
    check_whole(site)


def test_a_public_key_under_the_name_of_another_is_not_used(site: Site) -> None:
    signature, old = site.keys.sign(DATA)
    new = site.keys.initialize(regenerate=True).key_id
    (site.tree.keys / f"{old}.pem").write_bytes((site.tree.keys / f"{new}.pem").read_bytes())
    with pytest.raises(SignatureError, match=f"{old}.pem.*another"):
        site.again().keys.verify(DATA, signature, old)
    (site.tree.keys / f"{old}.pem").unlink()
    with pytest.raises(SignatureError, match=f"{old}.pem.*missing"):
        site.again().keys.verify(DATA, signature, old)


def test_a_key_that_no_list_names_stays_good_after_a_rotation(site: Site) -> None:
    signature, old = site.keys.sign(DATA)
    site.list.unlink()
    (site.tree.keys / f"{old}.pem").unlink()
    assert site.keys.initialize(regenerate=True).previous == old
    site.keys.verify(DATA, signature, old)


@pytest.mark.parametrize("at", range(7))
def test_a_full_disk_stops_a_rotation_before_its_first_step(
    site: Site, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site.keys.sign(DATA)
    before = contents(site.tree.root)
    real, calls = os.write, 0

    def write(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > at:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    if at < 6:
        with pytest.raises(NoSpace):
            site.keys.initialize(regenerate=True)
        monkeypatch.undo()
        assert contents(site.tree.root) == before
        assert site.keys.sign(DATA) == first
    else:
        assert site.keys.initialize(regenerate=True).previous == first[1]
    check_whole(site)


@pytest.mark.parametrize("member", ["created_at", "retired_at"])
@pytest.mark.parametrize(
    "time", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "9000-01-01T00:00:00Z"]
)
def test_times_that_cannot_be_reckoned_with_are_no_times_of_keys(site: Site, member: str, time: str) -> None:
    signature, old = site.keys.sign(DATA)
    site.keys.initialize(regenerate=True)
    listed = json.loads(site.list.read_text())
    listed["keys"][1][member] = time
    site.list.write_text(json.dumps(listed))
    before = contents(site.tree.root)
    for attempt in (
        lambda keys: keys.listing(),
        lambda keys: keys.initialize(regenerate=True),
        lambda keys: keys.verify(DATA, signature, old),
        lambda keys: keys.sign(DATA),
    ):
        with pytest.raises(SignatureError, match=rf"keys\.json: keys\.1\.{member}.*move it away"):
            attempt(site.again().keys)
    assert contents(site.tree.root) == before


@pytest.mark.parametrize("target", ["outside", "nowhere"])
def test_keys_that_lie_elsewhere_are_none(site: Site, tmp_path: Path, target: str) -> None:
    site.keys.sign(DATA)
    site.tree.keys.rename(tmp_path / "outside")
    site.tree.keys.symlink_to(tmp_path / target)
    before = contents(tmp_path / "outside")
    for attempt in (
        lambda: site.keys.sign(DATA),
        site.keys.initialize,
        lambda: site.keys.initialize(regenerate=True),
        site.again().keys.listing,
    ):
        with pytest.raises((SignatureError, InvalidConfig), match=f"^{site.tree.keys}: a symlink"):
            attempt()
    assert contents(tmp_path / "outside") == before


def test_the_tree_says_why_before_the_keys_do(site: Site) -> None:
    site.tree.root.write_text("in the way")
    with pytest.raises(Exception, match="tree") as caught:
        site.keys.sign(DATA)
    assert not isinstance(caught.value, (SignatureError, InvalidConfig))
