# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidManifest
from mcpd.model.placeholders import expand, placeholders

if TYPE_CHECKING:
    from mcpd.model import JsonValue


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("x", ["--flag"]),
        (True, ["--flag"]),
        (0, ["--flag"]),
        (["a", "b"], ["--flag"]),
        (False, []),
        (None, []),
        ("", []),
        ([], []),
    ],
)
def test_a_text_that_is_there_if_a_key_is_set(value: JsonValue, found: list[str]) -> None:
    assert expand("{config.key?--flag}", {"key": value}) == found


def test_conditional_text_and_values_in_one_argument() -> None:
    values: dict[str, JsonValue] = {"a": ["1", "2"], "b": True}
    assert expand("{config.b?--at=}{config.a}!", values) == ["--at=1!", "--at=2!"]
    assert expand("{config.c?--at=}{config.a}!", values) == []
    assert placeholders("{config.c?--at=}{config.a}") == ["c", "a"]


def test_several_lists_in_one_argument_are_bounded() -> None:
    values: dict[str, JsonValue] = {"a": ["x"] * 20}
    assert len(expand("{config.a}" * 3, values)) == 8000
    with pytest.raises(InvalidManifest, match="more than"):
        expand("{config.a}" * 10_000, values)


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_text_without_placeholders_stays(text: str, values: dict[str, JsonValue]) -> None:
    if not placeholders(text):
        assert expand(text, values) == [text]
