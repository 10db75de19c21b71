# SPDX-License-Identifier: LGPL-2.1-or-later
"""The database under several users at once, and after one that was killed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from mcpd.catalog import Catalog, Query
from mcpd.catalog.database import Database, copies, make_copy
from mcpd.errors import NoSpace
from mcpd.paths import Paths, Scope
from mcpd.settings import Settings
from mcpd.trust.keys import Keys
from tests.unit.catalog.catalog_server import registry

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.catalog.database import Copy

pytestmark = pytest.mark.process


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache/catalog.sqlite"


def put(database: Database, source: str) -> None:
    database.change(lambda connection: make_copy(connection, source, ""))


def listed(path: Path) -> list[str]:
    none: list[Copy] = []
    return [copy.source for copy in Database(path).ask(copies, none)]


def test_one_that_is_being_made_is_let_alone(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    inode = path.stat().st_ino
    assert listed(path) == []
    assert path.stat().st_ino == inode
    put(Database(path), "a")
    assert path.stat().st_ino == inode
    assert listed(path) == ["a"]


@pytest.mark.parametrize("attempt", range(5))
def test_made_by_many_at_once(path: Path, attempt: int) -> None:
    start = Barrier(6)

    def use(number: int) -> None:
        database = Database(path)
        start.wait()
        for _ in range(attempt):
            database.ask(lambda connection: connection.execute("SELECT 1").fetchall(), [])
        put(database, str(number))
        database.close()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(use, range(6)))
    assert listed(path) == [str(number) for number in range(6)]


def test_what_another_made_anew_is_not_thrown_away(path: Path) -> None:
    mine = Database(path)
    put(mine, "old")

    def broken(_connection: sqlite3.Connection) -> list[str]:
        path.unlink()
        put(Database(path), "new")
        error = sqlite3.DatabaseError("malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    assert mine.ask(broken, ["nothing"]) == ["nothing"]
    assert listed(path) == ["new"]
    put(mine, "more")
    assert listed(path) == ["more", "new"]


def test_where_nothing_can_be_written_it_is_read_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(path)
    put(database, "a")
    database.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    before = list(path.parent.iterdir())

    def look(connection: sqlite3.Connection) -> list[str]:
        assert list(path.parent.iterdir()) == before
        return [copy.source for copy in copies(connection)]

    assert Database(path).ask(look, ["nothing"]) == ["a"]


async def test_what_cannot_be_forgotten_keeps_no_source_from_being_listed(
    user: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r.json").write_bytes(registry("one"))
    url = (tmp_path / "r.json").as_uri()
    user.add_source(url)
    await user.refresh()

    def full(*_: object) -> None:
        raise NoSpace("writing the catalog: no space")

    monkeypatch.setattr(Database, "change", full)
    user.remove_source(url)
    assert user.sources() == []
    user.add_source(url)
    assert [line.url for line in user.sources()] == [url]
    assert [record.getMessage() for record in caplog.records] == [
        "writing the catalog: no space; the data of the registry will be deleted later"
    ] * 2


async def test_what_a_source_took_is_given_back_with_it(user: Catalog, paths: Paths, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_bytes(registry("kept"))
    large = tmp_path / "large.json"
    user.add_source(kept.as_uri())
    user.add_source(large.as_uri())
    # Words that no other has, for each takes a place of its own in the index.
    files = [registry(f"e{n}", description=" ".join(f"w{n}x{m}" for m in range(9000))) for n in range(150)]
    large.write_text(json.dumps({"servers": [json.loads(each)["servers"][0] for each in files]}))
    roomy = Catalog(paths, Scope.USER, Settings(), Keys(paths, Scope.USER))

    def taken() -> int:
        return sum(path.stat().st_size for path in paths.user.cache.glob("catalog.sqlite*"))

    assert await roomy.refresh() == []
    assert taken() > 20_000_000
    roomy.remove_source(large.as_uri())
    assert taken() < 12_000_000
    assert [hit.id for hit in roomy.query(Query())[0]] == ["kept"]


def test_of_a_killed_writer_nothing_stays(path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from mcpd.catalog.database import Database;"
        "from mcpd.catalog.database import make_copy; database = Database(Path(sys.argv[1]));"
        "database.change(lambda connection: make_copy(connection, 'whole', ''));"
        "database.change(lambda connection: (make_copy(connection, 'half', ''), os._exit(9)))"
    )
    ended = subprocess.run([sys.executable, "-c", code, path], check=False, env={"PYTHONPATH": ":".join(sys.path)})
    assert ended.returncode == 9
    assert listed(path) == ["whole"]
    put(Database(path), "next")
    assert listed(path) == ["next", "whole"]
