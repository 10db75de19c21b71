# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bytes that are hashed and signed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signed_parts import EXAMPLE, EXAMPLE_ID

from mcpd.clients.payload import ARTIFACT_ID, canonical, id_of, timestamp
from mcpd.errors import InvalidArgument
from mcpd.model.base import MAX_DEPTH

pytestmark = pytest.mark.process

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


def turned(value: Any) -> Any:
    """The same, with the members of every object in the other order."""
    if isinstance(value, dict):
        return {key: turned(item) for key, item in reversed(value.items())}
    return [turned(item) for item in value] if isinstance(value, list) else value


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_the_example_of_the_source_document_has_its_id() -> None:
    assert id_of(EXAMPLE) == EXAMPLE_ID
    assert ARTIFACT_ID.fullmatch(EXAMPLE_ID)


def test_canonical_json_is_sorted_and_escaped_and_has_no_spaces() -> None:
    assert canonical({"b": [1, 2.5, None, True], "a": {"é": "😀\n"}}) == (
        rb'{"a":{"\u00e9":"\ud83d\ude00\n"},"b":[1,2.5,null,true]}'
    )


@given(JSON)
def test_canonical_json_has_the_same_value(value: Any) -> None:
    data = canonical(value)
    assert data.isascii()
    assert json.loads(data) == value
    assert canonical(json.loads(data)) == data
    assert canonical(turned(value)) == data


@given(JSON, JSON)
def test_different_values_have_different_ids(one: Any, other: Any) -> None:
    assert (id_of(one) == id_of(other)) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="nan"),
        pytest.param({"a": [float("inf")]}, id="infinity"),
        pytest.param(["\ud800"], id="half-surrogate"),
        pytest.param({"\udfff": 1}, id="half-surrogate-key"),
        pytest.param({"a": "x\0y"}, id="nul"),
        pytest.param({"a\0": 1}, id="nul-key"),
        pytest.param({1: "a"}, id="number-key"),
        pytest.param({"a": {None: "a"}}, id="null-key"),
        pytest.param({"a": {True: "a"}}, id="boolean-key"),
        pytest.param({"a": {1, 2}}, id="set"),
        pytest.param({"a": (1, 2)}, id="tuple"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param(10**5000, id="thousands-of-digits"),
        pytest.param(nested(MAX_DEPTH + 1), id="deep"),
        pytest.param(nested(200_000), id="very-deep"),
    ],
)
def test_what_has_no_such_bytes_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="cannot be signed"):
        canonical(value)


def test_what_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append({"again": value})
    with pytest.raises(InvalidArgument, match="nested"):
        canonical(value)


def test_the_deepest_that_is_allowed() -> None:
    assert canonical(nested(MAX_DEPTH)) == b"[" * MAX_DEPTH + b"]" * MAX_DEPTH


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_writes_the_same() -> None:
    value = {
        "mcpServers": {"é": {"command": "a b", "args": ["\t", "\x7f", "\"'\\", "€", "😀", "/"], "env": {}}},
        "￿": 1,
        "😀": [True, None, -3, 0.5],
    }
    loose = json.dumps(value, indent=3, ensure_ascii=False)
    jq = subprocess.run(["jq", "-cSa", "."], input=loose.encode(), capture_output=True, check=True, timeout=120).stdout
    assert jq.rstrip(b"\n") == canonical(value)
    assert hashlib.sha256(jq.rstrip(b"\n")).hexdigest() == id_of(value)


@pytest.mark.parametrize(
    "name", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", "٠" * 64, "../" + "a" * 61]
)
def test_what_is_no_artifact_id(name: str) -> None:
    assert not ARTIFACT_ID.fullmatch(name)


def test_times_are_utc_with_z() -> None:
    assert timestamp(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05.000000Z"
    assert (
        timestamp(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))))
        == "2026-01-02T01:04:05.000006Z"
    )
