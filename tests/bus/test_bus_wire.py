# SPDX-License-Identifier: LGPL-2.1-or-later
"""The codec, with dbus-next's as the second opinion."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from dbus_next._private.marshaller import Marshaller
from dbus_next.signature import Variant as TheirVariant
from hypothesis import given
from hypothesis import strategies as st

from mcpd.bus import codec
from mcpd.bus.codec import Raw, Variant, WireError

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
BASIC: dict[str, st.SearchStrategy[Any]] = {
    "y": st.integers(0, 255), "b": st.booleans(), "n": st.integers(-(1 << 15), (1 << 15) - 1),
    "q": st.integers(0, (1 << 16) - 1), "i": st.integers(-(1 << 31), (1 << 31) - 1),
    "u": st.integers(0, (1 << 32) - 1), "x": st.integers(-(1 << 63), (1 << 63) - 1),
    "t": st.integers(0, (1 << 64) - 1), "d": st.floats(allow_nan=False), "s": TEXT,
    "o": st.just("/org/mcpd"), "g": st.sampled_from(["", "a{sv}", "(ii)"]),
}  # fmt: skip


@st.composite
def typed(draw: st.DrawFn, depth: int = 3) -> tuple[str, Any]:
    """A signature and a value of ours for it."""
    kind = draw(st.sampled_from("basic" if depth == 0 else ["basic", "array", "dict", "struct", "variant"]))
    if kind == "array":
        signature, _ = draw(typed(depth - 1))
        return "a" + signature, draw(values("a" + signature))
    if kind == "dict":
        key = draw(st.sampled_from("snyt"))
        signature, _ = draw(typed(depth - 1))
        return f"a{{{key}{signature}}}", draw(st.dictionaries(BASIC[key], values(signature), max_size=3))
    if kind == "struct":
        members = draw(st.lists(typed(depth - 1), min_size=1, max_size=3))
        return "(" + "".join(m[0] for m in members) + ")", tuple(m[1] for m in members)
    if kind == "variant":
        return "v", Variant(*draw(typed(depth - 1)))
    code = draw(st.sampled_from(sorted(BASIC)))
    return code, draw(BASIC[code])


def values(signature: str) -> st.SearchStrategy[Any]:
    """Values for *signature*."""
    code = signature[0]
    if code in BASIC:
        return BASIC[code]
    if code == "v":
        return typed(1).map(lambda made: Variant(*made))
    if signature == "ay":
        return st.binary(max_size=3)
    if signature.startswith("a{"):
        return st.dictionaries(BASIC[signature[2]], values(signature[3:-1]), max_size=2)
    if code == "a":
        return st.lists(values(signature[1:]), max_size=2)
    return st.tuples(*(values(member) for member in codec.split(signature[1:-1])))


def theirs(signature: str, value: Any) -> Any:
    """*value* as dbus-next wants it."""
    if isinstance(value, Variant):
        return TheirVariant(value.signature, theirs(value.signature, value.value))
    if signature.startswith("a{"):
        return {key: theirs(signature[3:-1], item) for key, item in value.items()}
    if signature.startswith("a") and signature != "ay":
        return [theirs(signature[1:], item) for item in value]
    if signature.startswith("("):
        members = codec.split(signature[1:-1])
        return [theirs(member, item) for member, item in zip(members, value, strict=True)]
    return value


def plain(signature: str, value: Any) -> Any:
    """*value* as it comes back."""
    if isinstance(value, Variant):
        return plain(value.signature, value.value)
    if signature.startswith("a{"):
        return {key: plain(signature[3:-1], item) for key, item in value.items()}
    if signature.startswith("a") and signature != "ay":
        return [plain(signature[1:], item) for item in value]
    if signature.startswith("("):
        return tuple(plain(m, item) for m, item in zip(codec.split(signature[1:-1]), value, strict=True))
    return value


@given(st.lists(typed(), min_size=1, max_size=3))
def test_bodies_are_those_of_dbus_next_and_come_back(made: list[tuple[str, Any]]) -> None:
    signature = "".join(single for single, _ in made)
    body = codec.marshal(signature, [value for _, value in made])
    assert body == bytes(Marshaller(signature, [theirs(s, v) for s, v in made]).marshall())
    assert codec.unmarshal(signature, body) == [plain(s, v) for s, v in made]


@given(typed(), st.data())
def test_a_damaged_body_is_refused_and_nothing_else(made: tuple[str, Any], data: st.DataObject) -> None:
    signature, value = made
    body = bytearray(codec.marshal(signature, [value]))
    if body:
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
        del body[data.draw(st.integers(1, len(body))) :]
    with suppress(WireError):
        codec.unmarshal(signature, bytes(body), little=data.draw(st.booleans()))


@given(st.lists(st.dictionaries(TEXT, typed(2), max_size=4), max_size=4), st.text("s", max_size=8))
def test_entries_written_before_fit_wherever_they_go(dicts: list[dict[str, tuple[str, Any]]], before: str) -> None:
    signature = "s" * len(before) + "aa{sv}y"
    first = list(before)
    fresh = codec.marshal(signature, [*first, [{key: Variant(*each[key]) for key in each} for each in dicts], 7])
    kept = [codec.entries(each) for each in dicts]
    assert codec.marshal(signature, [*first, kept, 7]) == fresh
    nested = [codec.entries({"in": ("aa{sv}", kept), "after": ("s", before)})]
    assert codec.unmarshal("aa{sv}", codec.marshal("aa{sv}", [nested])) == [
        [{"in": codec.unmarshal("aa{sv}", codec.marshal("aa{sv}", [kept]))[0], "after": before}]
    ]


@pytest.mark.parametrize("given", [("s", 3), ("s", "a\0b"), ("s", "\ud800"), ("u", -1), ("ss", "a"), ("as", 3)])
def test_entries_that_do_not_fit_are_refused(given: tuple[str, Any]) -> None:
    with pytest.raises(WireError):
        codec.entries({"key": given})


@pytest.mark.parametrize(
    "signature", ["a", "(", "()", "a{", "a{s}", "a{vs}", "{sv}", "z", "a{sv", "s" * 256, "a" * 80 + "s"]
)
def test_what_is_no_signature_is_refused(signature: str) -> None:
    with pytest.raises(WireError):
        codec.marshal(signature, [None])
    with pytest.raises(WireError):
        codec.unmarshal(signature, b"")


@pytest.mark.parametrize(
    ("signature", "value"),
    [("u", -1), ("y", 256), ("s", 3), ("s", "a\0b"), ("s", "\ud800"), ("as", 3), ("v", None), ("(ss)", ["a"])],
)
def test_what_does_not_fit_is_refused(signature: str, value: Any) -> None:
    with pytest.raises(WireError):
        codec.marshal(signature, [value])


def test_variants_within_variants_end() -> None:
    with pytest.raises(WireError):
        codec.unmarshal("v", b"\x01v\0" * 80 + b"\x01y\0\x07")


@pytest.mark.parametrize(
    ("value", "signature"),
    [
        (True, "b"), (1, "x"), (1 << 63, "t"), (1.5, "d"), ("a", "s"), (b"a", "ay"), (["a"], "as"), ([], "as"),
        (["a", 1], "av"), ({"a": 1}, "a{sv}"),
    ],
)  # fmt: skip
def test_plain_values_become_the_variant_that_suits_them(value: Any, signature: str) -> None:
    assert codec.variant(value).signature == signature
    assert codec.unmarshal("v", codec.marshal("v", [value])) == [value]


def test_raw_is_taken_as_it_is() -> None:
    raw = codec.entries({"a": Variant("s", "b")})
    assert isinstance(raw, Raw)
    assert codec.unmarshal("a{sv}", codec.marshal("a{sv}", [raw])) == [{"a": "b"}]
