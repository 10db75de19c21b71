# SPDX-License-Identifier: LGPL-2.1-or-later
"""Classes of a file become definitions, which may refer to themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.scripts.discover_parts import accepts, of, schema

INTEGER, STRING, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
INTEGERS = {"type": "array", "items": INTEGER}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            '''
@dataclass
class C:
    """A thing.

    Attributes:
        a: The a.
    """
    a: int
    b: str = "x"
    """The b."""
    c: list[int] = field(default_factory=list)
    d: float = field(default=1.5, metadata={"description": "The d"})
    e: int = field(init=False)
    f: ClassVar[int] = 3
    _: KW_ONLY
    g: InitVar[bool]
    h: object = field(default_factory=make)
    def method(self): ...
''',
            {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "The a."},
                    "b": {"type": "string", "description": "The b.", "default": "x"},
                    "c": {**INTEGERS, "default": []},
                    "d": {"type": "number", "description": "The d", "default": 1.5},
                    "g": {"type": "boolean"},
                    "h": {},
                },
                "required": ["a", "g"],
                "additionalProperties": False,
                "description": "A thing.",
            },
        ),
        (
            """
@dataclass
class A:
    a: int
    b: int = 1
    c: InitVar[int] = 3
    d: InitVar[Optional[str]] = None
@dataclass
class C(A):
    b: int = field(init=False)
    e: InitVar = 1
""",
            {
                "type": "object",
                "properties": {
                    "a": INTEGER,
                    "c": {"type": "integer", "default": 3},
                    "d": {"anyOf": [STRING, NULL], "default": None},
                    "e": {"default": 1},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        ),
        (
            """
@dataclass
class A:
    '''An A.

    Attributes:
        a: The a.
    '''
    a: str
    b: str = "x"
    def __init__(self, a: int, *, other: int = 3): ...
class C(A):
    '''A C.'''
""",
            {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "The a."},
                    "other": {"type": "integer", "default": 3},
                },
                "required": ["a"],
                "additionalProperties": False,
                "description": "A C.",
            },
        ),
        (
            """
@dataclass
class A:
    a: str
    def __init__(self, other): ...
@dataclass
class C(A):
    b: int
""",
            {
                "type": "object",
                "properties": {"a": STRING, "b": INTEGER},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        ),
        (
            "@dataclass\nclass C:\n    a: int\n    def __init__(self, **more): ...",
            {"type": "object", "properties": {}},
        ),
        (
            """
@dataclass
class A:
    a: int
    b: int = 1
class Plain(A):
    ignored: int
@dataclass(kw_only=True)
class C(Plain):
    b: str
""",
            {
                "type": "object",
                "properties": {"a": INTEGER, "b": STRING},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        ),
        (
            """
class A(TypedDict, total=False):
    a: Required[int]
    b: int
class C(A):
    c: NotRequired[str]
    d: Annotated[Required[int], "D"]
""",
            {
                "type": "object",
                "properties": {"a": INTEGER, "b": INTEGER, "c": STRING, "d": {"type": "integer", "description": "D"}},
                "required": ["a", "d"],
                "additionalProperties": False,
            },
        ),
        (
            """
class C(NamedTuple):
    x: int
    y: int = 0
""",
            {
                "type": "object",
                "properties": {"x": INTEGER, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
        (
            """
class A(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = Field(..., ge=1, description="The a")
    _private: int = 3
class C(A):
    b: str = Field("x", alias="bee", max_length=3)
    c: Optional[int]
    d: list[int] = Field(default_factory=list)
    e: Annotated[int, Field(default=3, le=9)]
    f: int = ...
    model_fields_set: ClassVar[int] = 3
""",
            {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "minimum": 1, "description": "The a"},
                    "bee": {"type": "string", "maxLength": 3, "default": "x"},
                    "c": {"anyOf": [INTEGER, NULL]},
                    "d": {**INTEGERS, "default": []},
                    "e": {"type": "integer", "maximum": 9, "default": 3},
                    "f": INTEGER,
                },
                "required": ["a", "c", "f"],
                "additionalProperties": False,
            },
        ),
        (
            "class C(BaseModel, extra='allow'):\n    a: int",
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
        ),
        (
            "class C(BaseModel):\n    model_config = {'extra': 'forbid', 'title': TITLE}\n    a: int",
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False},
        ),
        (
            "class B(BaseModel, extra='forbid', alias_generator=f): ...\nclass C(B):\n    an_int: int",
            {"type": "object", "properties": {}},
        ),
        (
            "@dataclass\nclass C:\n    a: Annotated[bytes, at.MaxLen(3)]",
            {
                "type": "object",
                "properties": {"a": {"type": "string", "contentEncoding": "base64"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        ),
        ("class C(RootModel[list[int]]): ...", INTEGERS),
        ("class C(RootModel):\n    root: list[int]", INTEGERS),
        (
            "@pydantic.dataclasses.dataclass\nclass C:\n    a: int",
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False},
        ),
    ],
)
def test_T11_6_classes_become_definitions(source: str, expected: dict[str, Any]) -> None:
    assert of("C", source) == {"$ref": "#/$defs/C", "$defs": {"C": expected}}


def test_T11_6_recursive_types_refer_to_themselves() -> None:
    found = schema("""
@dataclass
class Node:
    children: list["Node"] = field(default_factory=list)
    other: Optional["Pair"] = None
@dataclass
class Pair:
    left: Node
Json = Union[dict[str, "Json"], list["Json"], str, None]
def f(node: Node, json: Json): ...
""")
    assert {*found["$defs"]} == {"Node", "Pair", "Json"}
    assert accepts(found, {"node": {"children": [{"children": []}]}, "json": {"a": [None, {"b": "c"}]}})
    assert not accepts(found, {"node": {"children": [{"children": [3]}]}, "json": None})
    assert not accepts(found, {"node": {"other": {"left": 3}}, "json": None})
    assert not accepts(found, {"node": {}, "json": {"a": [3]}})


@pytest.mark.parametrize(
    "source",
    [
        "X = Optional['X']",
        "X = Union['X', int]",
        "X = 'X'",
        "X = Optional['Y']\nY = Optional['X']",
        "X = Union[list['X'], 'Y']\nY = Union[list['Y'], 'X', None]",
        "class X(RootModel['X']): ...",
        "class X(RootModel[Optional['Y']]): ...\nclass Y(RootModel[Optional['X']]): ...",
        "class X(Y): ...\nclass Y(X): ...",
        "class X(X): ...",
        "@dataclass\nclass X(X):\n    a: Optional[X] = None",
        "X = Z[int]\nZ = X[int]",
        "X = NewType('X', 'X')",
        "X = Annotated['X', 'x']",
        "".join(f"class X{n}(RootModel[Optional['X{n + 1}']]): ...\n" for n in range(300)) + "X = X0",
        "".join(f"class X{n}(RootModel[Union[{', '.join(f'X{m}' for m in range(50))}]]): ...\n" for n in range(50))
        + "X = X0",
    ],
)
def test_references_that_lead_nowhere_are_no_trap_for_validators(source: str) -> None:
    found = schema(f"{source}\ndef f(x: X, y: list[X]): ...")
    assert accepts(found, {"x": None, "y": [None]}) or source.startswith("@dataclass")
    accepts(found, {"x": {"a": [1]}, "y": [[[]]]})
