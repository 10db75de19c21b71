# SPDX-License-Identifier: LGPL-2.1-or-later
"""Content ids and what lies under them."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, InvalidManifest, LimitExceeded, McpdError, NotFound
from mcpd.scripts import contents
from mcpd.scripts.contents import content_id, content_id_256t, is_content_id, parse, read, write

if TYPE_CHECKING:
    from pathlib import Path

HELLO = b"hello, world\n"
LONG = b"x" * 65


def test_ids_are_those_that_other_tools_compute() -> None:
    assert content_id(HELLO) == hashlib.sha256(HELLO).hexdigest()
    assert content_id_256t(b"") == "AAAAAAAA"
    assert content_id_256t(b"Hi!") == "AAAAAAAD" + "SGkh"
    digest = base64.urlsafe_b64encode(hashlib.sha512(LONG).digest()).decode().rstrip("=")
    assert content_id_256t(LONG) == "AAAAAABB" + digest
    assert len(content_id_256t(LONG)) == 94


@given(st.binary(max_size=200))
def test_every_id_is_valid_with_and_without_the_scheme(data: bytes) -> None:
    for name in (content_id(data), content_id_256t(data)):
        assert parse(name) == parse(f"cid://{name}") == name
        assert is_content_id(name)
        assert "/" not in name


@given(st.binary(max_size=64))
def test_a_short_content_is_in_its_256t_id(data: bytes) -> None:
    assert read(content_id_256t(data), []) == data


@given(st.text(max_size=120) | st.from_regex(r"(cid://)?[A-Za-z0-9_-]{0,100}", fullmatch=True))
def test_an_id_is_a_plain_file_name_and_anything_else_is_refused(text: str) -> None:
    if not is_content_id(text):
        with pytest.raises(InvalidArgument, match="is not a content id"):
            parse(text)
        return
    name = parse(text)
    assert parse(name) == name
    assert "/" not in name
    assert len(name) <= 94


@pytest.mark.parametrize(
    "text",
    [
        "", "cid://", "../../etc/passwd", "cid://../x", "A" * 64 + "\n", "f" * 63, "f" * 65, "AAAAAAAD", "AAAAAAADSGk",
        "AAAAAAADSGkhIQ", "AAAAAAABSR", "AAAAAAAA====", "cid://cid://AAAAAAAA", "AAAAAABB" + "A" * 85, "AAAAAAAÄ",
    ],
)  # fmt: skip
def test_near_misses_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        read(text, [])


@given(data=st.binary(max_size=300))
def test_content_is_read_under_both_names(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = tmp_path_factory.mktemp("cas")
    name = write(store, data)
    assert write(store, data) == name == content_id(data)
    assert read(f"cid://{name.upper()}", [store]) == read(content_id_256t(data), [store]) == data
    assert sorted(path.name for path in store.iterdir()) == sorted({name, content_id_256t(data)})
    assert (store / content_id_256t(data)).readlink().name == name


def test_T1_3_an_id_is_looked_for_in_one_directory_after_the_other(tmp_path: Path) -> None:
    name = write(tmp_path / "vendor/cas", LONG)
    assert read(name, [tmp_path / "missing", tmp_path / "vendor/cas"]) == LONG
    with pytest.raises(NotFound, match="mcpctl mcps build") as caught:
        read(name, [tmp_path / "missing"])
    assert str(tmp_path / "missing") in caught.value.message


def test_content_that_does_not_match_its_name_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path / "own", LONG)
    (tmp_path / "own" / name).write_bytes(b"y" * 65)
    for one in (name, content_id_256t(LONG)):
        with pytest.raises(InvalidManifest, match="does not match the name"):
            read(one, [tmp_path / "own"])
    write(tmp_path / "system", LONG)
    assert read(name, [tmp_path / "own", tmp_path / "system"]) == LONG
    write(tmp_path / "own", LONG)
    assert read(content_id_256t(LONG), [tmp_path / "own"]) == LONG


def test_content_that_is_too_large_in_one_directory_is_found_in_the_next(tmp_path: Path) -> None:
    name = write(tmp_path / "system", LONG)
    (tmp_path / "own").mkdir()
    for one in (name, content_id_256t(LONG)):
        (tmp_path / "own" / one).write_bytes(b"y" * 101)
        assert read(one, [tmp_path / "own", tmp_path / "system"], 100) == LONG
        with pytest.raises(LimitExceeded):
            read(one, [tmp_path / "own"], 100)


def test_another_file_in_the_place_of_a_content_is_replaced_or_refused(tmp_path: Path) -> None:
    name, outside = content_id(LONG), tmp_path / "outside"
    os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidManifest, match="not a regular file"):
        read(name, [tmp_path])
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(outside)
    (tmp_path / content_id_256t(LONG)).write_text("in the way")
    write(tmp_path, LONG)
    assert not outside.exists()
    assert read(content_id_256t(LONG), [tmp_path]) == LONG
    (tmp_path / content_id(HELLO)).mkdir()
    with pytest.raises(McpdError, match="writing"):
        write(tmp_path, HELLO)


def test_limits_apply_to_all_forms_of_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, LONG)
    for name in (content_id(LONG), content_id_256t(LONG)):
        assert read(name, [tmp_path], 65) == LONG
        with pytest.raises(LimitExceeded, match="larger than 64 bytes"):
            read(name, [tmp_path], 64)
    with pytest.raises(LimitExceeded):
        read(content_id_256t(HELLO), [], 3)
    monkeypatch.setattr(contents, "MAX_CONTENT", 10)
    with pytest.raises(LimitExceeded, match="larger than 10 bytes"):
        write(tmp_path / "new", HELLO)
    assert not (tmp_path / "new").exists()
