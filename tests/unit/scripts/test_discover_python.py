# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tools of Python files are found by reading: which functions, what of their docstrings, and what breaks it."""

from __future__ import annotations

import gc
import textwrap
from typing import TYPE_CHECKING, TypeVar

import pytest
from jsonschema import Draft202012Validator

from mcpd.errors import InvalidManifest
from mcpd.servers.scripts.discover import python
from mcpd.servers.scripts.tool import Tool

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


def tools(source: str) -> dict[str, Tool]:
    found, functions = python.read(textwrap.dedent(source), "x.py")
    assert {tool.name for tool in found} <= functions
    for tool in found:
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.function == tool.name
        assert tool.output_schema is None
    assert len({tool.name for tool in found}) == len(found)
    return {tool.name: tool for tool in found}


def test_T11_1_functions_of_a_python_file_are_its_tools() -> None:
    found = tools('''
        def greet(name: str) -> str:
            """Greets somebody."""
            return f"Hello {name}"
    ''')
    assert found == {
        "greet": Tool(
            "greet",
            "Greets somebody.",
            {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
                "additionalProperties": False,
            },
            function="greet",
        )
    }


def test_T11_3_all_public_functions_are_found_in_their_order() -> None:
    found = tools("""
        import os, sys
        from functools import cache
        def main(context=None): ...
        async def second(): ...
        @cache
        def third(): ...
        if sys.version_info >= (3, 12):
            def fourth(new): ...
        else:
            def fourth(old): ...
        try:
            import fast
        except ImportError:
            def fifth(): ...
        else:
            def sixth(): ...
        with open(os.devnull):
            def seventh(): ...
        class Not:
            def method(self): ...
        def outer():
            def inner(): ...
        second = cache(second)
    """)
    assert list(found) == ["main", "second", "third", "fourth", "fifth", "sixth", "seventh", "outer"]
    assert list(found["fourth"].input_schema["properties"]) == ["old"], "the last definition wins"


@pytest.mark.parametrize(
    "source",
    [
        "import typing\nif typing.TYPE_CHECKING:\n    def gone(): ...",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    def gone(): ...",
        "if __name__ == '__main__':\n    def gone(): ...",
        "if '__main__' == __name__:\n    def gone(): ...",
        "def gone(): ...\ndel gone",
        "def gone(): ...\nclass gone: ...",
        "def gone(): ...\ngone = 1",
        "def gone(): ...\ngone, other = 1, 2",
        "def gone(): ...\nfrom os import gone",
        "if 1:\n    pass\nelse:\n    def gone(): ...",
        "if True: pass\nelif x:\n    def gone(): ...",
        "if not 1:\n    def gone(): ...",
        "while 0:\n    def gone(): ...",
        "if not not TYPE_CHECKING:\n    def gone(): ...",
        "if not TYPE_CHECKING:\n    pass\nelse:\n    def gone(): ...",
        "if '':\n    def gone(): ...",
        "@property\ndef gone(self): ...",
        "@classmethod\ndef gone(cls): ...",
        "@staticmethod\ndef gone(): ...",
        "@functools.cached_property\ndef gone(self): ...",
        "def gone(): ...\n@property\ndef gone(self): ...",
        f"def {'g' * 200}(): ...",
    ],
)
def test_what_is_no_function_in_the_end_is_no_tool(source: str) -> None:
    assert list(tools(source + "\ndef stays(): ...")) == ["stays"]


@pytest.mark.parametrize("condition", ["True", "1", "not 0", "'x'", "not TYPE_CHECKING", "not not 1"])
def test_of_a_condition_that_always_holds_one_branch_counts(condition: str) -> None:
    source = (
        f"if {condition}:\n    def f(kept): ...\nelse:\n    def f(other): ...\n    def g(): ...\n    def h(): ...\n"
    )
    found = tools(f"def g(outer): ...\n{source}")
    assert {name: list(tool.input_schema["properties"]) for name, tool in found.items()} == {
        "g": ["outer"],
        "f": ["kept"],
    }


def test_what_type_checkers_see_hides_nothing_that_is_run() -> None:
    found = tools("""
        def f(x: "A", y: "B"): ...
        A = int
        if TYPE_CHECKING:
            A = str
            B = float
            def f(other): ...
    """)
    assert found["f"].input_schema["properties"] == {"x": {"type": "integer"}, "y": {"type": "number"}}


def test_other_branches_of_a_skipped_block_count() -> None:
    found = tools("""
        if TYPE_CHECKING:
            pass
        else:
            def one(): ...
        if __name__ == "__main__":
            pass
        elif x:
            def two(): ...
        if __name__ != "__main__":
            def three(): ...
    """)
    assert list(found) == ["one", "two", "three"]


def test_T11_4_private_functions_are_skipped() -> None:
    source = "def _private(): ...\ndef __dunder__(): ...\ndef public(): ..."
    assert list(tools(source)) == ["public"]
    assert list(tools(source + "\n__all__ = ['_private', 'public']")) == ["public"]


@pytest.mark.parametrize(
    ("exported", "names"),
    [
        ("__all__ = ['b']", ["b"]),
        ("__all__: list[str] = ['b']", ["b"]),
        ("__all__ = ('a',)\n__all__ += ['b']", ["a", "b"]),
        ("__all__ = []", []),
        ("__all__ = ['b']\n__all__ = ['a']", ["a"]),
        ("__all__ = sorted(x)", ["a", "b"]),
        ("__all__ = ['b', *x]", ["a", "b"]),
        ("__all__ = ['b']\n__all__ += x", ["a", "b"]),
    ],
)
def test_a_literal_all_chooses(exported: str, names: list[str]) -> None:
    source = f"def a(): ...\ndef b(): ...\n{exported}"
    assert list(tools(source)) == names
    assert python.read(source, "x.py")[1] == {"a", "b"}


def test_what_is_no_python_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidManifest, match=r"^x\.py:2: "):
        python.read("\n(", "x.py")


def test_of_too_many_functions_the_first_thousand_are_tools() -> None:
    found, functions = python.read("".join(f"def f{n}(): ...\n" for n in range(1500)), "x.py")
    assert [tool.name for tool in found] == [f"f{n}" for n in range(1000)]
    assert functions == {f"f{n}" for n in range(1500)}


def test_reading_leaves_the_collection_of_garbage_as_it_was() -> None:
    assert gc.isenabled()
    python.read("def f(): ...", "x.py")
    assert gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(InvalidManifest):
            python.read("(", "x.py")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_T11_5_the_first_line_of_the_docstring_is_the_description() -> None:
    found = tools('''
        def one():
            """One line."""
        def two():
            """

            The first line.
            The second.

            More.
            """
        def three(): ...
        def four():
            "Text: " + "no docstring"
        def five():
            "tiny \\ud800 bit" ; return 1
    ''')
    assert [tool.description for tool in found.values()] == ["One line.", "The first line.", "", "", "tiny ? bit"]


def test_T11_5_long_descriptions_are_cut() -> None:
    description = tools(f'def f():\n    """{"x" * 100_000}"""')["f"].description
    assert len(description) == 1000
    assert description.endswith("x…")


@pytest.mark.parametrize(
    "docstring",
    [
        """
    Adds.

    Args:
        a (int, optional): The first
            number.
        b: The second. Note: it counts.
        *rest: More of them.
        **others: Anything.

    Returns:
        The sum.
    """,
        """
    Adds.

    Parameters
    ----------
    a : int, optional
        The first
        number.
    b
        The second. Note: it counts.
    *rest
        More of them.

    Returns
    -------
    int
        The sum.
    """,
        """
    Adds.

    :param int a: The first
        number.
    :param b: The second. Note: it counts.
    :type b: int
    :param rest: More of them.
    :returns: The sum.
    """,
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_T11_5_parameter_sections_describe_properties(docstring: str) -> None:
    found = tools(f'def add(a, b, c, *rest, **others):\n    """{textwrap.indent(docstring, "    ")}"""')["add"]
    assert found.description == "Adds."
    assert found.input_schema["properties"] == {
        "a": {"description": "The first number."},
        "b": {"description": "The second. Note: it counts."},
        "c": {},
        "rest": {"type": "array", "items": {}, "description": "More of them."},
    }
    assert found.input_schema["additionalProperties"] is True


def test_T11_6_the_schema_matches_the_parameters() -> None:
    schema = tools("""
        def f(a: int, /, b: str = "x", *args: float, c: bool, d: list[int] = [1], e=object(), context, **kw: int): ...
    """)["f"].input_schema
    assert schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "string", "default": "x"},
            "c": {"type": "boolean"},
            "d": {"type": "array", "items": {"type": "integer"}, "default": [1]},
            "e": {},
            "args": {"type": "array", "items": {"type": "number"}},
        },
        "required": ["a", "c"],
        "additionalProperties": {"type": "integer"},
    }


def test_T11_6_a_function_without_parameters_takes_nothing() -> None:
    assert tools("def f(context=None): ...")["f"].input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_T17_a_script_whose_import_writes_a_file_does_not_write_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f'''
        """Does harm. """
        import os, pathlib
        from dataclasses import dataclass
        MARK = pathlib.Path({str(mark)!r})
        MARK.touch()
        def touch(default=MARK.touch(), x: MARK.touch() = 1) -> MARK.touch():
            MARK.touch()
        @(lambda f: MARK.touch() or f)
        @dataclass
        class Model:
            x: "MARK.touch()" = MARK.touch()
        def tool(model: Model, other: "__import__('pathlib').Path({str(mark)!r}).touch()"): ...
    ''')
    )
    before = {*tmp_path.rglob("*")}
    source = python.decode(script.read_bytes(), str(script))
    found, functions = python.read(source, str(script))
    assert [tool.name for tool in found] == ["touch", "tool"]
    assert functions == {"touch", "tool"}
    assert {*tmp_path.rglob("*")} == before, "it wrote something"
    exec(compile(source.replace("@dataclass", "").replace("@(", "#"), "x", "exec"), {})
    assert mark.exists(), "running it would write"


def test_what_python_warns_of_is_no_problem() -> None:
    found = tools('def f(x: "Literal[\'\\\\d\']" = 1 if 1 is 1 else 2):\n    "Text with \\d"\n    assert (1, "always")')
    assert found["f"].description == "Text with \\d"
