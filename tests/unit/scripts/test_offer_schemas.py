# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments and results are checked by their JSON Schema, and texts become what it says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.servers.scripts.checking import Checks
from mcpd.servers.scripts.schemas import MAX_SCHEMA, Checker, from_texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.process

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_value_has_a_verdict(value: Any) -> None:
    schema = {
        "type": "object",
        "required": ["a b", "'"],
        "properties": {"": {"type": "integer"}},
        "additionalProperties": {"anyOf": [{"type": "string", "pattern": "^a"}, {"$ref": "#"}, {"const": 1}]},
    }
    fault = Checker(schema).fault(value)
    assert (fault == "") == Draft202012Validator(schema).is_valid(value)
    assert not fault or fault.startswith("$")


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(["$ref", "type", "properties", "items"]), JSON))
def test_any_object_is_a_schema_or_refused(schema: dict[str, Any]) -> None:
    try:
        checker = Checker(schema)
    except ValueError:
        return
    assert isinstance(checker.fault({"a": [1]}), str)


def test_a_schema_that_refers_to_itself_without_end_is_an_answer() -> None:
    assert "refers to itself" in Checker({"$ref": "#"}).fault({})


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan")], ids=["long", "infinite", "none"])
async def test_a_number_that_cannot_be_divided_is_an_answer(checks: Checks, value: float) -> None:
    for schema in ({"multipleOf": 0.5}, {"multipleOf": 0.5, "pattern": "^a"}):
        said = await checks.fault(Checker(schema), value, "the arguments")
        assert said.startswith("$: it cannot be checked: ")


def test_a_long_value_is_not_quoted_whole() -> None:
    fault = Checker({"properties": {"a": {"type": "integer"}}}).fault({"a": "x" * 100_000})
    assert len(fault) < 400
    assert fault.endswith("is not of type 'integer'")


@pytest.mark.parametrize(
    ("schema", "texts", "value"),
    [
        ({"type": "integer"}, ["7"], 7),
        ({"type": "integer"}, ["seven"], "seven"),
        ({"type": "number"}, ["0.5"], 0.5),
        ({"type": "number"}, ["NaN"], "NaN"),
        ({"type": "boolean"}, ["true"], True),
        ({"type": "boolean"}, ["0"], False),
        ({"type": "boolean"}, ["yes"], "yes"),
        ({"type": "string"}, ["7"], "7"),
        ({"type": ["string", "integer"]}, ["7"], "7"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["7"], 7),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["null"], None),
        ({"type": "object"}, ['{"a": 1}'], {"a": 1}),
        ({"type": "array", "items": {"type": "integer"}}, ["1", "2"], [1, 2]),
        ({"type": "array"}, ["1"], ["1"]),
        ({}, ["7"], "7"),
        (None, ["6", "7"], "7"),
    ],
)
def test_texts_become_what_the_schema_says(schema: Any, texts: list[str], value: Any) -> None:
    assert from_texts(schema, texts) == value


# ---------------------------------------------------------------------------------------- checks that may take for ever

DEEP = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}}
TREE = {"$defs": {"t": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/t"}}]}}, "$ref": "#/$defs/t"}
CHEAP = {
    "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"items": {"$ref": "#/$defs/b"}}},
    "$defs": {"b": {"anyOf": [{"enum": [1, 2]}, {"const": "x"}]}},
}


@pytest.mark.parametrize(
    ("schema", "value", "cheap"),
    [
        (CHEAP, {"a": "x", "b": [1, "x"]}, True),
        (CHEAP, {"b": [1] * 100_000}, False),
        (CHEAP, {"a": "x" * 100_000}, False),
        ({"items": {"enum": list(range(50_000))}}, [1] * 100, False),
        ({"pattern": "^(a+)+$"}, "a", False),
        ({"propertyNames": {"pattern": "^(a+)+$"}}, {"a": 1}, False),
        ({"patternProperties": {"^(a+)+$": {}}}, {"a": 1}, False),
        ({"uniqueItems": True}, [1], False),
        ({"unevaluatedProperties": False}, {}, False),
        (DEEP | {"$ref": "#/$defs/d0"}, {}, False),
        (TREE, [], False),
        ({"$ref": "#"}, [], False),
        ({"$defs": {"a": {"$anchor": "a"}}, "$ref": "#a"}, [], False),
    ],
)
def test_a_check_is_cheap_or_it_is_not(schema: dict[str, Any], value: object, cheap: bool) -> None:
    assert Checker(schema).is_cheap_for(value) is cheap


def test_a_schema_without_measure_is_refused() -> None:
    with pytest.raises(ValueError, match=str(MAX_SCHEMA)):
        Checker({"description": "x" * MAX_SCHEMA})


@pytest.fixture
async def checks() -> AsyncIterator[Checks]:
    made = Checks(0.5)
    yield made
    await made.close()


PAIRS = [[{"a": [number, "b"]}, number] for number in range(30_000)]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "^(a+)+$"}, "a" * 60 + "b"),
        ({"uniqueItems": True}, PAIRS),
        (DEEP | {"$ref": "#/$defs/d0"}, {}),
    ],
)
async def test_a_check_that_takes_too_long_is_ended(checks: Checks, schema: dict[str, Any], value: object) -> None:
    said = await checks.fault(Checker(schema), value, "the arguments")
    assert said == "$: checking the arguments took more than 0.5 s"
    assert await checks.fault(Checker({"pattern": "^a"}), "a", "the arguments") == ""


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"a": {"pattern": "^a"}}, "required": ["b"]}, {"a": "b"}),
        ({"uniqueItems": True}, [1, 1]),
        ({"$ref": "#"}, {}),
        (TREE, [[[None]], "x", {}]),
        ({"pattern": "^é"}, "\ud800"),
        ({"uniqueItems": True}, []),
    ],
)
async def test_a_check_elsewhere_says_what_one_here_does(checks: Checks, schema: Any, value: object) -> None:
    checker = Checker(schema)
    assert not checker.is_cheap_for(value)
    for _ in range(2):
        said = await checks.fault(checker, value, "the arguments")
        assert said == checker.fault(value).encode(errors="backslashreplace").decode()


async def test_a_check_that_nobody_waits_for_any_more_is_ended(checks: Checks) -> None:
    waiting = asyncio.create_task(checks.fault(Checker({"pattern": "^(a+)+$"}), "a" * 60 + "b", "the arguments"))
    while not checks._all:
        await asyncio.sleep(0)
    (helper,) = checks._all
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert helper._process.returncode is not None
    assert not checks._all


async def test_a_process_that_is_killed_is_said_to_have_ended(checks: Checks) -> None:
    checker = Checker({"pattern": "^a"})
    assert await checks.fault(checker, "a", "the arguments") == ""
    (helper,) = checks._all
    helper._process.kill()
    await helper._process.wait()
    said = await checks.fault(checker, "a", "the arguments")
    assert said == "$: checking the arguments failed: the process that did it has ended"
    assert await checks.fault(checker, "a", "the arguments") == ""
