# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import base64
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, NotFound, ReadOnly, SignatureInvalid
from mcpd.paths import Paths, Scope
from mcpd.trust.keys import MAX_FILES, Keys, TrustedKey
from mcpd.trust.signing import new_key, sign
from tests.unit.catalog.catalog_paths import paths_below

if TYPE_CHECKING:
    from pathlib import Path

SECRET, PUBLIC = new_key()
OTHER_SECRET, OTHER_PUBLIC = new_key()
ELLIPTIC = generate_private_key(SECP256R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
DATA = b'{"servers": []}\n'


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return paths_below(tmp_path)


@pytest.fixture
def keys(paths: Paths) -> Keys:
    return Keys(paths, Scope.USER)


def put(directory: Path, name: str, content: bytes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(content)
    return directory / name


def names(keys: Keys) -> list[str]:
    return [key.name for key in keys.list()]


def test_nothing_is_trusted_at_first(keys: Keys) -> None:
    assert keys.list() == []
    assert keys.problems() == []
    assert keys.signer(DATA, sign(DATA, SECRET)) is None


def test_a_key_is_trusted_from_its_adding_to_its_removal(paths: Paths, keys: Keys) -> None:
    added = keys.add("example", PUBLIC.decode())
    assert keys.list() == [added] == [keys.signer(DATA, sign(DATA, SECRET))]
    assert added.file == paths.user.trusted_keys / "example.pem"
    assert added.file.read_bytes() == PUBLIC
    assert not added.read_only
    assert keys.trusted(added.fingerprint) == added
    assert Keys(paths, Scope.USER).list() == [added]
    keys.remove("example")
    assert keys.list() == []
    assert keys.trusted(added.fingerprint) is None
    assert keys.signer(DATA, sign(DATA, SECRET)) is None
    with pytest.raises(NotFound, match="example"):
        keys.remove("example")


def test_only_the_key_that_is_named_counts(keys: Keys) -> None:
    first, other = keys.add("first", PUBLIC.decode()), keys.add("other", OTHER_PUBLIC.decode())
    signature = sign(DATA, OTHER_SECRET)
    assert keys.signer(DATA, signature) == keys.signer(DATA, signature, "other") == other
    assert keys.signer(DATA, signature, "first") is keys.signer(DATA, signature, "none") is None
    assert keys.trusted(first.fingerprint, "first") == first
    assert keys.trusted(first.fingerprint, "other") is None


def test_what_was_changed_is_not_signed(keys: Keys) -> None:
    keys.add("example", PUBLIC.decode())
    assert keys.signer(DATA + b" ", sign(DATA, SECRET)) is None
    assert keys.signer(memoryview(DATA), sign(DATA, SECRET)) is not None
    assert keys.signer(DATA, sign(DATA, OTHER_SECRET)) is None


def test_the_users_key_of_a_name_wins(paths: Paths, keys: Keys) -> None:
    put(paths.system.trusted_keys, "a.pem", PUBLIC)
    put(paths.system.trusted_keys, "b.pem", PUBLIC)
    put(paths.user.trusted_keys, "b.pem", OTHER_PUBLIC)
    assert [(key.name, key.scope, key.read_only) for key in keys.list()] == [
        ("b", Scope.USER, False),
        ("a", Scope.SYSTEM, True),
    ]
    system = Keys(paths, Scope.SYSTEM)
    assert [(key.name, key.scope) for key in system.list()] == [("a", Scope.SYSTEM), ("b", Scope.SYSTEM)]
    with pytest.raises(ReadOnly, match=r"a\.pem"):
        keys.remove("a")
    put(paths.user.trusted_keys, "a.pem", b"")
    assert names(keys) == ["b"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not a public key in PEM, which begins with '-----BEGIN PUBLIC KEY-----'; 'mcpctl key new FILE'"),
        (b"\xff\x00", "not a public key"),
        (SECRET, "private key"),
        (PUBLIC + SECRET, "private key"),
        (PUBLIC + OTHER_PUBLIC, "more than one key; put each in its own file"),
        (ELLIPTIC, "Ed25519"),
        (PUBLIC.ljust(20_000), "16384"),
    ],
    ids=["empty", "binary", "private", "both", "two", "elliptic", "large"],
)
def test_files_that_hold_no_key_are_left_out(
    paths: Paths, keys: Keys, caplog: pytest.LogCaptureFixture, content: bytes, fault: str
) -> None:
    put(paths.user.trusted_keys, "good.pem", OTHER_PUBLIC)
    file = put(paths.user.trusted_keys, "bad.pem", content)
    for _ in range(3):
        assert names(keys) == ["good"]
        (problem,) = keys.problems()
        assert problem.startswith(f"{file}: ")
        assert fault in problem
    assert len(caplog.records) == 1
    with pytest.raises(NotFound):
        keys.remove("bad")
    with pytest.raises(InvalidArgument, match=r"bad\.pem"):
        keys.add("bad", PUBLIC.decode())
    with pytest.raises(InvalidArgument) as caught:
        keys.add("new", content.decode("latin-1"))
    assert fault in caught.value.message
    assert "MC4C" not in caught.value.message


def test_other_files_do_not_count(paths: Paths, keys: Keys) -> None:
    directory = paths.user.trusted_keys
    for name in ("no.pub", ".hidden.pem", "README"):
        put(directory, name, PUBLIC)
    (directory / "directory.pem").mkdir()
    os.mkfifo(directory / "pipe.pem")
    (directory / "gone.pem").symlink_to("nowhere")
    put(directory, "bad name.pem", PUBLIC)
    put(directory, "open.pem", PUBLIC).chmod(0o666)
    assert names(keys) == []
    assert len(keys.problems()) == 5


def test_a_directory_that_everybody_may_write_holds_no_keys(paths: Paths, keys: Keys) -> None:
    keys.add("a", PUBLIC.decode())
    put(paths.system.trusted_keys, "b.pem", OTHER_PUBLIC)
    paths.user.trusted_keys.chmod(0o777)
    assert names(keys) == ["b"]
    assert str(paths.user.trusted_keys) in keys.problems()[0]
    paths.user.trusted_keys.chmod(0o755)
    assert names(keys) == ["a", "b"]


def test_a_link_to_a_key_is_one(paths: Paths, keys: Keys, tmp_path: Path) -> None:
    there = put(tmp_path / "dotfiles", "k.pem", PUBLIC)
    paths.user.trusted_keys.mkdir(parents=True)
    (paths.user.trusted_keys / "linked.pem").symlink_to(there)
    assert names(keys) == ["linked"]
    keys.remove("linked")
    assert there.exists()
    assert names(keys) == []


def test_more_files_than_are_read(paths: Paths, keys: Keys) -> None:
    for number in range(MAX_FILES + 1):
        put(paths.user.trusted_keys, f"{number:04}.pem", PUBLIC)
    assert len(keys.list()) == MAX_FILES
    assert str(MAX_FILES) in keys.problems()[0]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".x", "-x", "a b", "a\n", "é", "x" * 65, "a\0"])
def test_names_that_are_refused(paths: Paths, keys: Keys, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        keys.add(name, PUBLIC.decode())
    assert not paths.user.trusted_keys.exists()


def test_a_name_stands_for_one_key(paths: Paths, keys: Keys) -> None:
    added = keys.add("a", PUBLIC.decode())
    assert keys.add("a", f"comment\n{PUBLIC.decode()}\n") == added
    with pytest.raises(InvalidArgument, match="another"):
        keys.add("a", OTHER_PUBLIC.decode())
    put(paths.system.trusted_keys, "s.pem", PUBLIC)
    with pytest.raises(InvalidArgument, match=r"s\.pem"):
        keys.add("s", OTHER_PUBLIC.decode())
    assert keys.add("s", PUBLIC.decode()).scope is Scope.SYSTEM


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which takes root")
def test_a_file_of_somebody_else_is_theirs_to_remove(paths: Paths, keys: Keys) -> None:
    os.chown(put(paths.user.trusted_keys, "a.pem", PUBLIC), 1, 1)
    assert [key.read_only for key in keys.list()] == [True]
    with pytest.raises(ReadOnly):
        keys.remove("a")


def test_the_generation_changes_with_the_list(paths: Paths, keys: Keys) -> None:
    seen = [keys.generation()]
    keys.add("a", PUBLIC.decode())
    seen.append(keys.generation())
    put(paths.user.trusted_keys, "a.pem", OTHER_PUBLIC)
    seen.append(keys.generation())
    assert Keys(paths, Scope.USER).generation() == seen[-1]
    put(paths.system.trusted_keys, "b.pem", OTHER_PUBLIC)
    seen.append(keys.generation())
    (paths.user.trusted_keys / "a.pem").chmod(0o666)
    seen.append(keys.generation())
    assert len(set(seen)) == len(seen)
    (paths.user.trusted_keys / "a.pem").chmod(0o644)
    assert keys.generation() == seen[-2]


def test_an_edit_is_seen_after_the_directory_was_quiet(paths: Paths, keys: Keys) -> None:
    file = put(paths.user.trusted_keys, "a.pem", PUBLIC)
    for path in (file, file.parent):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    before = keys.list()
    assert keys.list() == before
    put(paths.user.trusted_keys, "a.pem", OTHER_PUBLIC)
    assert keys.list() != before
    file.unlink()
    assert keys.list() == []


def test_keys_added_at_once_are_all_there(keys: Keys) -> None:
    wanted = [f"key-{number}" for number in range(16)]

    def add(name: str) -> TrustedKey:
        return keys.add(name, new_key()[1].decode())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, wanted))
    assert names(keys) == sorted(wanted)


def test_tools_may_break_the_base64_into_lines(keys: Keys) -> None:
    keys.add("a", PUBLIC.decode())
    signature = sign(DATA, SECRET)
    for broken in (signature[:64] + b"\n" + signature[64:], signature.strip(), b" \r\n" + signature + b"\r\n"):
        assert keys.signer(DATA, broken) is not None


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        b"\n",
        b"<html>not found</html>",
        base64.b64encode(bytes(63)),
        base64.b64encode(bytes(65)),
        base64.b64encode(bytes(64)).rstrip(b"="),
        base64.b64encode(bytes(64)) + b"#",
        base64.b64encode(bytes(64))[:-3] + b"B==",
        sign(DATA, SECRET) * 2,
        base64.b64encode(bytes(64)) + b"\n" * 10_000,
        bytes(64),
    ],
    ids=["empty", "blank", "html", "short", "long", "unpadded", "garbage", "loose-bits", "twice", "large", "raw"],
)
def test_what_is_no_signature_is_refused(keys: Keys, signature: bytes) -> None:
    for _ in range(2):
        with pytest.raises(SignatureInvalid):
            keys.signer(DATA, signature)
        keys.add("a", PUBLIC.decode())


@given(data=st.binary(max_size=200), signature=st.one_of(st.binary(max_size=200), st.binary(min_size=64, max_size=64)))
def test_only_the_key_signs(tmp_path_factory: pytest.TempPathFactory, data: bytes, signature: bytes) -> None:
    keys = Keys(paths_below(tmp_path_factory.mktemp("any")), Scope.USER)
    key = keys.add("a", PUBLIC.decode())
    assert keys.signer(data, base64.b64encode(signature.ljust(64)[:64])) is None
    assert keys.signer(data, sign(data, SECRET)) == key
    with suppress(SignatureInvalid):
        assert keys.signer(data, signature) is None
