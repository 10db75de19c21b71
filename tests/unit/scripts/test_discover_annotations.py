# SPDX-License-Identifier: LGPL-2.1-or-later
"""Annotations become schemas: tables of forms."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.unit.scripts.discover_parts import accepts, of, schema

INTEGER, STRING, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
INTEGERS = {"type": "array", "items": INTEGER}
WHOLE = {"pattern": "^[-+]?[0-9]+$"}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("int", INTEGER),
        ("str", STRING),
        ("float", {"type": "number"}),
        ("bool", {"type": "boolean"}),
        ("bytes", {"type": "string", "contentEncoding": "base64"}),
        ("None", NULL),
        ("'int'", INTEGER),
        ("'\"int\"'", INTEGER),
        ("' int | None '", {"anyOf": [INTEGER, NULL]}),
        ("Any", {}),
        ("typing.Any", {}),
        ("object", {}),
        ("Unknown", {}),
        ("unknown.Type", {}),
        ("3", {}),
        ("f()", {}),
        ("'not python'", {}),
        ("''", {}),
        ("type[int]", {}),
        ("Callable[[int], str]", {}),
        ("list[Unknown]", {"type": "array", "items": {}}),
        ("list", {"type": "array", "items": {}}),
        ("list[int]", INTEGERS),
        ("List[int]", INTEGERS),
        ("t.List[int]", INTEGERS),
        ("typing.Sequence[int]", INTEGERS),
        ("abc.Sequence[int]", INTEGERS),
        ("Iterable[int]", INTEGERS),
        ("collections.deque[int]", INTEGERS),
        ("collections.abc.Iterable[int]", INTEGERS),
        ("list['int']", INTEGERS),
        ("set[int]", {**INTEGERS, "uniqueItems": True}),
        ("frozenset", {"type": "array", "items": {}, "uniqueItems": True}),
        ("AbstractSet[int]", {**INTEGERS, "uniqueItems": True}),
        ("tuple", {"type": "array", "items": {}}),
        ("tuple[int, ...]", INTEGERS),
        ("tuple[()]", {"type": "array", "items": {}, "maxItems": 0}),
        (
            "tuple[int, str]",
            {"type": "array", "prefixItems": [INTEGER, STRING], "items": {}, "minItems": 2, "maxItems": 2},
        ),
        ("Tuple[int]", {"type": "array", "prefixItems": [INTEGER], "items": {}, "minItems": 1, "maxItems": 1}),
        ("tuple[int, *tuple[str, ...]]", {"type": "array", "items": {}}),
        ("dict", {"type": "object"}),
        ("dict[str, int]", {"type": "object", "additionalProperties": INTEGER}),
        ("Mapping[str, Any]", {"type": "object"}),
        ("dict[int, str]", {"type": "object", "propertyNames": WHOLE, "additionalProperties": STRING}),
        ("dict[bool, Any]", {"type": "object", "propertyNames": {"enum": ["true", "false"]}}),
        ("dict[Any, Any]", {"type": "object"}),
        ("dict[U, Any]", {"type": "object", "propertyNames": {"type": "string", "format": "uuid"}}),
        (
            "dict[Literal['a', 'b'], int]",
            {
                "type": "object",
                "additionalProperties": INTEGER,
                "propertyNames": {"type": "string", "enum": ["a", "b"]},
            },
        ),
        ("collections.Counter", {"type": "object", "additionalProperties": INTEGER}),
        ("collections.Counter[str]", {"type": "object", "additionalProperties": INTEGER}),
        ("Counter[str]", {"type": "object", "additionalProperties": INTEGER}),
        ("Counter[int]", {"type": "object", "propertyNames": WHOLE, "additionalProperties": INTEGER}),
        ("Optional[int]", {"anyOf": [INTEGER, NULL]}),
        ("int | None", {"anyOf": [INTEGER, NULL]}),
        ("Union[int, str, None]", {"anyOf": [INTEGER, STRING, NULL]}),
        ("Union[int, Union[str, int], Optional[str]]", {"anyOf": [INTEGER, STRING, NULL]}),
        ("Union[int]", INTEGER),
        ("int | int", INTEGER),
        ("int | Any", {}),
        ("Optional[Any]", {}),
        ("None | int | str", {"anyOf": [NULL, INTEGER, STRING]}),
        ("Literal['a']", {"type": "string", "const": "a"}),
        ("Literal['a', 'b']", {"type": "string", "enum": ["a", "b"]}),
        ("Literal[1, -2]", {"type": "integer", "enum": [1, -2]}),
        ("Literal['a', 1, None, True]", {"enum": ["a", 1, None, True]}),
        ("Literal[1, True]", {"enum": [1, True]}),
        ("Literal[Literal['a'], 'b']", {"type": "string", "enum": ["a", "b"]}),
        ("Literal[b'x']", {}),
        ("Literal[x()]", {}),
        ("datetime.date", {"type": "string", "format": "date"}),
        ("datetime.time", {"type": "string", "format": "time"}),
        ("datetime.datetime", {"type": "string", "format": "date-time"}),
        ("datetime.timedelta", {"type": "number", "description": "Seconds"}),
        ("U", {"type": "string", "format": "uuid"}),
        ("uuid.UUID", {"type": "string", "format": "uuid"}),
        ("decimal.Decimal", {"type": "string", "format": "decimal"}),
        ("pathlib.Path", STRING),
        ("ipaddress.IPv4Address", {"type": "string", "format": "ipv4"}),
        ("Annotated[int, 'How many']", {"type": "integer", "description": "How many"}),
        (
            "Annotated[int, Field(ge=1, lt=9, description='N')]",
            {"type": "integer", "minimum": 1, "exclusiveMaximum": 9, "description": "N"},
        ),
        (
            "Annotated[float, Field(gt=0.5, le=2, multiple_of=0.5)]",
            {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2, "multipleOf": 0.5},
        ),
        (
            "Annotated[str, Field(min_length=1, max_length=3, pattern='^a')]",
            {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^a"},
        ),
        ("Annotated[list[int], Field(max_length=2)]", {**INTEGERS, "maxItems": 2}),
        (
            "Annotated[dict[str, int], Field(min_length=2)]",
            {"type": "object", "additionalProperties": INTEGER, "minProperties": 2},
        ),
        ("Annotated[int | None, Field(ge=1)]", {"anyOf": [{"type": "integer", "minimum": 1}, NULL]}),
        ("Annotated[int, at.Ge(1), at.Interval(lt=4)]", {"type": "integer", "minimum": 1, "exclusiveMaximum": 4}),
        (
            "Annotated[str, at.Len(1, 2), Doc('Text')]",
            {"type": "string", "minLength": 1, "maxLength": 2, "description": "Text"},
        ),
        ("Annotated[str, pydantic.StringConstraints(pattern='x')]", {"type": "string", "pattern": "x"}),
        ("Annotated[int, Field(ge='1', le=True, multiple_of=0, min_length=1)]", INTEGER),
        ("Annotated[str, Field(pattern='(', min_length=-1, max_length=x)]", STRING),
        ("Annotated[Any, Field(min_length=1, ge=1)]", {}),
        ("list[Annotated[int, Field(ge=0)]]", {"type": "array", "items": {"type": "integer", "minimum": 0}}),
        ("conint(ge=1)", {"type": "integer", "minimum": 1}),
        ("conlist(int, min_length=1)", {**INTEGERS, "minItems": 1}),
        ("pydantic.PositiveInt", {"type": "integer", "exclusiveMinimum": 0}),
        ("pydantic.EmailStr", {"type": "string", "format": "email"}),
        ("Final[int]", INTEGER),
    ],
)
def test_T11_6_annotations_become_schemas(annotation: str, expected: dict[str, Any]) -> None:
    assert of(annotation) == expected


@pytest.mark.parametrize(
    ("before", "annotation", "expected"),
    [
        ("X = int", "X", INTEGER),
        ("X: TypeAlias = 'list[int]'", "X", INTEGERS),
        ("X = Y\nY = int", "list[X]", INTEGERS),
        ("UserId = NewType('UserId', int)", "UserId", INTEGER),
        ("T = TypeVar('T', bound=int)", "list[T]", INTEGERS),
        ("T = TypeVar('T', int, str)", "T", {"anyOf": [INTEGER, STRING]}),
        ("T = TypeVar('T')", "T", {}),
        ("X = TypeAliasType('X', int)", "X", INTEGER),
        ("class int: ...", "int", {}),
        ("def int(): ...", "int", {}),
        ("from strange import Optional", "Optional[int]", {}),
        ("class S(str): ...\nclass R(S): ...", "R", STRING),
        ("class L(list[int]): ...", "L", {"type": "array", "items": {}}),
        ("class X: ...", "X", {}),
        ("if TYPE_CHECKING:\n    from datetime import date as D", "D", {"type": "string", "format": "date"}),
        ("try:\n    X = str\nexcept E:\n    X = int", "X", INTEGER),
        ("X = X", "list[X]", None),
        ("X = Optional['X']", "list[X]", None),
        (
            "class E(enum.Enum):\n    A = 'a'\n    B = 'b'\n    _x = 'c'\n    def m(self): ...",
            "E",
            {"type": "string", "enum": ["a", "b"]},
        ),
        (
            "class E(enum.IntEnum):\n    A = enum.auto()\n    B = 5\n    C = enum.auto()\n    D = B",
            "E",
            {"type": "integer", "enum": [1, 5, 6]},
        ),
        (
            "class E(enum.StrEnum):\n    ONE = enum.auto()\n    TWO = enum.auto()",
            "E",
            {"type": "string", "enum": ["one", "two"]},
        ),
        ("class B(str, enum.Enum): ...\nclass E(B):\n    A = 'a'", "E", {"type": "string", "const": "a"}),
        ("class E(enum.Enum):\n    A = (1, 2)\n    B = (3, 4)", "E", {"type": "string", "enum": ["A", "B"]}),
        ("class E(enum.Enum):\n    A = f()\n    B = 'x'", "E", {"type": "string", "enum": ["A", "B"]}),
        ("class E(enum.Enum): ...", "E", {}),
        (
            "class E(enum.Enum):\n    A = 1\n    B = 'x'",
            "dict[E, str]",
            {
                "type": "object",
                "propertyNames": {"type": "string", "enum": ["A", "B"]},
                "additionalProperties": STRING,
            },
        ),
        ("class E(enum.IntFlag):\n    A = 1", "E", INTEGER),
        ("E = enum.Enum('E', 'A B')", "E", {"type": "integer", "enum": [1, 2]}),
        ("E = enum.Enum('E', {'A': 'x', 'B': 'y'})", "E", {"type": "string", "enum": ["x", "y"]}),
        ("E = enum.StrEnum('E', ['A', 'B'])", "E", {"type": "string", "enum": ["a", "b"]}),
        ("class E(enum.Enum):\n    A = 'a'\n    B = 'b'", "Literal[E.A]", {"type": "string", "const": "a"}),
        ("class O:\n    class E(enum.Enum):\n        A = 1", "O.E", {"type": "integer", "const": 1}),
        (
            "TD = TypedDict('TD', {'a': int, 'b': NotRequired[str]})",
            "TD",
            {
                "type": "object",
                "properties": {"a": INTEGER, "b": STRING},
                "required": ["a"],
                "additionalProperties": False,
            },
        ),
        (
            "P = NamedTuple('P', [('x', int)])",
            "P",
            {"type": "object", "properties": {"x": INTEGER}, "required": ["x"], "additionalProperties": False},
        ),
        (
            "P = collections.namedtuple('P', 'x, y')",
            "P",
            {"type": "object", "properties": {"x": {}, "y": {}}, "required": ["x", "y"], "additionalProperties": False},
        ),
    ],
)
def test_T11_6_names_of_the_file_become_schemas(before: str, annotation: str, expected: dict[str, Any] | None) -> None:
    found = of(annotation, before)
    if expected is None:
        assert accepts(found, [None])
    else:
        assert found == expected


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the grammar has `type X = …` since Python 3.12")
def test_T11_6_type_statements_are_aliases() -> None:
    assert of("X", "type X = list[int]") == INTEGERS


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("x: int = 3", {"type": "integer", "default": 3}),
        ("x=3", {"default": 3}),
        ("x: int = -3", {"type": "integer", "default": -3}),
        ("x: int = None", {"anyOf": [INTEGER, NULL], "default": None}),
        ("x=None", {"default": None}),
        ("x: Optional[int] = None", {"anyOf": [INTEGER, NULL], "default": None}),
        ("x: Literal['a', None] = None", {"enum": ["a", None], "default": None}),
        ("x: float = 1e999", {"type": "number"}),
        ("x: int = 0x" + "f" * 500, INTEGER),
        ("x: str = '\\ud800'", STRING),
        ("x: bytes = b'abc'", {"type": "string", "contentEncoding": "base64", "default": "YWJj"}),
        ("x=(1, [2, {'a': None}])", {"default": [1, [2, {"a": None}]]}),
        ("x={1: 2}", {}),
        ("x=f()", {}),
        ("x=1 + 1", {}),
        ("x=...", {}),
        ("x={**y}", {}),
        ("x=[*y]", {}),
        ("x=LIMIT", {"default": 5}),
        ("x=TWICE", {}),
        ("x=OTHER", {}),
        ("x=ADDED", {}),
        ("x=CONVERTED", {}),
        ("x=LOOPED", {}),
        ("x=OPENED", {}),
        ("x=SWAPPED", {}),
        ("x=[LIMIT, SET]", {"default": [5, 6]}),
        ("x: E = E.A", {"type": "string", "enum": ["a", "b"], "default": "a"}),
        ("x=E.B.value", {"default": "b"}),
        ("x=E.C", {}),
        (
            "x: int = Field(3, ge=1, description='X')",
            {"type": "integer", "minimum": 1, "description": "X", "default": 3},
        ),
        ("x: str = '" + "x" * 5000 + "'", STRING),
    ],
)
def test_T11_6_defaults_are_shown_if_they_are_literals(parameter: str, expected: dict[str, Any]) -> None:
    before = """
LIMIT = 5
TWICE = 1
TWICE = 2
OTHER = LIMIT
ADDED = 1
ADDED += 1
CONVERTED = "5"
CONVERTED = int(CONVERTED)
LOOPED = 1
for LOOPED in range(9): ...
OPENED = 1
with open("x") as OPENED: ...
SWAPPED = 1
(SWAPPED, *_), y[LIMIT] = f()
SET = 6
y[SET] += 1
class E(enum.Enum):
    A = 'a'
    B = 'b'
"""
    found = schema(f"{before}def f({parameter}): ...")
    assert found["properties"] == {"x": expected}
    assert "required" not in found


def test_T11_6_rest_parameters() -> None:
    assert schema("def f(*x: int): ...")["properties"] == {"x": INTEGERS}
    assert schema("def f(*x: *tuple[int, str]): ...")["properties"]["x"]["prefixItems"] == [INTEGER, STRING]
    assert schema("def f(**x): ...")["additionalProperties"] is True
    assert schema("def f(**x: int | str): ...")["additionalProperties"] == {"anyOf": [INTEGER, STRING]}
    typed = "class TD(TypedDict, total=False):\n    a: Required[int]\n    b: str\n"
    unpacked = schema(f"{typed}def f(x, **k: Unpack[TD]): ...")
    assert unpacked == {
        "type": "object",
        "properties": {"x": {}, "a": INTEGER, "b": STRING},
        "required": ["x", "a"],
        "additionalProperties": False,
    }


def test_T11_6_descriptions_of_annotations_win_over_docstrings() -> None:
    docstring = '"""F.\n\n    Args:\n        a: no\n        b: yes\n    """'
    found = schema(f'def f(a: Annotated[int, "From the type"], b):\n    {docstring}')
    assert [item["description"] for item in found["properties"].values()] == ["From the type", "yes"]


def test_T11_6_a_default_that_python_does_not_know_leaves_the_argument_required() -> None:
    found = schema(
        "def f(x: Annotated[int, Field(default=4)], y: int = Field(description='Y'), z: int = Field(...)): ..."
    )
    assert found["required"] == ["x", "y", "z"]
    assert found["properties"] == {
        "x": {"type": "integer", "default": 4},
        "y": {"type": "integer", "description": "Y"},
        "z": {"type": "integer"},
    }
