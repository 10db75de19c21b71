# SPDX-License-Identifier: LGPL-2.1-or-later
"""The keys that configurations are signed with."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    load_pem_public_key,
)
from hypothesis import given
from hypothesis import strategies as st
from signed_parts import Site, check_whole, contents, mode, settle

from mcpd.clients.errors import SignatureError
from mcpd.clients.keys import KEPT, OVERLAP
from mcpd.paths import Scope

if TYPE_CHECKING:
    from pathlib import Path


DATA = b'{"mcpServers":{}}'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "tree")


def test_signatures_are_ed25519_and_anybody_can_check_them(site: Site) -> None:
    signature, key = site.keys.sign(DATA)
    public = load_pem_public_key(site.tree.verification_key.read_bytes())
    assert isinstance(public, Ed25519PublicKey)
    public.verify(base64.b64decode(signature), DATA)
    with pytest.raises(InvalidSignature):
        public.verify(base64.b64decode(signature), DATA + b" ")
    assert key == site.keys.current()


def test_the_public_key_is_there_as_pem_and_as_its_32_bytes(site: Site) -> None:
    signature, _ = site.keys.sign(DATA)
    raw = site.tree.verification_key_raw.read_bytes()
    assert len(raw) == 32
    Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(signature), DATA)


def test_the_names_of_other_implementations_lead_to_the_same_keys(site: Site) -> None:
    site.keys.sign(DATA)
    assert (site.tree.keys / "signing.key").readlink().name == "signing_key.pem"
    assert (site.tree.keys / "signing.pub").read_bytes() == site.tree.verification_key.read_bytes()


@pytest.mark.parametrize("scope", list(Scope), ids=str)
def test_nobody_else_may_read_the_signing_key(tmp_path: Path, scope: Scope) -> None:
    before = os.umask(0)
    try:
        site = Site(tmp_path / "tree", scope)
        site.keys.initialize()
        site.keys.initialize(regenerate=True)
    finally:
        os.umask(before)
    assert mode(site.signing_key) == 0o600
    assert mode(site.tree.verification_key) == mode(site.tree.verification_key_raw) == 0o644
    public = {site.list, *site.tree.keys.glob("orchestration-*.pem")}
    assert {mode(path) for path in public} == {0o600 if scope is Scope.USER else 0o644}
    assert mode(site.tree.keys) == (0o700 if scope is Scope.USER else 0o755)


def test_nothing_is_made_by_asking(site: Site) -> None:
    assert site.keys.current() is None
    assert site.keys.listing() == []
    with pytest.raises(SignatureError, match="is not in"):
        site.keys.verify(DATA, "", "orchestration-0123456789abcdef")
    assert not site.tree.root.exists()


def test_the_key_stays(site: Site) -> None:
    first = site.keys.sign(DATA)
    before = contents(site.tree.root)
    assert site.keys.sign(DATA) == site.again().keys.sign(DATA) == first
    change = site.again().keys.initialize()
    assert (change.key_id, change.created, change.previous, change.expires_at) == (first[1], False, None, None)
    assert contents(site.tree.root) == before
    check_whole(site)


def test_initialize_makes_the_keys(site: Site) -> None:
    change = site.keys.initialize()
    assert (change.created, change.previous, change.expires_at) == (True, None, None)
    assert site.keys.sign(DATA)[1] == change.key_id
    check_whole(site)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_signature_is_valid_only_for_what_was_signed(data: bytes, other: bytes) -> None:
    signature, key = SHARED.keys.sign(data)
    SHARED.keys.verify(data, signature, key)
    if other != data:
        with pytest.raises(SignatureError, match=key):
            SHARED.keys.verify(other, signature, key)


@given(st.data())
def test_a_signature_can_be_written_in_one_way_only(data: st.DataObject) -> None:
    signature, key = SHARED.keys.sign(DATA)
    at = data.draw(st.integers(0, len(signature) - 1))
    character = data.draw(st.characters())
    changed = data.draw(
        st.sampled_from(
            [
                signature[:at] + character + signature[at + 1 :],
                signature[:at] + character + signature[at:],
                signature[:at],
                signature.rstrip("="),
            ]
        )
    )
    if changed != signature:
        with pytest.raises(SignatureError):
            SHARED.keys.verify(DATA, changed, key)


def test_bits_that_decoders_ignore_are_not_ignored(site: Site) -> None:
    signature, key = site.keys.sign(DATA)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    changed = signature[:85] + alphabet[alphabet.index(signature[85]) + 1] + "=="
    assert base64.b64decode(changed, validate=True) == base64.b64decode(signature)
    with pytest.raises(SignatureError, match="not the Base64"):
        site.keys.verify(DATA, changed, key)


@pytest.fixture(scope="module", autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One tree for all examples of a property."""
    global SHARED  # noqa: PLW0603 - hypothesis takes no fixtures of a function
    SHARED = Site(tmp_path_factory.mktemp("shared") / "tree")
    SHARED.keys.initialize()


SHARED: Site


def test_a_key_that_is_none_of_ours(site: Site) -> None:
    signature, _ = site.keys.sign(DATA)
    for name in ("orchestration-0123456789abcdef", "../signing_key", "", "a\nb\x1b[0m"):
        with pytest.raises(SignatureError, match="is not in") as caught:
            site.keys.verify(DATA, signature, name)
        assert caught.value.message.isprintable()
        with pytest.raises(SignatureError, match="is not in"):
            site.keys.check(name)


def test_a_rotation_keeps_the_old_key_for_thirty_days(site: Site) -> None:
    signature, old = site.keys.sign(DATA)
    site.clock.forward(days=10)
    change = site.keys.initialize(regenerate=True)
    assert change.created
    assert change.previous == old
    assert change.expires_at == "2027-01-02T12:00:00.000005Z"
    assert change.key_id != old
    assert site.keys.sign(DATA)[1] == change.key_id
    new, retired = site.keys.listing()
    assert (new.key_id, new.created_at, new.retired_at, new.expires_at) == (
        change.key_id, "2026-12-03T12:00:00.000005Z", None, None,
    )  # fmt: skip
    assert (retired.key_id, retired.created_at, retired.retired_at, retired.expires_at) == (
        old, "2026-11-23T12:00:00.000005Z", "2026-12-03T12:00:00.000005Z", change.expires_at,
    )  # fmt: skip
    check_whole(site)

    other = site.again()
    for keys in (site.keys, other.keys):
        keys.verify(DATA, signature, old)
        keys.check(old)
    site.clock.forward(seconds=OVERLAP.total_seconds())
    site.keys.verify(DATA, signature, old)
    site.clock.forward(microseconds=1)
    for keys in (site.keys, other.keys):
        with pytest.raises(SignatureError, match="valid until 2027-01-02"):
            keys.verify(DATA, signature, old)
        with pytest.raises(SignatureError, match="publish again"):
            keys.check(old)
        keys.verify(DATA, signature, old, expired=True)
        with pytest.raises(SignatureError):
            keys.verify(DATA + b" ", signature, old, expired=True)


def test_rotations_follow_each_other(site: Site) -> None:
    made = []
    for _ in range(4):
        made.append((*site.keys.sign(DATA), site.keys.current()))
        site.clock.forward(days=1)
        site.keys.initialize(regenerate=True)
        check_whole(site)
    for signature, key, current in made:
        assert key == current
        site.keys.verify(DATA, signature, key)
    assert [record.key_id for record in site.keys.listing()][:0:-1] == [key for _, key, _ in made]


def test_no_number_of_rotations_makes_the_list_of_keys_unreadable(site: Site) -> None:
    signature, old = site.keys.sign(DATA)
    listed = json.loads(site.list.read_bytes())["keys"]
    retired = [
        {
            "key_id": f"orchestration-{number:016x}",
            "created_at": "2026-01-01T00:00:00Z",
            "retired_at": "2026-01-02T00:00:00Z",
        }
        for number in range(KEPT)
    ]
    site.list.write_text(json.dumps({"keys": listed + retired}))
    change = site.keys.initialize(regenerate=True)
    found = site.again().keys.listing()
    assert [record.key_id for record in found[:3]] == [change.key_id, old, retired[0]["key_id"]]
    assert len(found) == KEPT
    site.keys.verify(DATA, signature, old)


def test_a_rotation_by_another_process_is_seen(site: Site) -> None:
    _, old = site.keys.sign(DATA)
    settle(site.tree.root)
    assert site.keys.current() == old
    new = site.again().keys.initialize(regenerate=True).key_id
    assert site.keys.current() == new
    assert site.keys.sign(DATA)[1] == new


def test_a_key_that_was_taken_off_the_list_is_good_no_more(site: Site) -> None:
    signature, old = site.keys.sign(DATA)
    site.keys.initialize(regenerate=True)
    settle(site.tree.root)
    site.keys.verify(DATA, signature, old)
    listed = json.loads(site.list.read_text())
    site.list.write_text(json.dumps({"keys": listed["keys"][:1]}))
    with pytest.raises(SignatureError, match="is not in"):
        site.keys.verify(DATA, signature, old)


@pytest.mark.parametrize(
    "missing",
    [
        "verification_key.pem",
        "verification_key.raw",
        "keys/signing.key",
        "keys/signing.pub",
        "keys/KEY.pem",
        "keys/keys.json",
    ],
)
@pytest.mark.parametrize("way", ["sign", "initialize"])
def test_public_files_that_are_missing_are_written_anew(site: Site, missing: str, way: str) -> None:
    signature, key = site.keys.sign(DATA)
    path = site.tree.root / missing.replace("KEY", key)
    path.unlink()
    other = site.again()
    assert (other.keys.sign(DATA)[1] if way == "sign" else other.keys.initialize().key_id) == key
    check_whole(other)
    other.keys.verify(DATA, signature, key)


def test_only_the_signing_key_is_needed(site: Site) -> None:
    signature, key = site.keys.sign(DATA)
    for path in site.tree.root.rglob("*"):
        if path.name != "signing_key.pem" and not path.is_dir():
            path.unlink()
    other = site.again()
    assert other.keys.sign(DATA) == (signature, key)
    check_whole(other)


def test_the_names_of_others_are_left_alone(site: Site) -> None:
    site.tree.keys.mkdir(parents=True)
    (site.tree.keys / "signing.key").write_text("somebody's")
    site.keys.sign(DATA)
    assert (site.tree.keys / "signing.key").read_text() == "somebody's"
