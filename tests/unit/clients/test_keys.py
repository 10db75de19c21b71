# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keys that sign configurations: creation, rotation, recovery and faults."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_public_key,
)
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.errors import SignatureError
from mcpd.clients.keys import KEPT, OVERLAP
from mcpd.errors import InvalidConfig, NoSpace
from mcpd.paths import Scope
from tests.unit.clients.signed_parts import Site, check_whole, contents, mode, settle

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

DATA = b'{"mcpServers":{}}'


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
    with pytest.raises(SignatureError, match="not Base64"):
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


def pem(key: PrivateKeyTypes, password: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


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
