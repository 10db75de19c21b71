# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_stat``: what is said of files, directories, symlinks and others, and the digest."""

from __future__ import annotations

import asyncio
import grp
import hashlib
import os
import pwd
import re
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidArgument, NotAuthorized, NotFound, TimedOut
from mcpd.servers.workstation.filesystem.reading import STAT
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


async def test_what_is_said_of_a_file(bench: Workbench) -> None:
    path = bench.root / "a.json"
    path.write_bytes(b"{}\n")
    path.chmod(0o4640)
    os.utime(path, ns=(1_500_000_000_000_000_000, 1_000_000_000_999_999_999))
    status = path.stat()
    result = (await bench.call(STAT, path="a.json")).result.model_dump(exclude_none=True)
    created = result.pop("created", None)
    assert created is None or RFC_3339.fullmatch(created)
    assert RFC_3339.fullmatch(result.pop("changed"))
    assert result == {
        "path": str(path),
        "type": "file",
        "size": 3,
        "mode": "4640",
        "permissions": "rwSr-----",
        "uid": os.getuid(),
        "gid": status.st_gid,
        "owner": pwd.getpwuid(os.getuid()).pw_name,
        "group": grp.getgrgid(status.st_gid).gr_name,
        "modified": "2001-09-09T01:46:40.999Z",
        "accessed": "2017-07-14T02:40:00.000Z",
        "hard_links": 1,
        "inode": status.st_ino,
        "device": f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}",
        "mime_type": "application/json",
    }


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
async def test_an_owner_without_a_name_is_a_number_only(bench: Workbench) -> None:
    (bench.root / "a").touch()
    os.chown(bench.root / "a", 2_000_000_001, 2_000_000_002)
    result = (await bench.call(STAT, path="a")).result
    assert (result.uid, result.gid, result.owner, result.group) == (2_000_000_001, 2_000_000_002, None, None)


async def test_directories_roots_and_pipes(bench: Workbench) -> None:
    (bench.root / "d.json").mkdir()
    os.mkfifo(bench.root / "pipe.json")
    for path, kind in ((".", "directory"), ("d.json", "directory"), ("pipe.json", "pipe")):
        result = (await bench.call(STAT, path=path)).result
        assert (result.type, result.mime_type, result.sha256) == (kind, None, None)


async def test_a_symlink_is_looked_at_itself_unless_it_shall_be_followed(bench: Workbench) -> None:
    (bench.root / "a").write_text("12345")
    (bench.root / "link").symlink_to("./a")
    result = (await bench.call(STAT, path="link")).result
    assert (result.type, result.target, result.size) == ("symlink", "./a", 3)
    result = (await bench.call(STAT, path="link", follow=True)).result
    assert (result.type, result.target, result.size) == ("file", None, 5)
    assert (await bench.call(STAT, path="link", follow=True, digest=True)).result.type == "file"
    with pytest.raises(InvalidArgument, match="set follow"):
        await bench.call(STAT, path="link", digest=True)


async def test_a_symlink_that_leads_out_is_shown_not_followed(bench: Workbench) -> None:
    before = bench.fingerprint()
    (bench.root / "link").symlink_to(bench.outside / "secret")
    (bench.root / "loop").symlink_to("loop")
    (bench.root / "directory").symlink_to("../outside")
    assert (await bench.call(STAT, path="link")).result.target == str(bench.outside / "secret")
    assert (await bench.call(STAT, path="loop")).result.target == "loop"
    for path in ("link", "loop"):
        with pytest.raises(NotAuthorized):
            await bench.call(STAT, path=path, follow=True)
        with pytest.raises(NotAuthorized):
            await bench.call(STAT, path=path, follow=True, digest=True)
    for path in ("directory/secret", str(bench.outside)):
        with pytest.raises(NotAuthorized):
            await bench.call(STAT, path=path)
    assert bench.fingerprint() == before


async def test_the_digest_of_a_file(bench: Workbench) -> None:
    data = os.urandom(3 * 2**20 + 1)
    (bench.root / "a").write_bytes(data)
    said: list[tuple[float, float | None]] = []
    call = bench.new_call(progress=lambda done, total, _: said.append((done, total)))
    result = (await bench.call(STAT, path="a", digest=True, call=call)).result
    await asyncio.sleep(0)
    assert (result.sha256, result.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert said == [(min(step * 2**20, len(data)), len(data)) for step in range(1, 5)]


async def test_what_is_no_file_of_one_name_has_no_digest(bench: Workbench) -> None:
    os.mkfifo(bench.root / "pipe")
    for path in (".", "pipe"):
        with pytest.raises(InvalidArgument, match="not a file"):
            await bench.call(STAT, path=path, digest=True)
    os.link(bench.outside / "secret", bench.root / "hard")
    assert (await bench.call(STAT, path="hard")).result.hard_links == 2
    with pytest.raises(NotAuthorized, match="hard link"):
        await bench.call(STAT, path="hard", digest=True)


async def test_a_digest_that_takes_too_long_ends(bench: Workbench) -> None:
    with (bench.root / "sparse").open("wb") as made:
        made.truncate(2**42)
    with pytest.raises(TimedOut):
        await bench.call(STAT, path="sparse", digest=True, call=bench.new_call(seconds=0.2))


async def test_what_is_not_there_is_not_found(bench: Workbench) -> None:
    with pytest.raises(NotFound):
        await bench.call(STAT, path="missing")
    with pytest.raises(InvalidArgument):
        await bench.call(STAT, path="missing\0")
