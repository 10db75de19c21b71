# SPDX-License-Identifier: LGPL-2.1-or-later
"""ci_build while it runs and as it ends: what is kept of its output, its time, who cancels it and who is told."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import TimedOut
from mcpd.servers.workstation.ci.tools import BUILD
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from mcpd.servers.workstation.ci.tools import RunResult
    from mcpd.servers.workstation.tool import Tool

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def makefile(bench: Workbench, text: str) -> None:
    (bench.root / "Makefile").write_text(text)


async def ran(bench: Workbench, tool: Tool, **arguments: Any) -> RunResult:
    answer = await bench.call(tool, **arguments)
    result: RunResult = answer.result
    return result


@asynccontextmanager
async def ended_writer(path: Path) -> AsyncIterator[None]:
    """A named pipe at *path*, which somebody has opened for writing at the end, and nobody has any more."""
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        yield
        loop.add_reader(fd, ended.set)
        async with asyncio.timeout(120):
            await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def test_the_end_of_long_output_is_kept(bench: Workbench) -> None:
    makefile(bench, "build:\n\t@seq 100000\n")
    answer = await bench.call(BUILD, max_output_bytes=2000)
    result: RunResult = answer.result
    assert result.output_truncated
    assert len(result.output) <= 2000
    lines = result.output.splitlines()
    assert lines == [str(number) for number in range(100_000 - len(lines) + 1, 100_001)]
    assert answer.content[0]["text"].split("\n", 2)[1] == "…"


async def test_long_output_is_not_all_of_the_text(bench: Workbench) -> None:
    makefile(bench, "build:\n\t@seq 30000\n")
    answer = await bench.call(BUILD)
    result: RunResult = answer.result
    assert not result.output_truncated
    assert result.output.splitlines()[0] == "1"
    assert len(answer.content[0]["text"]) < 40_000
    assert answer.content[0]["text"].endswith("\n30000\n")


async def test_output_is_plain_text(bench: Workbench) -> None:
    text = rb"\033[31mred\033[0m \033]0;title\007x\377y\n10%\r100%\r\n"
    makefile(bench, f"build:\n\t@printf '{text.decode().replace('%', '%%')}'\n")
    assert (await ran(bench, BUILD)).output == "red x\ufffdy\n100%\n"


async def test_a_command_that_takes_too_long_is_ended_with_all_it_started(bench: Workbench) -> None:
    makefile(bench, "build:\n\t@echo begun; exec 9> alive; sleep 600 & sleep 600\n")
    async with ended_writer(bench.root / "alive"):
        with pytest.raises(TimedOut, match="Tool execution timeout") as caught:
            await bench.call(BUILD, call=bench.new_call(seconds=1.0), timeout_seconds=1)
    assert caught.value.data is not None
    assert str(caught.value.data["output"]).startswith("begun\n")


async def test_a_call_that_is_cancelled_ends_its_command(bench: Workbench) -> None:
    begun = asyncio.Event()

    def progress(_done: float, _total: float | None, message: str) -> None:
        if message == "begun":
            begun.set()

    makefile(bench, "build:\n\t@exec 9> alive; echo begun; exec sleep 600\n")
    async with ended_writer(bench.root / "alive"):
        task = asyncio.create_task(bench.call(BUILD, call=bench.new_call(progress=progress)))
        async with asyncio.timeout(120):
            await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_progress_is_the_number_of_lines_and_the_newest_of_them(bench: Workbench) -> None:
    told: list[tuple[float, str]] = []
    makefile(bench, "build:\n\t@printf '\\033[1mfirst\\033[0m\\n'; seq 2 50000\n")
    call = bench.new_call(progress=lambda done, _total, message: told.append((done, message)))
    await bench.call(BUILD, call=call)
    await asyncio.sleep(0)
    assert told[0] == (1, "first")
    assert all(str(int(done)) == message for done, message in told[1:])
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) < 1000
