# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of scripts on real processes: what goes in, what comes out, and in which process."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.servers.scripts.calls import Calls, Limits, Outcome, PythonJob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LIMITS = Limits(seconds=20, memory=1 << 30, processes=64, output=1 << 20)
ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def script(
    source: str, path: str = "/nowhere/tool.py", *, workers: int = 0, log: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Calls]:
    kind = "python" if path.endswith(".py") else "shell"
    calls = Calls(path, kind, textwrap.dedent(source), workers=workers, limits=LIMITS, log=log)
    try:
        yield calls
    finally:
        await calls.close()


async def returned(source: str, *, workers: int = 0, **arguments: Any) -> Outcome:
    """What the function ``f`` of *source* returns."""
    async with script(source, workers=workers) as calls:
        return await calls.call(PythonJob("f", arguments))


def text(outcome: Outcome) -> str:
    assert not outcome.error
    return "\n".join(block["text"] for block in outcome.content)


async def test_pydantic_models_in_and_out() -> None:
    source = """
        from pydantic import BaseModel

        class Point(BaseModel):
            x: int
            y: float = 0.5

        def f(point: Point, more: list[Point]) -> Point:
            assert isinstance(point, Point) and isinstance(more[0], Point)
            return Point(x=point.x + 1)
        """
    assert (await returned(source, point={"x": 1}, more=[{"x": 2}])).structured == {"x": 2, "y": 0.5}
    assert "point" in (await returned(source, point={"x": "no"}, more=[])).error


async def test_annotations_that_only_type_checkers_can_read_are_left_out() -> None:
    source = """
        from __future__ import annotations
        import datetime, typing
        from dataclasses import dataclass
        if typing.TYPE_CHECKING:
            from nowhere import Odd

        @dataclass
        class Base:
            odd: Odd
        @dataclass
        class Data(Base):
            on: datetime.date
        class Typed(typing.TypedDict):
            odd: Odd
            on: datetime.date
        class Named(typing.NamedTuple):
            odd: Odd
            on: datetime.date

        def f(odd: Odd, data: Data, typed: Typed, named: Named) -> list:
            return [odd, data.odd, data.on.day, typed["odd"], typed["on"].day, named.odd, named.on.day]
        """
    item = {"odd": 1, "on": "2024-02-29"}
    outcome = await returned(source, odd=1, data=item, typed=item, named=item)
    assert (outcome.value, outcome.error) == ([1, 1, 29, 1, 29, 1, 29], "")


async def test_asynchronous_functions_and_generators() -> None:
    source = """
        import asyncio
        async def one(x):
            await asyncio.sleep(0)
            return x
        async def many():
            for letter in "ab":
                yield letter
        """
    async with script(source) as calls:
        assert (await calls.call(PythonJob("one", {"x": 1}))).value == 1
        assert (await calls.call(PythonJob("many", {}))).value == "ab"


@pytest.mark.parametrize("workers", [0, 2])
async def test_every_call_has_a_fresh_process(workers: int) -> None:
    source = """
        import os
        calls = []
        def f():
            calls.append(1)
            return [len(calls), os.getpid()]
        """
    async with script(source, workers=workers) as calls:
        values = [(await calls.call(PythonJob("f", {}))).value for _ in range(6)]
    assert [value[0] for value in values] == [1] * 6
    assert len({value[1] for value in values}) == 6


async def test_workers_import_the_script_once(tmp_path: Path) -> None:
    source = f"""
        import os
        with open("{tmp_path}/imports", "a") as file:
            print(os.getpid(), file=file)
        imported_by = os.getpid()
        def f():
            return imported_by
        """
    async with script(source, workers=2) as calls:
        importer = 0
        while not importer:  # Until the import ahead is done, a call imports by itself.
            value = (await calls.call(PythonJob("f", {}))).value
            seen = (await calls.call(PythonJob("f", {}))).value
            importer = value if value == seen else 0
        before = (tmp_path / "imports").read_text()
        assert {(await calls.call(PythonJob("f", {}))).value for _ in range(5)} == {importer}
        assert (tmp_path / "imports").read_text() == before


@pytest.mark.parametrize("workers", [0, 3])
async def test_T13_4_many_calls_at_once_get_their_own_answers(workers: int) -> None:
    source = "import time\ndef f(n):\n    time.sleep(n % 7 / 100)\n    print(n)\n    return n"
    async with script(source, workers=workers) as calls:
        outcomes = await asyncio.gather(*(calls.call(PythonJob("f", {"n": n})) for n in range(50)))
    assert [outcome.value for outcome in outcomes] == list(range(50))


async def test_T5_5_exceptions_are_errors_and_the_traceback_is_in_the_log() -> None:
    log: list[str] = []
    async with script("def f():\n    raise ValueError('not that')", log=log.append) as calls:
        assert (await calls.call(PythonJob("f", {}))).error == "not that"
    assert log[0] == "Traceback (most recent call last):"
    assert log[-1] == "ValueError: not that"
    assert any("raise ValueError('not that')" in line for line in log)
    assert not any("mcpd" in line for line in log)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def f(): raise RuntimeError", "RuntimeError"),
        ("def f(): return {}['k']", "KeyError: 'k'"),
        ("def f(): raise SystemExit('bye')", "bye"),
        ("def f(): raise SystemExit(['bye'])", "['bye']"),
        (
            "from mcpd.script import Image\ndef f(): return [Image(b'', 5)]",
            "The result contains an object of the type Image, which is not a content block of MCP.",
        ),
        ("def g(): pass", "/nowhere/tool.py has no function 'f'."),
        ("x =", "/nowhere/tool.py:1: invalid syntax"),
        ("import nothing_of_that_name", "/nowhere/tool.py:1: No module named 'nothing_of_that_name'"),
        ("def f(x): pass", "The argument 'x' is missing."),
        ("def f(): return object()", "The result contains an object of the type object, which JSON cannot represent."),
        (
            "def f():\n    a = []\n    a.append(a)\n    return a",
            "The result contains itself, which JSON cannot represent.",
        ),
    ],
)
async def test_errors_say_what_was_wrong(source: str, error: str) -> None:
    outcome = await returned(source)
    assert (outcome.error, outcome.content) == (error, [])


async def test_a_script_that_cannot_be_imported_says_so_at_each_call() -> None:
    log: list[str] = []
    async with script("raise OSError('no disk')", workers=2, log=log.append) as calls:
        assert [(await calls.call(PythonJob("f", {}))).error for _ in range(3)] == ["no disk"] * 3


async def test_transforms_bring_their_own_code_and_take_what_they_take() -> None:
    source = "def generate_tools(server_name):\n    return [{'name': server_name}]"
    async with script("", path="") as calls:
        job = PythonJob("generate_tools", {}, source, "tools.py", positional=("jq", {"x": 1}))
        assert (await calls.call(job)).value == [{"name": "jq"}]
        broken = PythonJob("generate_tools", {}, "def :", "tools.py")
        assert (await calls.call(broken)).error == "tools.py:1: invalid syntax"


async def test_a_parameter_named_context_is_given_it() -> None:
    async with script("def f(x, context=None): return [x, context]") as calls:
        assert (await calls.call(PythonJob("f", {"x": 1}, context={"a": 1}))).value == [1, {"a": 1}]


async def test_the_script_is_a_module_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7")
    source = """
        import json, sys, os, dataclasses, beside
        @dataclasses.dataclass
        class A:
            x: int
        def f():
            known = sys.modules[__name__].f is f
            return [__name__, __file__, known, sys.argv, beside.VALUE, json.dumps(1), os.path.sep]
        """
    async with script(source, str(tmp_path / "own.py")) as calls:
        path = str(tmp_path / "own.py")
        assert (await calls.call(PythonJob("f", {}))).value == ["own", path, True, [path], 7, "1", "/"]
    async with script(source, str(tmp_path / "json.py")) as calls:
        value = (await calls.call(PythonJob("f", {}))).value
        assert value[0] == "json_script"


async def test_progress_grows_and_reaches_its_end(tmp_path: Path) -> None:
    source = f"""
        from mcpd.script import progress
        import os, time
        def f():
            progress(0.5, 1000, "at\\none half")
            while not os.path.exists("{tmp_path}/heard"):
                time.sleep(0.01)
            for n in range(1000):
                progress(n, 1000)
            progress(3)
            progress(float("nan"))
            progress(1000.5, None, "over")
        """
    heard: list[tuple[float, float | None, str]] = []

    def hear(*step: Any) -> None:
        heard.append(step)
        (tmp_path / "heard").touch()

    async with script(source) as calls:
        assert not (await calls.call(PythonJob("f", {}), None, hear)).error
    steps = [step[0] for step in heard]
    assert steps == sorted(set(steps))
    assert heard[0] == (0.5, 1000, "at one half")
    assert heard[-1] == (1000.5, None, "over")
    assert len(heard) < 200


async def test_nothing_of_the_server_reaches_a_script() -> None:
    source = """
        import os
        def f():
            found = {}
            for fd in range(1024):
                try:
                    found[fd] = os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
                except OSError:
                    pass
            return found
        """
    pipes = {"0": "/dev/null", "1": "pipe", "2": "pipe", "3": "pipe", "4": "pipe"}
    assert (await returned(source)).value == pipes
    assert (await returned(source, workers=1)).value == pipes


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("workers", [0, 2])
async def test_calls_leave_no_descriptors(workers: int) -> None:
    async with script("import time\ndef f(x): time.sleep(x)", workers=workers) as calls:
        await calls.call(PythonJob("f", {"x": 0.2}))
        before = descriptors()
        for _ in range(5):
            await asyncio.gather(*(calls.call(PythonJob("f", {"x": 0})) for _ in range(10)))
            task = asyncio.create_task(calls.call(PythonJob("f", {"x": 1000})))
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.wait([task])
        while descriptors() > before + workers:
            await asyncio.sleep(0.01)  # for ever, if any are left


async def test_the_helper_does_nothing_where_nobody_listens(tmp_path: Path) -> None:
    code = "import sys; from mcpd.script import progress; progress(1, 2, 'x'); print('pathlib' in sys.modules)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}", stdout=-1, cwd=tmp_path
    )
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"False\n")


async def test_without_a_zygote_calls_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "cannot be started: No such file" in (await returned("def f(): pass")).error


async def test_after_close_calls_fail() -> None:
    calls = Calls("/nowhere/a.py", "python", "def f(): pass", limits=LIMITS, log=print)
    await calls.close()
    assert "closing" in (await calls.call(PythonJob("f", {}))).error
