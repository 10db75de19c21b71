# SPDX-License-Identifier: LGPL-2.1-or-later
"""Downloads: whole, hashed and within their limits, or not there."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from mcpd.catalog.fetch import Fetcher
from mcpd.errors import LimitExceeded, McpdError, SourceUnavailable
from tests.unit.catalog.catalog_server import answer, serving

if TYPE_CHECKING:
    from pathlib import Path

DATA = bytes(range(256)) * 20_000


async def test_a_download_is_the_file_and_its_hash(tmp_path: Path) -> None:
    target = tmp_path / "target"
    steps: list[tuple[int, int]] = []
    async with serving() as server, Fetcher(seconds=5, max_bytes=10) as fetcher:
        # Some servers say of an archive that it is packed on the way.
        server.answers = {
            "/a": answer(b"", "302 Found", Location="/b"),
            "/b": answer(DATA, Content_Encoding="gzip"),
        }
        digest = await fetcher.download(
            f"{server.base}/a",
            target,
            max_bytes=len(DATA),
            seconds=9,
            progress=lambda done, total: steps.append((done, total)),
        )
    assert digest == hashlib.sha256(DATA).hexdigest()
    assert target.read_bytes() == DATA
    assert target.stat().st_mode & 0o777 == 0o600
    assert steps[-1] == (len(DATA), len(DATA))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


async def test_files_are_copied(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    async with Fetcher(seconds=5, max_bytes=10) as fetcher:
        digest = await fetcher.download(
            (tmp_path / "file").as_uri(), tmp_path / "target", max_bytes=len(DATA), seconds=5
        )
        assert digest == hashlib.sha256(DATA).hexdigest()
        for wrong in (tmp_path, tmp_path / "none"):
            with pytest.raises(SourceUnavailable):
                await fetcher.download(wrong.as_uri(), tmp_path / "other", max_bytes=9, seconds=5)
    assert not (tmp_path / "other").exists()


FAULTS = {
    "large": (answer(DATA), LimitExceeded),
    "endless": (b"HTTP/1.1 200 OK\r\n\r\n" + DATA, LimitExceeded),
    "short": (answer(b"x" * 10).replace(b"Content-Length: 10", b"Content-Length: 99"), SourceUnavailable),
    "missing": (answer(b"", "404 Not Found"), SourceUnavailable),
    "to-a-file": (answer(b"", "302 Found", Location="file:///etc/passwd"), SourceUnavailable),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_fails_leaves_nothing(tmp_path: Path, fault: str) -> None:
    data, kind = FAULTS[fault]
    async with serving() as server, Fetcher(seconds=5, max_bytes=10) as fetcher:
        server.answers = {"/a": data}
        with pytest.raises(kind, match="/a"):
            await fetcher.download(f"{server.base}/a", tmp_path / "target", max_bytes=1000, seconds=9)
    assert list(tmp_path.iterdir()) == []


async def test_a_slow_or_cancelled_one_leaves_nothing(tmp_path: Path) -> None:
    async with serving() as server, Fetcher(seconds=5, max_bytes=10) as fetcher:
        server.answers = {"/slow": b"HTTP/1.1 200 OK\r\n\r\nx"}
        with pytest.raises(SourceUnavailable, match="not complete within"):
            await fetcher.download(f"{server.base}/slow", tmp_path / "target", max_bytes=1000, seconds=0.3)
        work = asyncio.ensure_future(
            fetcher.download(f"{server.base}/slow", tmp_path / "target", max_bytes=1000, seconds=60)
        )
        while not (tmp_path / "target").exists():
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("made", [True, False])
async def test_one_cancelled_while_its_file_is_made_leaves_nothing(tmp_path: Path, made: bool) -> None:
    (tmp_path / "file").write_bytes(DATA)
    target = tmp_path / "target"
    hold = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        before = asyncio.ensure_future(asyncio.to_thread(hold.wait, 60))
        async with Fetcher(seconds=5, max_bytes=10) as fetcher:
            work = asyncio.ensure_future(
                fetcher.download((tmp_path / "file").as_uri(), target, max_bytes=len(DATA), seconds=60)
            )
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if made:
                hold.set()
                while not target.exists():  # and the loop does not know it yet
                    pass
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            hold.set()
            await before
            await asyncio.to_thread(int)
        assert not target.exists()


@pytest.mark.parametrize("times", [1, 2])
async def test_one_cancelled_at_its_end_leaves_nothing_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    target = tmp_path / "target"
    begun, let_go = threading.Event(), threading.Event()
    was_let_go: list[bool] = []

    def slow(_descriptor: int) -> None:
        begun.set()
        was_let_go.append(let_go.wait(10))

    monkeypatch.setattr(os, "fsync", slow)
    async with Fetcher(seconds=5, max_bytes=10) as fetcher:
        work = asyncio.ensure_future(
            fetcher.download((tmp_path / "file").as_uri(), target, max_bytes=len(DATA), seconds=60)
        )
        assert await asyncio.to_thread(begun.wait, 10)
        for _ in range(times):
            work.cancel()
            await asyncio.sleep(0.01)
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not target.exists()
    assert was_let_go == [True]


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "file").write_bytes(DATA)
    async with Fetcher(seconds=5, max_bytes=10) as fetcher:
        with pytest.raises(McpdError, match="target"):
            await fetcher.download((tmp_path / "file").as_uri(), tmp_path / "target", max_bytes=len(DATA), seconds=5)
    assert (tmp_path / "target").read_text() == "mine"
