# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments held against schemas: however large they are, and by nothing else than jsonschema's rules."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field

from mcpd.errors import InvalidArgument
from mcpd.servers.checking import checked, is_large, size_of, validator_of
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool
from mcpd.servers.workstation.tools import TOOLS
from mcpd.servers.workstation.workstation import Workstation
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.workstation.call import Call

pytestmark = pytest.mark.process


class Item(Arguments):
    """One of many."""

    text: str = Field("", max_length=10)


class Many(Arguments):
    """Many of them."""

    items: list[Item] = Field(default=[], max_length=5)


class Said(Result):
    """Where it was checked."""

    word: str


class Loud:
    """Counts how often it is looked at."""

    looked = 0

    def __repr__(self) -> str:
        Loud.looked += 1
        return "loud"


async def say(_call: Call, _arguments: Many) -> Answer:
    """Nothing much."""
    return Answer(Said(word="said"))


MANY = Tool("test/many", "", "", Many, Said, say, read_only=True)


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([0] * 100_000, r'items: \[0, 0, .* does not fit {"maxItems": 5}'),
        ([{"text": "x"}] * 100_000, r'items: \[{"text": "x"}, .* does not fit {"maxItems": 5}'),
        ([0, 0], r'items\[0\]: 0 does not fit {"type": "object"}'),
        ([{"text": "x" * 10**7}], r'items\[0\]\.text: "xxx.*x does not fit {"maxLength": 10}'),
        ("x" * 10**7, 'items: "xxx.*x does not fit {"type": "array"}'),
        ({str(number): number for number in range(10**5)}, 'items: {"0": 0, .* does not fit {"type": "array"}'),
        ([{str(number): number for number in range(10**5)}], r"items\[0\]: there is no argument '0'; there are text"),
    ],
)
def test_large_arguments_are_refused_by_the_first_fault(items: object, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        checked(MANY, {"items": items})
    assert len(caught.value.message) < 500


def test_no_message_is_made_of_the_value() -> None:
    Loud.looked = 0
    faults = validator_of({"type": "array", "maxItems": 1, "items": {"type": "object"}}).iter_errors([Loud(), Loud()])
    assert [fault.validator for fault in faults] == ["maxItems", "type", "type"]
    faults = validator_of({"type": "object"}).iter_errors(Loud())
    assert [fault.validator for fault in faults] == ["type"]
    assert Loud.looked == 0


@given(data=st.data())
def test_what_fits_is_what_jsonschema_says(data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(TOOLS))
    leaves = st.none() | st.booleans() | st.integers(-1, 300) | st.text(max_size=3) | st.floats(allow_nan=False)
    values = leaves | st.lists(leaves, max_size=3) | st.dictionaries(st.text(max_size=3), leaves, max_size=2)
    names = st.sampled_from([*tool.input_schema["properties"], "other"])
    arguments: Any = data.draw(st.dictionaries(names, values, max_size=4))
    assert tool.validator.is_valid(arguments) == Draft202012Validator(tool.input_schema).is_valid(arguments)


async def test_large_arguments_are_checked_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    validate = Many.model_validate

    def watched(given: Any) -> Any:
        threads.append(threading.current_thread())
        return validate(given)

    monkeypatch.setattr(Many, "model_validate", watched)
    with Workbench(tmp_path) as bench:
        station = Workstation(bench.settings, [MANY])

        async def jail() -> Any:
            return station.roots.jail

        await station.call("test/many", {"items": [{}]}, jail)
        monkeypatch.setattr("mcpd.servers.checking.MANY", 3)
        await station.call("test/many", {"items": [{}, {}, {}]}, jail)
        await station.close()
    assert [each is threading.main_thread() for each in threads] == [True, False]


def test_what_is_large() -> None:
    assert not is_large({"path": "x" * 1000, "edits": [{"a": [1, 2]}] * 10})
    for large in ("x" * 10**6, ["x" * 1000] * 1000, [0] * 10**5, {"a": [Said(word="x" * 10**6)]}):
        assert is_large(large)
    assert size_of({"a": ["x" * 10**6, Said(word="x" * 10**6)]}) > 2 * 10**6
