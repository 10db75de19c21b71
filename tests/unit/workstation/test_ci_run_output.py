# SPDX-License-Identifier: LGPL-2.1-or-later
"""Output of programs as plain text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.servers.workstation.ci.running import end_of, last_lines, plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31merror\x1b[0m: x", "error: x"),
        ("\x1b[38:2:1:2:3mx\x1b[K", "x"),
        ("\x9b31mx", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1bPdata\x1b\\x", "x"),
        ("\x1b(Bx\x1b7y\x1b=z", "xyz"),
        ("\x1b[31", "31"),
        ("\x1b]0;never ended\nx", "0;never ended\nx"),
        ("\x1b", ""),
        ("a\r\nb\r\n", "a\nb\n"),
        ("10%\r20%\r100%\n", "100%\n"),
        ("10%\r20%\r", "20%"),
        ("a\tb\x00\x07\x7f\u0085", "a\tb"),
        ("é → 日本 🎉", "é → 日本 🎉"),
    ],
)
def test_escapes_and_controls_are_taken_away(text: str, expected: str) -> None:
    assert plain(text) == expected


@given(st.text())
def test_nothing_of_a_terminals_is_left(text: str) -> None:
    found = plain(text)
    assert all(c in "\t\n" or not (ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0) for c in found)


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert plain(text + "\n\t") == text + "\n\t"


@pytest.mark.parametrize(
    "text",
    ["\x1b[" + "1" * 4_000_000, "\x1b[1" * 1_000_000, "\x1b]" * 2_000_000, "\x1b]" + "x" * 4_000_000, "\r" * 4_000_000,
     "\x1b[" + "1 " * 2_000_000, "x\r" * 2_000_000 + "\n\r"],
    ids=["long-csi", "many-csi", "many-osc", "long-osc", "returns", "csi-of-two", "overwritten"],
)  # fmt: skip
def test_hostile_output_takes_no_time_to_speak_of(text: str) -> None:
    assert len(plain(text)) <= len(text)


def test_the_end_begins_with_a_line() -> None:
    assert end_of(b"one\ntwo\nthree\n", 100) == ("one\ntwo\nthree\n", False)
    assert end_of(b"one\ntwo\nthree\n", 8) == ("three\n", True)
    assert end_of(b"e\ntwo\n", 100, is_cut=True) == ("two\n", True)
    assert end_of("ééé".encode(), 3) == ("é", True)
    assert end_of(b"x" * 10_000 + b"\nshort", 8_000)[0] == "x" * 7_994 + "\nshort"


@given(st.binary(), st.integers(1, 50), st.booleans())
def test_the_end_is_never_more_than_asked_for(data: bytes, most: int, is_cut: bool) -> None:
    text, truncated = end_of(data, most, is_cut=is_cut)
    assert truncated is (is_cut or len(data) > most)
    assert len(text) <= most


def test_the_last_lines() -> None:
    assert last_lines("a\nb\n", 10) == "a\nb\n"
    assert last_lines("aaa\nbbb\n", 6) == "bbb\n"
    assert last_lines("aaaaaa", 3) == "aaa"
