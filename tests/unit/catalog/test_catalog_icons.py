# SPDX-License-Identifier: LGPL-2.1-or-later
"""Icons of entries: fetched once, kept within bounds, and nothing else than images."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.catalog import icons
from mcpd.catalog.results import Icon
from mcpd.errors import SourceUnavailable
from mcpd.files import TEMP_MARK
from tests.unit.catalog.catalog_server import answer, serving

if TYPE_CHECKING:
    from mcpd.catalog import Catalog
    from mcpd.paths import Paths

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 100
IMAGES = {
    "png": (PNG, "image/png"),
    "jpeg": (b"\xff\xd8\xff\xe0" + b"x" * 9, "image/jpeg"),
    "gif": (b"GIF89a" + b"x" * 9, "image/gif"),
    "webp": (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
    "svg-with-prolog": (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- a --><!-- b -->\n<svg >', "image/svg+xml"),
}


@pytest.mark.parametrize("kind", IMAGES)
async def test_images_are_told_by_their_bytes(user: Catalog, kind: str) -> None:
    data, media_type = IMAGES[kind]
    async with serving() as server:
        server.answers = {"/i": answer(data, Content_Type="text/html")}
        found = await user.icon(f"{server.base}/i", server.base)
        assert (found.data, found.media_type) == (data, media_type)
        assert await user.icon(f"{server.base}/i", server.base) == found
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"<html><svg>", b"PNG", PNG + b"x" * icons.MAX_ICON, b"<!--a-->" * 500 + b"x", b"<svgx>"],
    ids=["empty", "html", "text", "large", "comments", "other"],
)
async def test_all_else_is_refused(user: Catalog, data: bytes) -> None:
    async with serving() as server:
        server.answers = {"/i": answer(data)}
        with pytest.raises(SourceUnavailable, match="/i"):
            await user.icon(f"{server.base}/i", server.base)


async def test_no_entry_leads_to_this_machine(user: Catalog, tmp_path: Path) -> None:
    (tmp_path / "i.png").write_bytes(PNG)
    with pytest.raises(SourceUnavailable, match="on this machine"):
        await user.icon((tmp_path / "i.png").as_uri(), "https://example.com/r.json")
    with pytest.raises(SourceUnavailable, match="on this machine"):
        await user.icon("http://127.0.0.1:1/i.png", "https://example.com/r.json")
    found = await user.icon((tmp_path / "i.png").as_uri(), (tmp_path / "r.json").as_uri())
    assert found.media_type == "image/png"


async def test_what_is_of_no_registry_names_no_file(user: Catalog, tmp_path: Path) -> None:
    (tmp_path / "i.png").write_bytes(PNG)
    with pytest.raises(SourceUnavailable, match="on this machine"):
        await user.icon((tmp_path / "i.png").as_uri(), "")


async def test_who_asks_at_once_waits_for_one_answer(user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/i": answer(PNG)}
        asking = [asyncio.create_task(user.icon(f"{server.base}/i", server.base)) for _ in range(8)]
        await asyncio.sleep(0)
        asking[0].cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert [icon for icon in found[1:] if isinstance(icon, Icon) and icon.data == PNG] == found[1:]
        assert len(server.requests) == 1


async def test_a_failure_is_remembered_for_a_while(user: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        for _ in range(2):
            with pytest.raises(SourceUnavailable, match="404"):
                await user.icon(f"{server.base}/i", server.base)
        assert len(server.requests) == 1
        monkeypatch.setattr(icons, "_FAILED_FOR", 0.0)
        server.answers = {"/i": answer(PNG)}
        assert (await user.icon(f"{server.base}/i", server.base)).data == PNG


async def test_the_oldest_go_when_there_are_too_many(
    user: Catalog, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(icons, "MAX_KEPT", 2 * icons.BLOCK)
    async with serving() as server:
        server.answers = {f"/{name}": answer(PNG) for name in "abc"}
        for age, name in enumerate("ab"):
            await user.icon(f"{server.base}/{name}", server.base)
            for path in (paths.user.cache / "icons").iterdir():
                os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100 + age))
        await user.icon(f"{server.base}/c", server.base)
        assert len(list((paths.user.cache / "icons").iterdir())) == 2
        await user.icon(f"{server.base}/b", server.base)
        assert [path for path, _ in server.requests] == ["/a", "/b", "/c"]


async def test_a_file_that_goes_while_room_is_made_keeps_no_icon_out(
    user: Catalog, paths: Paths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = paths.user.cache / "icons"
    directory.mkdir(parents=True)
    other = directory / f".other.0123456789ab{TEMP_MARK}"
    other.touch()
    lstat = Path.lstat

    def late(path: Path) -> os.stat_result:
        if path == other:
            other.unlink()
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", late)
    async with serving() as server:
        server.answers = {"/i": answer(PNG)}
        for _ in range(2):
            assert (await user.icon(f"{server.base}/i", server.base)).data == PNG
        assert len(server.requests) == 1
    assert caplog.records == []
