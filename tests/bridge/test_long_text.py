# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON that is mostly one long text is taken, or not, as the decoder takes it, and has the same members."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

from mcpd.bridge import long_text

decoder = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
LONG = "x" * (3 * long_text.LARGE)


def outcome(decode: Any, data: bytes) -> Any:
    try:
        return {name: bytes(raw) for name, raw in decode(data).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return type(fault), str(fault)


def both(data: bytes) -> tuple[Any, Any]:
    return outcome(decoder, data), outcome(lambda text: long_text.decode(text, decoder), data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(LONG),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just(LONG), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


@examples(300)
@given(
    st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.integers(0, 60), st.binary(max_size=3), st.integers(0)
)
def test_what_is_decoded_is_what_the_decoder_finds(value: Any, where: int, more: bytes, near: int) -> None:
    whole = json.dumps(value).encode()
    # Something is put in near one end, or right beside the long text, where it could be mistaken.
    at = whole.find(LONG.encode())
    spot = (where, len(whole) - where, at, at + len(LONG), at + near % len(LONG))[where % 5 if at >= 0 else where % 2]
    spot = min(max(spot, 0), len(whole))
    for data in (whole, whole[:spot] + more + whole[spot:]):
        try:
            data.decode()
        except UnicodeDecodeError:
            continue
        if not any(byte < 32 for byte in more):
            expected, found = both(data)
            assert found == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a":"%s"}', '{"a":["%s"]}', '{"%s":1}', '{"a":"%s","a":2}', '{"a":"%s"', '{"a":%s}', '{"a":""%s""}',
        '{"a":"\\"%s"}', '{"a":"%s\\"}', '{"a":"\\\\"%s"}', '["%s"]', '"%s"', '{"a":"%s"} {}', '{"a":"%s",}', "%s",
        '{"a":"%s\n"}', '{"a":"%s\\n","b":"\\u00e4"}', '{"a":"b",%s"c":1}',
    ],
)  # fmt: skip
def test_every_place_of_a_long_text(text: str) -> None:
    expected, found = both((text % LONG).encode())
    assert found == expected
    expected, found = both((text % ("1," * len(LONG))).encode())
    assert found == expected
