# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories of entries as sources, and sources that become one."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import SourceUnavailable
from tests.unit.catalog.catalog_server import ids, registry, sources

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.catalog import Catalog
    from mcpd.paths import Paths


async def test_a_directory_offers_what_its_files_hold(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    folder = tmp_path / "registries"
    folder.mkdir()
    (folder / "a.json").write_bytes(registry("one"))
    (folder / "b.json").write_text(json.dumps(json.loads(registry("two"))["servers"][0]))
    (folder / "c.json").write_text("{")
    user.add_source(folder.as_uri(), name="local", type="directory", signature="off")
    with pytest.raises(SourceUnavailable, match=r"c\.json"):
        await user.refresh()
    assert ids(user) == ["one", "two"]
    (line,) = user.sources()
    assert (line.state, line.entries) == ("partly", 2)
    (folder / "c.json").unlink()
    (folder / "a.json").unlink()
    assert await user.refresh() == []
    assert ids(user) == ["two"]
    assert user.find("two").origin == folder.as_uri()


@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize("described", [{}, {"name": "local", "signature": "off"}], ids=["listed", "described"])
async def test_a_directory_that_is_there_is_listed_as_one(
    user: Catalog, tmp_path: Path, described: dict[str, str], end: str
) -> None:
    folder = tmp_path / "my registries"
    folder.mkdir()
    (folder / "a.json").write_bytes(registry("one"))
    user.add_source(f"{folder.as_uri()}{end}", **described)
    user.add_source(folder.as_uri())
    await user.refresh()
    assert ids(user) == ["one"]
    (line,) = user.sources()
    assert (line.url, line.type) == (f"{folder.as_uri()}/", "directory")
    shutil.rmtree(folder)
    with pytest.raises(SourceUnavailable):
        await user.refresh()
    assert ids(user) == ["one"]
    user.remove_source(folder.as_uri())
    assert user.sources() == []


async def test_a_directory_that_is_listed_as_a_file_says_how_to_list_it(
    paths: Paths, user: Catalog, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_bytes(registry("one"))
    sources(paths, tmp_path.as_uri())
    with pytest.raises(SourceUnavailable, match=f"mcpctl source add {tmp_path.as_uri()} --name NAME --type directory$"):
        await user.refresh()
    user.add_source(tmp_path.as_uri(), name="local", type="directory")
    await user.refresh()
    assert ids(user) == ["one"]


@pytest.mark.parametrize("data", [b"[]", b"3", b'"x"'])
async def test_a_file_of_a_directory_that_is_neither_a_registry_nor_an_entry_says_so(
    user: Catalog, tmp_path: Path, data: bytes
) -> None:
    folder = tmp_path / "registries"
    folder.mkdir()
    (folder / "a.json").write_bytes(data)
    user.add_source(folder.as_uri(), name="local", type="directory", signature="off")
    with pytest.raises(SourceUnavailable, match=r"/a\.json: not a registry: needs an object whose 'servers' is"):
        await user.refresh()


async def test_a_directory_that_holds_nothing_is_ready(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    folder = tmp_path / "registries"
    folder.mkdir()
    user.add_source(folder.as_uri(), name="local", type="directory", signature="required")
    assert user.sources()[0].state == "new"
    await user.refresh()
    (line,) = user.sources()
    assert (line.state, line.problem, line.entries, line.updated > 0) == ("ready", "", 0, True)
    folder.rmdir()
    with pytest.raises(SourceUnavailable):
        await user.refresh()
    assert user.sources()[0].state == "failed"
    folder.mkdir()
    await user.refresh()
    user.remove_source(folder.as_uri())
    user.add_source(folder.as_uri(), name="local", type="directory")
    assert user.sources()[0].state == "new"


async def test_files_whose_names_are_no_text_are_named_and_the_others_stay(
    paths: Paths, user: Catalog, tmp_path: Path
) -> None:
    folder = tmp_path / "registries"
    folder.mkdir()
    (folder / "a.json").write_bytes(registry("one"))
    for name in (b"\xff.json", b"a\nb.json"):
        (folder / os.fsdecode(name)).write_bytes(registry("other"))
    sources(paths, (tmp_path / "other.json").as_uri())
    (tmp_path / "other.json").write_bytes(registry("two"))
    user.add_source(folder.as_uri(), name="local", type="directory", signature="off")
    (failure,) = await user.refresh()
    assert "1 more files" in failure.message
    assert failure.message.isprintable()
    assert ids(user) == ["one", "two"]


async def test_a_source_that_becomes_a_directory_or_a_file_keeps_nothing_of_before(
    user: Catalog, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.write_bytes(registry("file"))
    user.add_source(place.as_uri(), name="a", type="registry", signature="off")
    await user.refresh()
    place.unlink()
    place.mkdir()
    (place / "x.json").write_bytes(registry("x"))
    user.add_source(place.as_uri(), type="directory")
    assert ids(user) == []
    await user.refresh()
    assert ids(user) == ["x"]
    shutil.rmtree(place)
    place.write_bytes(registry("again"))
    user.add_source(place.as_uri(), type="registry")
    assert ids(user) == []
    await user.refresh()
    assert ids(user) == ["again"]
    assert user.sources()[0].entries == 1
