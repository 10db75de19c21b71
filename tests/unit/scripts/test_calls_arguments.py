# SPDX-License-Identifier: LGPL-2.1-or-later
# Scripts write Optional and Union, too:
# ruff: noqa: UP007, UP045
"""JSON arguments become what a function's annotations ask for."""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import math
import pathlib
import typing
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, Union

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.servers.scripts.calls.arguments import BadArgument, bind
from mcpd.servers.scripts.calls.convert import convert

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Line:
    start: Point
    end: Point | None = None


@dataclasses.dataclass
class Scaled:
    size: float = dataclasses.field(init=False)
    base: float
    factor: dataclasses.InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.size = self.base * factor


@dataclasses.dataclass(init=False)
class Own:
    day: dt.date

    def __init__(self, on: dt.date) -> None:
        self.day = on


class Film(TypedDict):
    name: str
    year: NotRequired[dt.date]


class Pair(NamedTuple):
    left: int
    right: Point | None = None


class Model(pydantic.BaseModel):
    n: int


@pydantic.dataclasses.dataclass
class Checked:
    n: int


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("hint", "value", "wanted"),
    [
        (int, 3, 3),
        (int, 3.0, 3),
        (float, 3, 3.0),
        (bool, True, True),
        (bytes, "AAE=", b"\x00\x01"),
        (bytearray, "AAE=", bytearray(b"\x00\x01")),
        (Colour, "red", Colour.RED),
        (Colour, "BLUE", Colour.BLUE),
        (Level, 1, Level.LOW),
        (Right, 3, Right.READ | Right.WRITE),
        (dt.datetime, "2024-02-29T12:00:00Z", dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)),
        (dt.date, "2024-02-29", dt.date(2024, 2, 29)),
        (dt.time, "12:30", dt.time(12, 30)),
        (dt.timedelta, 1.5, dt.timedelta(seconds=1.5)),
        (uuid.UUID, str(uuid.UUID(int=5)), uuid.UUID(int=5)),
        (decimal.Decimal, 0.1, decimal.Decimal("0.1")),
        (decimal.Decimal, "0.10", decimal.Decimal("0.10")),
        (ipaddress.IPv4Address, "127.0.0.1", ipaddress.IPv4Address("127.0.0.1")),
        (pathlib.Path, "/a", pathlib.Path("/a")),
        (list[dt.date], ["2024-02-29"], [dt.date(2024, 2, 29)]),
        (Sequence[int], [1.0], [1]),
        (Iterable[str], ["a"], ["a"]),
        (set[int], [1, 1], {1}),
        (frozenset[int], [1], frozenset({1})),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple, [1, "a"], (1, "a")),
        (collections.deque[int], [1], collections.deque([1])),
        (dict[int, Colour], {"1": "red"}, {1: Colour.RED}),
        (Mapping[str, Point], {"a": {"x": 1}}, {"a": Point(1)}),
        (Optional[dt.date], None, None),
        (Optional[dt.date], "2024-02-29", dt.date(2024, 2, 29)),
        (Union[int, str], "5", "5"),
        (Union[dt.date, str], "no date", "no date"),
        (Union[float, int], 5, 5),
        (int | None, 5, 5),
        (list[int] | Point, {"x": 1}, Point(1)),
        (Literal["a", 1], 1, 1),
        (Annotated[int, "remark"], 5.0, 5),
        (Annotated[Colour | None, "remark"], "red", Colour.RED),
        (UserId, 5, 5),
        (Point, {"x": 1, "tags": ["a"]}, Point(1, 0.5, {"a"})),
        (Line, {"start": {"x": 1}, "end": {"x": 2, "y": 1}}, Line(Point(1), Point(2, 1.0))),
        (Scaled, {"base": 2, "factor": 3.0}, Scaled(2.0, 3)),
        (Scaled, {"base": 2}, Scaled(2.0)),
        (Own, {"on": "2024-02-29"}, Own(dt.date(2024, 2, 29))),
        (collections.Counter[str], {"a": 2.0}, collections.Counter(a=2)),
        (collections.Counter[int], {"1": 2}, collections.Counter({1: 2})),
        (
            dict[bool, dt.date],
            {"true": "2024-02-29", "false": "2024-01-01"},
            {True: dt.date(2024, 2, 29), False: dt.date(2024, 1, 1)},
        ),
        (Film, {"name": "x", "year": "2024-02-29"}, {"name": "x", "year": dt.date(2024, 2, 29)}),
        (Pair, {"left": 1, "right": {"x": 1}}, Pair(1, Point(1))),
        (Pair, [1], Pair(1)),
        (Model, {"n": "5"}, Model(n=5)),
        (list[Model], [{"n": 5}], [Model(n=5)]),
        (Checked, {"n": 5}, Checked(5)),
        (Any, {"x": 1}, {"x": 1}),
        (object, 1, 1),
        (typing.TypeVar("T"), 1, 1),
        (complex, 1, 1),
        (None, None, None),
    ],
)
def test_conversions(hint: Any, value: Any, wanted: Any) -> None:
    found = convert(value, hint, "x")
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, "5", "The argument 'x' has to be a whole number."),
        (int, True, "The argument 'x' has to be a whole number."),
        (int, 1.5, "The argument 'x' has to be a whole number."),
        (float, "5", "The argument 'x' has to be a number."),
        (str, 5, "The argument 'x' has to be text."),
        (bool, 1, "The argument 'x' has to be true or false."),
        (bytes, "é", "The argument 'x' has to be bytes as base64."),
        (list[int], [1, "a"], "The argument 'x[1]' has to be a whole number."),
        (dict[str, int], {"a": None}, "The argument 'x.a' has to be a whole number."),
        (tuple[int, int], [1], "The argument 'x' has to be an array of 2."),
        (Colour, "green", "The argument 'x' has to be one of: red, 2."),
        (Literal["a", "b"], "c", "The argument 'x' has to be one of 'a', 'b'."),
        (Literal[1], True, "The argument 'x' has to be one of 1."),
        (Scaled, {"base": 1, "size": 1}, "The argument 'x' has to be an object without 'size'."),
        (Scaled, {"base": 1, "factor": "2"}, "The argument 'x.factor' has to be a whole number."),
        (collections.Counter[str], {"a": "b"}, "The argument 'x.a' has to be a whole number."),
        (dict[bool, int], {"yes": 1}, "The argument 'x' has to be an object whose members are called true or false."),
        (Point, {}, "The argument 'x' has to be an object with 'x'."),
        (Point, {"x": 1, "z": 1}, "The argument 'x' has to be an object without 'z'."),
        (Line, {"start": {"x": "a"}}, "The argument 'x.start.x' has to be a whole number."),
        (None, 1, "The argument 'x' has to be null."),
        (set[list[int]], [[1]], "The argument 'x' is not what it should be: unhashable type: 'list'"),
    ],
)
def test_what_does_not_fit_is_named(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(BadArgument) as caught:
        convert(value, hint, "x")
    assert str(caught.value) == message


HINTS = st.sampled_from(
    [int, float, str, bool, bytes, list, dict, set[Any], tuple[int, ...], Colour, Level, Right, Point, Line, Film, Pair,
     Scaled, Own, collections.Counter[str], dict[bool, int],
     Model, Checked, dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID, decimal.Decimal, pathlib.Path,
     ipaddress.IPv4Address, Optional[int], Union[int, list[str]], Literal["a"], dict[int, int], Any, None]
)  # fmt: skip


@given(JSON, HINTS)
def test_any_json_for_any_type_converts_or_is_a_bad_argument(value: Any, hint: Any) -> None:
    with suppress(BadArgument):
        convert(value, hint, "argument")


@given(st.lists(st.integers()), st.binary(), st.dictionaries(st.text(), st.integers()), st.text())
def test_what_is_right_already_stays(numbers: list[int], data: bytes, mapping: dict[str, int], text: str) -> None:
    assert convert(numbers, list[int], "x") == numbers
    assert convert(base64.b64encode(data).decode(), bytes, "x") == data
    assert convert(mapping, dict[str, int], "x") == mapping
    assert convert(text, str | None, "x") == text


@given(st.datetimes(timezones=st.just(dt.UTC)), st.uuids(), st.decimals(allow_nan=False))
def test_text_forms_round_trip(moment: dt.datetime, identity: uuid.UUID, number: decimal.Decimal) -> None:
    assert convert(moment.isoformat(), dt.datetime, "x") == moment
    assert convert(str(identity), uuid.UUID, "x") == identity
    assert convert(str(number), decimal.Decimal, "x") == number


def call(function: Any, arguments: dict[str, Any], *positional: Any, **context: Any) -> Any:
    args, kwargs = bind(function, arguments, list(positional), context)
    return function(*args, **kwargs)


def test_every_kind_of_parameter_gets_its_own() -> None:
    def function(a: int, b: dt.date = dt.date.min, /, c: int = 3, *rest: float, d: set[int], **more: dt.date) -> Any:
        return a, b, c, rest, d, more

    day = dt.date(2024, 2, 29)
    assert call(function, {"a": 1, "d": [1]}) == (1, dt.date.min, 3, (), {1}, {})
    assert call(function, {"a": 1, "c": 5, "d": [1]}) == (1, dt.date.min, 5, (), {1}, {})
    given = {"a": 1.0, "b": "2024-02-29", "rest": [1, 2], "d": [], "x": "2024-02-29"}
    assert call(function, given) == (1, day, 3, (1.0, 2.0), set(), {"x": day})


def test_null_is_taken_where_none_is_the_default_and_nowhere_else() -> None:
    def function(a: int = None, *, b: int = 2) -> Any:  # type: ignore[assignment]  # noqa: RUF013 - what scripts have
        return a, b

    assert call(function, {"a": None}) == (None, 2)
    with pytest.raises(BadArgument, match="'b' has to be"):
        call(function, {"b": None})


def test_what_is_missing_or_too_much_is_named() -> None:
    def function(a: int, b: int = 2, *, context: Any = None) -> None: ...

    with pytest.raises(BadArgument, match="The argument 'a' is missing"):
        call(function, {"b": 1})
    with pytest.raises(BadArgument, match="There is no argument 'c'; there are: a, b"):
        call(function, {"a": 1, "c": 1})


def test_context_is_the_servers_alone() -> None:
    def function(context: Any) -> Any:
        return context

    assert call(function, {"context": "forged"}, real=1) == {"real": 1}


def test_positional_arguments_come_first_as_many_as_are_taken() -> None:
    def one(server_name: str) -> Any:
        return server_name

    def two(server_name: str, context: Any) -> Any:
        return server_name, context

    def all_of_them(*args: Any) -> Any:
        return args

    assert call(one, {}, "s", {"x": 1}) == "s"
    assert call(two, {}, "s", {"x": 1}) == ("s", {"x": 1})
    assert call(all_of_them, {}, "s", {"x": 1}) == ("s", {"x": 1})


def test_annotations_that_cannot_be_evaluated_are_left_out() -> None:
    def function(a: NowhereImported, b: set[int]) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return a, b

    function.__annotations__["b"] = "set[int]"
    assert call(function, {"a": [1], "b": [1]}) == ([1], {1})


def test_functions_without_a_signature_take_names() -> None:
    assert call(dict, {"a": 1}) == {"a": 1}
    assert call(Point, {"x": 1.0}) == Point(1)
    assert math.isclose(call(math.fsum, {}, [0.5, 0.5]), 1)
