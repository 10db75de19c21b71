# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a schema accepts, the call accepts: values made by the schemas of functions are given to these functions."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import math
import sys
import types
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.servers.scripts.calls.arguments import bind
from mcpd.servers.scripts.discover import types as tables
from tests.unit.scripts.discover_parts import HEAD, accepts, schema

IMPORTS = "import fractions, numbers, os, re, types\n"
CLASSES = """
class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"
    NO = None
class Level(enum.IntEnum):
    LOW = enum.auto()
    HIGH = enum.auto()
class Word(enum.StrEnum):
    A = enum.auto()
class Pairs(enum.Enum):
    A = (1, 2)
    B = (3, 4)
Made = enum.Enum("Made", "A B")
@dataclass
class Point:
    x: int
    y: float = 0.5
    tags: set[str] = field(default_factory=set)
    norm: float = field(init=False, default=0)
@dataclass
class Scaled(Point):
    scale: InitVar[int] = 3
    unit: InitVar[Optional[datetime.date]] = None
    y: float = field(init=False, default=1)
    _: KW_ONLY
    label: str
    def __post_init__(self, scale, unit): self.norm = scale
@dataclass
class Needs:
    part: InitVar[Color]
    rest: InitVar[list[int]]
    def __post_init__(self, part, rest): assert isinstance(part, Color)
@dataclass(frozen=True)
class Own:
    a: str
    def __init__(self, number: int, *, day: Optional[datetime.date] = None):
        object.__setattr__(self, 'a', str(number))
class Heir(Own):
    pass
@dataclass
class Node:
    value: Color
    children: list["Node"] = field(default_factory=list)
    other: Optional["Node"] = None
class Film(TypedDict):
    name: str
class Part(Film, total=False):
    year: datetime.date
    points: list[Point]
class Place(NamedTuple):
    x: int
    at: Optional[Point] = None
class Model(BaseModel):
    n: int = Field(ge=1, le=9)
    text: str = Field("x", alias="txt", max_length=3)
    days: list[datetime.date] = Field(default_factory=list)
    color: Optional[Color] = None
    inner: Optional["Model"] = None
class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int
    _private: int = 3
class Many(RootModel[list[int]]): ...
@pydantic.dataclasses.dataclass
class Checked:
    n: int
    s: str = "x"
TD = TypedDict("TD", {"a": int, "b": NotRequired[str]})
NT = NamedTuple("NT", [("x", int), ("y", str)])
CN = collections.namedtuple("CN", "x y")
UserId = NewType("UserId", int)
Bound = TypeVar("Bound", bound=int)
class Text2(str): ...
class Numbers(list[int]): ...
"""
NAMES = sorted(
    tables.words(
        "Color Mixed Level Word Pairs Made Point Scaled Needs Own Heir Node Film Part Place Model Closed Many Checked "
        "TD NT CN UserId Bound Text2 Numbers"
    )
)

# ------------------------------------------------------------------------------------- values for a schema

NUMBERS = st.integers(-(10**9), 10**9)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
MOMENTS = st.datetimes(timezones=st.just(dt.UTC)).map(dt.datetime.isoformat)
FORMATS: dict[str, st.SearchStrategy[str]] = {
    "date": st.dates().map(dt.date.isoformat),
    "date-time": MOMENTS,
    "time": st.times().map(dt.time.isoformat),
    "uuid": st.uuids().map(str),
    "uri": st.just("https://example.org/x"),
    "email": st.just("a@example.org"),
    "regex": st.just("^a+$"),
    "ipv4": st.ip_addresses(v=4).map(str),
    "ipv6": st.ip_addresses(v=6).map(str),
    "ipv4network": st.ip_addresses(v=4).map(lambda address: f"{address}/32"),
    "ipv6network": st.ip_addresses(v=6).map(lambda address: str(ipaddress.IPv6Network(address))),
    "ipv4interface": st.ip_addresses(v=4).map(lambda address: f"{address}/8"),
    "ipv6interface": st.ip_addresses(v=6).map(lambda address: f"{address}/64"),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False).map(str),
}


def _identity(value: object) -> str:
    """One text for all that JSON Schema takes for one value: 1 and 1.0, 0 and -0.0."""
    return json.dumps(json.loads(json.dumps(value), parse_int=_number, parse_float=_number))


def _number(digits: str) -> float:
    return float(digits) + 0


class Values:
    """Strategies for what the schemas of one function accept."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self.definitions = {f"#/$defs/{name}": self._later(part) for name, part in definitions.items()}

    def _later(self, part: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.deferred(lambda: self.of(part))

    def of(self, part: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "$ref" in part:
            return self.definitions[part["$ref"]]
        if "const" in part or "enum" in part:
            return st.sampled_from(part["enum"] if "enum" in part else [part["const"]])
        if "anyOf" in part:
            return st.one_of([self.of(branch) for branch in part["anyOf"]])
        kind = part.get("type", "string" if "pattern" in part else "")
        return getattr(self, f"_{kind}")(part) if kind else JSON

    def _null(self, _part: dict[str, Any]) -> st.SearchStrategy[None]:
        return st.none()

    def _boolean(self, _part: dict[str, Any]) -> st.SearchStrategy[bool]:
        return st.booleans()

    def _integer(self, part: dict[str, Any]) -> st.SearchStrategy[float]:
        least = part.get("minimum", math.floor(part.get("exclusiveMinimum", -(10**9) - 1)) + 1)
        most = part.get("maximum", math.ceil(part.get("exclusiveMaximum", 10**9 + 1)) - 1)
        whole = st.integers(least, most)
        return whole | whole.map(float)  # 1.0 is an integer

    def _number(self, part: dict[str, Any]) -> st.SearchStrategy[float]:
        return self._integer(part) | st.floats(
            part.get("minimum", part.get("exclusiveMinimum", -1e9)),
            part.get("maximum", part.get("exclusiveMaximum", 1e9)),
            exclude_min="exclusiveMinimum" in part,
            exclude_max="exclusiveMaximum" in part,
        )

    def _string(self, part: dict[str, Any]) -> st.SearchStrategy[str]:
        if "format" in part:
            return FORMATS[part["format"]]
        if "pattern" in part:
            return st.from_regex(part["pattern"]).filter(lambda text: len(text) < 1000)
        if "contentEncoding" in part:
            return st.sampled_from(["", "AAE=", "YWJj"])
        return st.text(min_size=part.get("minLength", 0), max_size=part.get("maxLength", 8))

    def _array(self, part: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
        if "prefixItems" in part:
            return st.tuples(*map(self.of, part["prefixItems"])).map(list)
        least, most = part.get("minItems", 0), part.get("maxItems", 3)
        if not part.get("uniqueItems"):
            return st.lists(self.of(part.get("items", {})), min_size=least, max_size=most)
        items = self.of(part["items"]) if part.get("items") else NUMBERS
        return st.lists(items, min_size=least, max_size=most, unique_by=_identity)

    def _object(self, part: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        required = part.get("required", [])
        known = {name: self.of(child) for name, child in part.get("properties", {}).items()}
        fixed = st.fixed_dictionaries(
            {name: child for name, child in known.items() if name in required},
            optional={name: child for name, child in known.items() if name not in required},
        )
        others = part.get("additionalProperties", True)
        if others is False:
            return fixed
        names = self.of({"type": "string", **part.get("propertyNames", {})}).filter(lambda name: name not in known)
        more = st.dictionaries(names, JSON if others is True else self.of(others), max_size=2)
        return st.tuples(more, fixed).map(lambda two: {**two[0], **two[1]})


# ------------------------------------------------------------------------------------- the functions


def function(source: str) -> Any:
    """The function ``f`` of *source*, which runs as a module."""
    module = types.ModuleType("a_script_of_this_test")
    sys.modules[module.__name__] = module  # dataclasses and pydantic look their module up
    exec(compile(source, "x.py", "exec"), module.__dict__)
    return module.__dict__["f"]


@lru_cache(maxsize=1)
def made(source: str) -> tuple[dict[str, Any], st.SearchStrategy[Any], Any]:
    """The schema of the function ``f`` of *source*, the values that it accepts, and the function."""
    found = schema(source)
    return found, Values(found.get("$defs", {})).of(found), function(HEAD + source)


def check(parameters: str, data: st.DataObject, before: str = "") -> None:
    """Draw arguments by the schema of a function with *parameters*, and bind them to it."""
    found, strategy, called = made(f"{IMPORTS}{before}\ndef f({parameters}): ...\n")
    arguments = data.draw(strategy, "arguments")
    assert accepts(found, arguments)
    bind(called, arguments, [], {})


ALONE = [
    *sorted(tables.PLAIN.keys() - {"os.PathLike"}),  # abstract, so that nothing can be made of it
    *(f"{name}[int]" for name in sorted(tables.SEQUENCES - {"pydantic.conlist"})),
    *(f"{name}[int]" for name in sorted(tables.SETS - {"pydantic.conset", "pydantic.confrozenset"})),
    *(f"{name}[int, ...]" for name in sorted(tables.TUPLES)),
    *(f"{name}[str, int]" for name in sorted(tables.MAPPINGS)),
    *(f"{name}[str]" for name in sorted(tables.COUNTERS)),
    *(f"dict[{key}, int]" for key in ("str", "int", "float", "bool", "Any", "U", "datetime.date", "Literal['a', 'b']")),
    *(f"dict[{key}, Any]" for key in ("Color", "Word", "Level", "Mixed", "Pairs", "pathlib.Path", "decimal.Decimal")),
    *sorted((tables.SEQUENCES | tables.SETS | tables.TUPLES | tables.MAPPINGS | tables.COUNTERS) - tables.KNOWN),
    *("list", "set", "frozenset", "tuple", "dict", "collections.deque", "collections.Counter", "Sequence", "Mapping"),
    *("tuple[()]", "tuple[int, str]"),
    *("conlist(int, min_length=1)", "pydantic.conset(int, max_length=2)", "pydantic.confrozenset(int)"),
    *("conint(ge=1)", "pydantic.confloat(gt=0.5)", "pydantic.constr(min_length=2, max_length=3)"),
    *("pydantic.conbytes(max_length=3)", "pydantic.condecimal(ge=1)"),
    *("Any", "object", "type[int]", "Callable[[int], str]", "complex", "range"),
    *("Literal['a', 1, None, True]", "Literal[1, True]", "Literal[Color.RED]", "Literal[Literal['a'], 'b']"),
    *("Optional[datetime.date]", "Union[int, str, None]", "int | None", "Union[float, list[bytes]]"),
    *("Annotated[int, Field(ge=1, lt=9)]", "Annotated[str, Field(pattern='^a+$')]", "Annotated[Color, 'remark']"),
    *("Annotated[list[Annotated[float, at.Ge(0)]], at.Len(1, 2)]", "Final[int]", "'list[Point]'"),
    *NAMES,
]


@pytest.mark.parametrize("annotation", ALONE)
@given(data=st.data())
def test_T11_6_what_the_schema_of_a_type_accepts_is_converted(annotation: str, data: st.DataObject) -> None:
    check(f"x: {annotation}", data, CLASSES)


HASHED = ["int", "str", "float", "bool", "bytes", "Color", "Level", "datetime.date", "U", "Own", "Literal['a', 2]"]
LEAVES = st.sampled_from(
    [*HASHED, "None", "Any", "decimal.Decimal", "pathlib.Path", "datetime.timedelta", "ipaddress.IPv4Address", *NAMES]
)


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    keys = st.sampled_from(["str", "int", "bool", "Color", "U"])
    return st.one_of(
        inner.map(lambda item: f"list[{item}]"),
        inner.map(lambda item: f"Sequence[{item}]"),
        inner.map(lambda item: f"Optional[{item}]"),
        inner.map(lambda item: f"tuple[{item}, ...]"),
        inner.map(lambda item: f"Annotated[{item}, 'remark']"),
        st.sampled_from(HASHED).map(lambda item: f"set[{item}]"),
        st.tuples(keys, inner).map(lambda two: f"dict[{two[0]}, {two[1]}]"),
        st.tuples(inner, inner).map(lambda two: f"tuple[{two[0]}, {two[1]}]"),
        st.tuples(inner, inner).map(lambda two: f"Union[{two[0]}, {two[1]}]"),
    )


@given(st.recursive(LEAVES, _wider, max_leaves=5), st.data())
def test_T11_6_what_the_schema_of_nested_types_accepts_is_converted(annotation: str, data: st.DataObject) -> None:
    check(f"x: {annotation}", data, CLASSES)


FIELDS = st.recursive(LEAVES, _wider, max_leaves=3)


@given(
    st.lists(st.tuples(FIELDS, st.sampled_from(["", " = None", " = field(init=False)", "InitVar"])), max_size=4),
    st.data(),
)
def test_T11_6_what_the_schema_of_a_dataclass_accepts_is_converted(
    fields: list[tuple[str, str]], data: st.DataObject
) -> None:
    lines = [
        f"    f{number}: InitVar[{hint}]" if rest == "InitVar" else f"    f{number}: {hint}{rest.replace('None', '3')}"
        for number, (hint, rest) in enumerate(fields)
    ]
    source = "\n".join(["@dataclass(kw_only=True)", "class It:", *lines, "    def __post_init__(self, *given): ..."])
    check("x: It", data, f"{CLASSES}{source}\n")


@pytest.mark.parametrize(
    "parameters",
    [
        "a: int, /, b: str, *c: datetime.date, d: Color, e: bytes = b'', **f: float",
        "x: Film, **more: Unpack[Film]",
        "*x: Point, **more: Point",
        "x, y=3, *, context, z: Optional[Model] = None",
        "x: Optional[datetime.date] = None",
        "",
    ],
)
@given(data=st.data())
def test_T11_6_what_the_schema_of_a_function_accepts_is_bound(parameters: str, data: st.DataObject) -> None:
    check(parameters, data, CLASSES)
