# SPDX-License-Identifier: LGPL-2.1-or-later
"""The record of calls: whole, in one file for all servers of a user, and there whatever becomes of its modes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import McpdError
from mcpd.servers.workstation import audit as audits
from mcpd.servers.workstation.audit import Audit, Named
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def trail(tmp_path: Path) -> Iterator[Audit]:
    """The record of one server."""
    made = Audit(tmp_path)
    yield made
    made.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_the_record_begins_anew_when_it_is_full(
    trail: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "MAX_LOG", 1000)
    for number in range(20):
        await trail.record({"event": "end", "call": number}, Named({"path": "x"}))
    texts = [(tmp_path / name).read_text() for name in ("audit.jsonl.1", "audit.jsonl")]
    assert all(len(text) <= 1000 for text in texts)
    numbers = [json.loads(line)["call"] for text in texts for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 20))


async def test_directories_on_the_way_to_the_record_are_made_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        trail = Audit(tmp_path / "mcp/workstation")
        await trail.record({"event": "end"}, Named({}))
        trail.close()
    finally:
        os.umask(before)
    made = (tmp_path / "mcp", tmp_path / "mcp/workstation")
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o700]


WRITER = """
import asyncio, sys
from pathlib import Path
from mcpd.servers.workstation import audit
audit.MAX_LOG = 20_000

async def main():
    trail = audit.Audit(Path(sys.argv[1]))
    sys.stdin.read()
    for number in range(100):
        await trail.record({"call": f"{sys.argv[2]}-{number}"}, audit.Named({}))
    trail.close()

asyncio.run(main())
"""


async def test_servers_of_one_user_lose_no_line_when_the_file_turns(tmp_path: Path) -> None:
    # Together they fill the file once and a half, so that all there ever was is in it and in the one before.
    writers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(tmp_path), str(number), stdin=asyncio.subprocess.PIPE
        )
        for number in range(2)
    ]
    await asyncio.gather(*(each.communicate(b"") for each in writers))
    assert [each.returncode for each in writers] == [0, 0]
    found = [line["call"] for name in ("audit.jsonl.1", "audit.jsonl") for line in lines(tmp_path / name)]
    assert sorted(found) == sorted(f"{writer}-{number}" for writer in range(2) for number in range(100))


async def test_two_records_follow_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "MAX_LOG", 1000)
    both = [Audit(tmp_path), Audit(tmp_path)]
    for number in range(40):
        await both[number % 2].record({"call": number}, Named({}))
    for each in both:
        each.close()
    found = [line["call"] for name in ("audit.jsonl.1", "audit.jsonl") for line in lines(tmp_path / name)]
    assert found == list(range(found[0], 40))


async def test_what_is_in_its_place_is_left_alone(trail: Audit, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine\n")
    (tmp_path / "audit.jsonl").symlink_to("elsewhere")
    with pytest.raises(McpdError, match="recording the call in"):
        await trail.record({"event": "end"}, Named({}))
    assert (tmp_path / "elsewhere").read_text() == "mine\n"
    (tmp_path / "audit.jsonl").unlink()
    await trail.record({"event": "end"}, Named({}))
    assert len(lines(tmp_path / "audit.jsonl")) == 1


async def test_modes_that_a_command_took_away_come_back(trail: Audit, tmp_path: Path) -> None:
    await trail.record({"call": 1}, Named({}))
    for path in tmp_path.iterdir():
        path.chmod(0)
    tmp_path.chmod(0)
    await trail.record({"call": 2}, Named({}))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600
    assert [line["call"] for line in lines(tmp_path / "audit.jsonl")] == [1, 2]


async def test_a_record_that_was_removed_begins_again(tmp_path: Path) -> None:
    trail = Audit(tmp_path / "state")
    await trail.record({"call": 1}, Named({}))
    for path in (tmp_path / "state").iterdir():
        path.unlink()
    (tmp_path / "state").rmdir()
    await trail.record({"call": 2}, Named({}))
    trail.close()
    assert [line["call"] for line in lines(tmp_path / "state" / "audit.jsonl")] == [2]


async def test_a_lock_that_is_held_for_ever_is_an_error(
    trail: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "PATIENCE", 0.02)
    holder = audits.Trail(tmp_path / "audit.jsonl")
    holder.add(b"", 1)
    fd = os.open(tmp_path / "audit.jsonl.lock", os.O_WRONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(McpdError, match=r"another process holds .*audit\.jsonl\.lock"):
            await trail.record({"call": 1}, Named({}))
    finally:
        os.close(fd)
        holder.close()
    await trail.record({"call": 2}, Named({}))


async def test_a_digest_says_whether_arguments_were_the_same(tmp_path: Path) -> None:
    trail = Audit(tmp_path / "made")
    for arguments in ({"a": 1, "b": "\ud800"}, {"b": "\ud800", "a": 1}, {"a": 2}):
        await trail.record({"event": "end"}, Named(arguments))
    trail.close()
    first, second, third = (line["arguments_sha256"] for line in lines(tmp_path / "made" / "audit.jsonl"))
    assert first == second != third


async def test_paths_are_recorded_whole(trail: Audit, tmp_path: Path) -> None:
    path = "/".join(["directory"] * 100) + "/fi\nle\x1b"
    await trail.record({}, Named({"path": path, "paths": [path, 5, *("x" * 10_000 for _ in range(30))]}))
    (line,) = lines(tmp_path / "audit.jsonl")
    assert line["path"] == path
    assert line["paths"] == [path, *["x" * 4096] * 18]


async def test_paths_are_recorded_as_what_they_stand_for(trail: Audit, tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    with Workbench(tmp_path / "bench") as bench:
        for path, found in (
            ("a//./b", f"{bench.root}/a/b"),
            (f"{bench.root}/./x", f"{bench.root}/x"),
            ("../secret", "../secret"),
            ("/etc/passwd", "/etc/passwd"),
            ("\0", "\0"),
        ):
            named = Named({"source": path, "paths": [path]})
            named.resolve(bench.jail)
            await trail.record({}, named)
            line = lines(tmp_path / "audit.jsonl")[-1]
            assert (line["source"], line["paths"]) == (found, [path])
