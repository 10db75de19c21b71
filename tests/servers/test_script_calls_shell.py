# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs of shell scripts on real processes, and of any script once its zygote was killed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.scripts.calls import PythonJob, ShellJob
from tests.servers.test_script_calls import script, text
from tests.servers.test_script_calls_hostile import children

if TYPE_CHECKING:
    from pathlib import Path

SH = "/nowhere/tool.sh"


async def test_shell_scripts_get_words_stdin_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "tool.sh"
    path.write_text('#!/bin/sh -e\necho "$0|$1|$2|$EXTRA"\ncat\n')
    async with script(path.read_text(), str(path)) as calls:
        outcome = await calls.call(ShellJob(("a b", "$(id)"), {"EXTRA": "é"}, b"in"))
    assert text(outcome) == f"{path}|a b|$(id)|é\nin"


async def test_shell_scripts_report_progress_and_log() -> None:
    heard: list[tuple[float, float | None, str]] = []
    log: list[str] = []
    source = 'echo "1 2 half way" >&"$MCP_PROGRESS_FD"; echo note >&2; echo \'{"a": 1}\''
    async with script(source, SH, log=log.append) as calls:
        outcome = await calls.call(ShellJob((), {}), None, lambda *step: heard.append(step))
    assert heard == [(1, 2, "half way")]
    assert log == ["note"]
    assert (text(outcome), outcome.structured) == ('{"a": 1}\n', {"a": 1})


@pytest.mark.parametrize("said", ['{"a": 1e999}', '{"a": -1e999}', '{"a": NaN}'])
async def test_numbers_that_no_json_can_hold_stay_text(said: str) -> None:
    async with script(f"printf '{said}'", SH) as calls:
        outcome = await calls.call(ShellJob((), {}))
    assert (text(outcome), outcome.structured) == (said, None)


async def test_shell_scripts_that_fail_say_why() -> None:
    async with script('echo out; [ "$1" ] && echo "$1" >&2; exit 3', SH) as calls:
        assert (await calls.call(ShellJob(("no such thing",), {}))).error == (
            "no such thing\nThe script ended with status 3."
        )
        assert (await calls.call(ShellJob((), {}))).error == "out\nThe script ended with status 3."
        assert "no program can be given" in (await calls.call(ShellJob(("a\0b",), {}))).error
        assert (await calls.call(ShellJob(("x" * (1 << 20),), {}))).error == ("/bin/sh: Argument list too long")
    async with script("#!/nowhere/sh\n", SH) as calls:
        assert (await calls.call(ShellJob((), {}))).error == "/nowhere/sh: No such file or directory"


async def test_T5_8_shell_scripts_may_write_bytes() -> None:
    async with script(r"printf '\211PNG\r\n\032\n\377'", SH) as calls:
        [block] = (await calls.call(ShellJob((), {}))).content
    assert (block["type"], block["mimeType"]) == ("image", "image/png")


async def test_a_killed_zygote_is_replaced() -> None:
    async with script("def f(): return 1") as calls:
        assert (await calls.call(PythonJob("f", {}))).value == 1
        [zygote] = children(os.getpid())
        os.kill(zygote, 9)
        value = None
        while value is None:
            value = (await calls.call(PythonJob("f", {}))).value
        assert value == 1
