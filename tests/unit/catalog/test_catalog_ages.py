# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registries that are older than what was seen before, and those whose age nobody can tell."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from mcpd.catalog import Query
from mcpd.errors import McpdError, SignatureInvalid, SourceUnavailable
from mcpd.trust.signing import sign
from tests.unit.catalog.catalog_server import ids, registry
from tests.unit.catalog.signed_registry import Signed, updated

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Paths


async def test_an_older_registry_is_refused(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(updated("2026-03-01T00:00:00Z", "new"))
    await signed.catalog.refresh()
    signed.write(updated("2026-02-01T00:00:00+05:00", "old"))
    with pytest.raises(SourceUnavailable, match=r"refused.*2026-02-01.*2026-03-01.*remove"):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == ["new"]
    assert signed.catalog.sources()[0].state == "refused"
    signed.write(updated("whenever", "dateless"))
    with pytest.raises(SourceUnavailable, match="not a date"):
        await signed.catalog.refresh()
    signed.write(updated("2026-03-02", "newer"))
    assert await signed.catalog.refresh() == []
    assert ids(signed.catalog) == ["newer"]


@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_date_to_come_is_refused_and_one_a_few_hours_ahead_is_not(signed: Signed, is_signed: bool) -> None:
    if not is_signed:
        signed.keys.remove("example")
    signed.catalog.add_source(signed.url)
    signed.write(updated("2999-01-01T00:00:00Z", "future"))
    with pytest.raises(SourceUnavailable, match=r"refused.*2999.*in the future"):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == []
    (line,) = signed.catalog.sources()
    assert (line.state, line.updated, line.entries) == ("refused", 0, 0)
    signed.write(updated((datetime.now(UTC) + timedelta(hours=20)).isoformat(), "ahead"))
    assert await signed.catalog.refresh() == []
    assert ids(signed.catalog) == ["ahead"]


@pytest.mark.parametrize("policy", ["warn", "off"])
async def test_what_nobody_signed_and_is_dated_ahead_bars_nothing_of_now(signed: Signed, policy: str) -> None:
    signed.signature.unlink()
    signed.catalog.add_source(signed.url, name="local", signature=policy)
    signed.file.write_bytes(updated((datetime.now(UTC) + timedelta(hours=23)).isoformat(), "ahead"))
    assert await signed.catalog.refresh() == []
    signed.file.write_bytes(updated(datetime.now(UTC).isoformat(), "now"))
    assert await signed.catalog.refresh() == []
    assert ids(signed.catalog) == ["now"]
    signed.file.write_bytes(updated((datetime.now(UTC) - timedelta(hours=1)).isoformat(), "old"))
    with pytest.raises(SourceUnavailable, match="older"):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == ["now"]


async def test_what_is_signed_and_dated_ahead_stays_the_newest(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(updated((datetime.now(UTC) + timedelta(hours=20)).isoformat(), "ahead"))
    await signed.catalog.refresh()
    signed.write(updated(datetime.now(UTC).isoformat(), "old"))
    with pytest.raises(SourceUnavailable, match="older"):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == ["ahead"]


async def test_what_nobody_signed_bars_nothing_that_is_signed(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(updated("2026-06-01", "evil"))
    signed.signature.unlink()
    await signed.catalog.refresh()
    signed.write(updated("2026-03-01", "good"))
    assert await signed.catalog.refresh() == []
    assert ids(signed.catalog) == ["good"]
    assert signed.verified() == [True]
    signed.write(updated("2026-02-01", "old"))
    with pytest.raises(SourceUnavailable, match=r"2026-02-01.*2026-03-01"):
        await signed.catalog.refresh()


async def test_what_was_signed_once_bars_older_ones_while_its_key_is_away(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(updated("2026-03-01", "new"))
    await signed.catalog.refresh()
    signed.keys.remove("example")
    signed.signature.unlink()
    signed.file.write_bytes(updated("2026-04-01", "unsigned"))
    await signed.catalog.refresh()
    signed.keys.add("example", signed.public)
    signed.write(updated("2026-02-01", "old"))
    with pytest.raises(SourceUnavailable, match=r"2026-02-01.*2026-03-01"):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == ["unsigned"]


async def test_of_one_date_what_was_signed_first_stays(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(updated("2026-03-01", "new"))
    await signed.catalog.refresh()
    signed.write(updated("2026-03-01", "other"))
    with pytest.raises(SourceUnavailable, match=r"content differs.*newer"):
        await signed.catalog.refresh()
    assert ids(signed.catalog) == ["new"]
    assert signed.catalog.sources()[0].state == "refused"


async def test_a_signed_registry_without_a_date_is_named(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(json.dumps({"servers": json.loads(registry("one"))["servers"]}).encode())
    await signed.catalog.refresh()
    (line,) = signed.catalog.sources()
    assert (line.state, line.signed_by) == ("ready", "example")
    (fault,) = line.faults
    assert fault.startswith(f"{signed.url}: ")
    assert "without an 'updated' date" in fault
    signed.write(updated("2026-03-01", "two"))
    await signed.catalog.refresh()
    assert signed.catalog.sources()[0].faults == ()


async def test_of_the_same_bytes_the_date_counts_as_soon_as_they_are_signed(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signature = signed.signature.read_bytes()
    signed.signature.unlink()
    await signed.catalog.refresh()
    signed.signature.write_bytes(signature)
    await signed.catalog.refresh()
    assert signed.verified() == [True]
    assert signed.catalog.sources()[0].faults == ()
    signed.write(updated("2025-12-01", "old"))
    with pytest.raises(SourceUnavailable, match="2025-12-01"):
        await signed.catalog.refresh()


@pytest.mark.parametrize("text", ["not a date", "", 7, True, ["2026-01-01"]])
async def test_a_date_that_is_none_is_named(signed: Signed, text: object) -> None:
    signed.keys.remove("example")
    signed.catalog.add_source(signed.url)
    signed.write(updated(text))
    await signed.catalog.refresh()
    (line,) = signed.catalog.sources()
    assert (line.state, line.entries) == ("ready", 1)
    (fault,) = line.faults
    assert fault.startswith(f"{signed.url}: updated: {json.dumps(text)} is not a time")


@pytest.mark.parametrize("policy", ["required", "warn"])
async def test_in_a_directory_what_is_signed_and_newest_wins_whatever_it_is_called(
    signed: Signed, tmp_path: Path, policy: str
) -> None:
    folder = tmp_path / "registries"
    folder.mkdir()

    def put(name: str, date: str, version: str, *, is_signed: bool = True) -> None:
        data = json.dumps({**json.loads(registry("one", version=version)), "updated": date}).encode()
        (folder / name).write_bytes(data)
        if is_signed:
            (folder / f"{name}.sig").write_bytes(sign(data, signed.private))

    signed.catalog.add_source(folder.as_uri(), name="local", type="directory", signature=policy)
    put("r.json", "2026-02-01", "2.0.0")
    await signed.catalog.refresh()
    put("a.json", "2026-01-01", "1.0.0")
    put("b.json", "2026-03-01", "6.6.6", is_signed=False)
    failures = [] if policy == "warn" else [SignatureInvalid]
    assert [type(failure) for failure in await _refreshed(signed)] == failures
    assert signed.catalog.find("one").entry.version == "2.0.0"
    assert [hit.fields["version"] for hit in signed.catalog.query(Query())[0]] == ["2.0.0"]
    assert [hit.fields["version"] for hit in signed.catalog.query(Query(source=folder.as_uri()))[0]] == ["2.0.0"]
    assert signed.verified() == [True]


async def test_in_a_directory_each_file_has_an_age_of_its_own(signed: Signed, tmp_path: Path) -> None:
    folder = tmp_path / "registries"
    folder.mkdir()

    def put(name: str, date: str, *names: str) -> None:
        data = updated(date, *names)
        (folder / name).write_bytes(data)
        (folder / f"{name}.sig").write_bytes(sign(data, signed.private))

    signed.catalog.add_source(folder.as_uri(), name="local", type="directory", signature="required")
    put("tools.json", "2026-03-01", "tool")
    put("games.json", "2025-03-01", "game")
    assert await signed.catalog.refresh() == []
    assert ids(signed.catalog) == ["game", "tool"]
    (folder / "tools.json").unlink()
    put("maps.json", "2024-03-01", "map")
    assert await signed.catalog.refresh() == []
    assert ids(signed.catalog) == ["game", "map"]
    put("games.json", "2025-02-01", "old")
    assert [type(failure) for failure in await _refreshed(signed)] == [SourceUnavailable]
    assert ids(signed.catalog) == ["game", "map"]


async def _refreshed(signed: Signed) -> list[McpdError]:
    try:
        return await signed.catalog.refresh()
    except McpdError as error:
        return [error]


async def test_removing_a_source_forgets_its_age(signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(updated("2026-03-01T00:00:00Z"))
    await signed.catalog.refresh()
    signed.catalog.remove_source(signed.url)
    signed.catalog.add_source(signed.url)
    assert signed.catalog.sources()[0].state == "new"
    signed.write(updated("2026-02-01T00:00:00Z"))
    assert await signed.catalog.refresh() == []


async def test_a_line_that_was_taken_out_by_hand_leaves_no_age(paths: Paths, signed: Signed) -> None:
    signed.catalog.add_source(signed.url)
    signed.write(updated("2026-03-01T00:00:00Z"))
    await signed.catalog.refresh()
    paths.user.sources_list.write_text("")
    signed.catalog.add_source(signed.url)
    signed.write(updated("2026-02-01T00:00:00Z"))
    assert await signed.catalog.refresh() == []
