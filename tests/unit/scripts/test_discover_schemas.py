# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the schemas of functions accept and refuse, and how large they become."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.servers.scripts.discover import python
from tests.unit.scripts.discover_parts import HEAD, accepts, schema

LEAVES = {
    "int": st.integers(),
    "str": st.text(max_size=5),
    "bool": st.booleans(),
    "None": st.none(),
    "Literal['a', 'b']": st.sampled_from(["a", "b"]),
    "Color": st.sampled_from(["r", "g"]),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "Point": st.fixed_dictionaries({"x": st.integers()}, optional={"y": st.integers()}),
}
TYPES = "class Color(enum.Enum):\n    R = 'r'\n    G = 'g'\n@dataclass\nclass Point:\n    x: int\n    y: int = 0\n"

Case = tuple[str, st.SearchStrategy[Any]]


def _wider(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    return st.one_of(
        inner.map(lambda case: (f"list[{case[0]}]", st.lists(case[1], max_size=3))),
        inner.map(lambda case: (f"dict[str, {case[0]}]", st.dictionaries(st.text(max_size=3), case[1], max_size=3))),
        inner.map(lambda case: (f"Optional[{case[0]}]", case[1] | st.none())),
        st.tuples(inner, inner).map(
            lambda two: (f"tuple[{two[0][0]}, {two[1][0]}]", st.tuples(two[0][1], two[1][1]).map(list))
        ),
        st.tuples(inner, inner).map(lambda two: (f"Union[{two[0][0]}, {two[1][0]}]", two[0][1] | two[1][1])),
        inner.map(lambda case: (repr(case[0]), case[1])),
    )


CASES = st.recursive(st.sampled_from(sorted(LEAVES.items())), _wider, max_leaves=6)


@given(st.lists(st.tuples(CASES, st.booleans(), st.sampled_from(["", "*, "])), min_size=1, max_size=4), st.data())
def test_T11_6_generated_functions_accept_what_they_take(
    parameters: list[tuple[Case, bool, str]],
    data: st.DataObject,
) -> None:
    names = [f"p{number}" for number in range(len(parameters))]
    text = ", ".join(
        f"{name}: {case[0]}{' = object()' if optional else ''}"
        for name, (case, optional, _) in zip(names, parameters, strict=True)
    )
    found = schema(f"{TYPES}async def f(*, {text}): ...")
    required = {name for name, (_, optional, _) in zip(names, parameters, strict=True) if not optional}
    assert {*found.get("required", [])} == required
    arguments = {name: data.draw(case[1], name) for name, (case, _, _) in zip(names, parameters, strict=True)}
    assert accepts(found, arguments)
    assert accepts(found, {name: value for name, value in arguments.items() if name in required})
    assert not accepts(found, {**arguments, "unknown": 1})
    for name in required:
        assert not accepts(found, {key: value for key, value in arguments.items() if key != name})
    for name in names:
        assert not accepts(found, {**arguments, name: {"no": ["such", object]}}) or "dict" in found["properties"][name]


WRONG = [
    ("int", ["1", 1.5, True, None, [], {}]),
    ("str", [1, None, []]),
    ("bool", [0, "true", None]),
    ("None", [0, "", False]),
    ("list[int]", [1, ["a"], [None], {}]),
    ("dict[str, int]", [[], {"a": "b"}]),
    ("tuple[int, str]", [[1], [1, "a", 2], ["a", 1]]),
    ("set[int]", [[1, 1]]),
    ("Literal['a', 1]", ["b", 2, True, None]),
    ("Color", ["R", "x", None]),
    ("Point", [{}, {"x": "1"}, {"x": 1, "z": 2}, [1]]),
    ("Optional[int]", ["a", 1.5]),
    ("Union[int, list[str]]", ["a", [1]]),
]


@pytest.mark.parametrize(("annotation", "values"), WRONG)
def test_T11_6_schemas_refuse_what_does_not_fit(annotation: str, values: list[Any]) -> None:
    found = schema(f"{TYPES}def f(x: {annotation}): ...")
    assert [value for value in values if accepts(found, {"x": value})] == []


# ------------------------------------------------------------------------------------- size

LONG = f"'{'x' * 4000}', "
HOSTILE = {
    "functions": "\n".join(
        f"def f{n}(a: int, b: list[str] = [], *, c: dict[str, int] | None = None):\n    'Text.'" for n in range(10_000)
    ),
    "nested": "def f(x: " + "list[" * 150 + "int" + "]" * 150 + "): ...",
    "nested strings": "X0 = int\n"
    + "".join(f"X{n} = 'list[X{n - 1}]'\n" for n in range(1, 5000))
    + "def f(x: X4999): ...",
    "doubling": "X0 = int\n"
    + "".join(f"X{n} = tuple[X{n - 1}, X{n - 1}]\n" for n in range(1, 60))
    + "def f(x: X31): ...",
    "doubling unions": "X0 = int\n"
    + "".join(f"X{n} = Union[list[X{n - 1}], dict[str, X{n - 1}]]\n" for n in range(1, 60))
    + "def f(x: X25): ...",
    "long union": "def f(x: " + "|".join(f"A{n}" for n in range(900)) + "): ...",
    "large union": "X = Union["
    + ",".join(f"Literal['{n}']" for n in range(40_000))
    + "]\n"
    + "".join(f"def f{n}(x: X): ...\n" for n in range(5_000)),
    "large literal": "X = Literal["
    + ",".join(f"'{n}'" for n in range(80_000))
    + "]\n"
    + "".join(f"def f{n}(x: X, y: X): ...\n" for n in range(5_000)),
    "large enum": "class E(enum.Enum):\n"
    + "".join(f"    A{n} = {n}\n" for n in range(40_000))
    + "".join(f"def f{n}(x: E, y: E): ...\n" for n in range(5_000)),
    "large class": "@dataclass\nclass C:\n"
    + "".join(f"    a{n}: int = {n}\n" for n in range(20_000))
    + "".join(f"def f{n}(x: C, y: C): ...\n" for n in range(5_000)),
    "many classes": "".join(f"@dataclass\nclass C{n}:\n    a: Optional['C{n + 1}'] = None\n" for n in range(5_000))
    + "".join(f"def f{n}(x: C{n}): ...\n" for n in range(5_000)),
    "long lineage": "".join(f"class C{n}(C{n - 1}):\n    a{n}: int\n" for n in range(5_000)) + "def f(x: C4999): ...",
    "large docstring": "@dataclass\nclass C:\n    '''"
    + "x\n\n    Args:\n        a (int): b" * 20_000
    + "'''\n"
    + "    a: int\n"
    + "".join(f"def f{n}(x: C): ...\n" for n in range(5_000)),
    "hostile docstring": "def f(a):\n    '''F.\n\n    Args:\n" + ("        " + "(" * 900 + ": x\n") * 1000 + "    '''",
    "hostile docstrings": "".join(
        f"def f{n}(a):\n    '''F.\n\n    Args:\n        " + "(" * 900 + ": x\n    '''\n" for n in range(1000)
    ),
    "large string": "X = '" + " " * 500_000 + "int'\n" + "".join(f"def f{n}(x: X, y: X): ...\n" for n in range(5_000)),
    "large default": "Y = [" + "0, " * 200_000 + "]\n" + "".join(f"def f{n}(x=Y): ...\n" for n in range(5_000)),
    "field": "X = Annotated[int, Field("
    + ", ".join(f"a{n}={n}" for n in range(50_000))
    + ")]\n"
    + "".join(f"def f{n}(x: X, y: X): ...\n" for n in range(5_000)),
    "constants in defaults": f"Y = [{LONG * 100}]\n"
    + "".join(f"def f{n}(x=[[{'Y, ' * 1_000}]]): ...\n" for n in range(200)),
    "constants in fields": "X = Annotated[int, Field(examples=["
    + ("[" + "1," * 4000 + "],") * 100
    + "])]\n"
    + "".join(f"def f{n}(x: X, y: X): ...\n" for n in range(2_000)),
    "constants in classes": "@dataclass\nclass C:\n    a: Annotated[int, Field(examples=["
    + ("[" + "1," * 4000 + "],") * 100
    + "])]\n"
    + "".join(f"def f{n}(x: C): ...\n" for n in range(2_000)),
    "many bases": "class C("
    + "b, " * 60_000
    + "): ...\n"
    + "".join(f"def f{n}({', '.join(f'a{m}: C' for m in range(100))}): ...\n" for n in range(300)),
    "many decorators": "@d\n" * 50_000
    + "class C: ...\n"
    + "".join(f"class C{n}(C): ...\n" for n in range(6_000))
    + "".join(f"def f{n}({', '.join(f'a{m}: C{n * 12 + m}' for m in range(12))}): ...\n" for n in range(500)),
    "many stars": "".join(f"from m{n} import *\n" for n in range(15_000))
    + "".join(f"def f{n}({', '.join(f'a{m}: C' for m in range(100))}): ...\n" for n in range(200)),
    "many remarks": "X = Annotated[Union["
    + ", ".join(f"Annotated[int, Field(ge={n})]" for n in range(600))
    + "], "
    + "Field(ge=1), " * 8_000
    + "]\n"
    + "".join(f"def f{n}(x: X): ...\n" for n in range(400)),
    "automatic members": "from enum import auto as a\nclass E(enum.Enum):\n"
    + "".join(f" A{n}=a()\n" for n in range(40_000))
    + "def f(x: E): ...\n",
    "many parameters": f"def f({', '.join(f'a{n}: int' for n in range(2_500))}): ...",
    "functions on functions": "\n".join(f"def f{n}(a: int): ..." for n in range(40_000)),
    "elif": "if a: pass\n" + "".join(f"elif a{n}:\n    def f{n}(): ...\n" for n in range(200)),
    "attributes": "def f(x: " + ".".join("a" * 300) + "): ...",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sizes_are_bounded(name: str) -> None:
    source = HEAD + HOSTILE[name]
    assert len(source) < 1_300_000
    found, _ = python.read(source, "x.py")
    assert found
    for tool in {tool.name: tool for tool in [found[0], found[-1]]}.values():
        Draft202012Validator.check_schema(tool.input_schema)
    sizes = [len(json.dumps(tool.input_schema)) for tool in found]
    assert max(sizes) < 3 * len(source) + 400_000
    assert sum(sizes) < 3 * len(source) + 6_000_000


def test_keys_that_are_too_many_to_be_listed_are_taken() -> None:
    keys = "".join(f"    a{n}: int\n" for n in range(20_000))
    found = schema(f"class Keys(TypedDict):\n{keys}def f(**others: Unpack[Keys]): ...")
    assert accepts(found, {"a1": 1})
