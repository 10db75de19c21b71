# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.clients.audit import MAX_LINE, MAX_LOG, Audit
from mcpd.clients.errors import InvalidInput
from mcpd.clients.tree import Tree
from mcpd.errors import InvalidConfig, McpdError, NoSpace
from mcpd.paths import Scope
from tests.unit.clients.payload_parts import Clock

if TYPE_CHECKING:
    from pathlib import Path

ID = "a" * 64


@pytest.fixture
def audit(tree: Tree) -> Audit:
    return Audit(tree, Clock())


def lines(tree: Tree) -> list[Any]:
    return [json.loads(line) for line in tree.audit.read_text().splitlines()]


def record(audit: Audit, event: str = "publish", details: dict[str, Any] | None = None) -> None:
    audit.record(event, client_id="cursor", profile_id="default", artifact_id=ID, outcome="ok", details=details)


def test_a_record_says_what_happened_to_what_and_who_did_it(audit: Audit, tree: Tree) -> None:
    record(audit, details={"source": "draft"})
    assert lines(tree) == [
        {
            "name": "publish",
            "ts": "2025-10-23T14:30:00.000000Z",
            "fields": {
                "source": "draft",
                "client_id": "cursor",
                "profile_id": "default",
                "artifact_id": ID,
                "outcome": "ok",
                "uid": os.getuid(),
                "pid": os.getpid(),
            },
        }
    ]


def test_records_are_added_and_nobody_else_reads_them(audit: Audit, tree: Tree) -> None:
    record(audit, "publish")
    audit.record("deploy", client_id="cursor", profile_id="dev", outcome="refused")
    first, second = lines(tree)
    assert (first["name"], second["name"]) == ("publish", "deploy")
    assert (second["fields"]["artifact_id"], second["fields"]["outcome"]) == (None, "refused")
    assert stat.S_IMODE(tree.audit.stat().st_mode) == 0o600


def test_the_time_is_written_in_UTC(tree: Tree) -> None:
    moment = datetime(2025, 10, 23, 16, 30, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    record(Audit(tree, lambda: moment))
    assert lines(tree)[0]["ts"] == "2025-10-23T14:30:00.000005Z"


def test_details_make_no_line_of_their_own_and_stand_in_for_nothing(audit: Audit, tree: Tree) -> None:
    record(audit, details={"message": 'a\n{"name": "x"}\r\u2028', "outcome": "failed", "uid": 0, "client_id": "x"})
    (found,) = lines(tree)
    assert found["fields"]["message"] == 'a\n{"name": "x"}\r\u2028'
    assert found["fields"]["outcome"] == "ok"
    assert found["fields"]["uid"] == os.getuid()
    assert found["fields"]["client_id"] == "cursor"


def test_details_that_make_a_line_too_long_are_counted(audit: Audit, tree: Tree) -> None:
    record(audit, details={"violations": ["x" * 1000] * 100, "more": 1})
    (found,) = lines(tree)
    assert found["fields"]["details_left_out"] == 2
    assert found["fields"]["artifact_id"] == ID
    assert "violations" not in found["fields"]
    assert len(tree.audit.read_bytes()) < MAX_LINE


@pytest.mark.parametrize("value", [float("nan"), "\ud800", "\0"], ids=["nan", "surrogate", "nul"])
def test_details_that_are_no_JSON_are_refused(audit: Audit, tree: Tree, value: Any) -> None:
    with pytest.raises(InvalidInput, match="publish"):
        record(audit, details={"x": value})
    assert not tree.audit.exists()


def test_a_full_log_is_kept_once_and_a_new_one_begun(audit: Audit, tree: Tree) -> None:
    old = tree.audit.with_name("audit.jsonl.1")
    record(audit, "first")
    with tree.audit.open("a") as file:
        file.write("x" * (MAX_LOG - tree.audit.stat().st_size - 2) + "\n")
    record(audit, "second")
    assert [line["name"] for line in lines(tree)] == ["second"]
    assert old.stat().st_size == MAX_LOG - 1
    assert old.read_text().startswith('{"name": "first"')
    record(audit, "third")
    assert [line["name"] for line in lines(tree)] == ["second", "third"]
    assert old.read_text().startswith('{"name": "first"')


def test_a_line_that_was_cut_off_does_not_spoil_the_next(audit: Audit, tree: Tree) -> None:
    record(audit)
    with tree.audit.open("a") as file:
        file.write('{"name": "cut o')
    record(audit, "next")
    assert tree.audit.read_text().splitlines()[1] == '{"name": "cut o'
    assert json.loads(tree.audit.read_text().splitlines()[2])["name"] == "next"


def test_a_symlink_in_its_place_is_not_followed(audit: Audit, tree: Tree, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    tree.root.mkdir()
    tree.audit.symlink_to(target)
    with pytest.raises(InvalidConfig, match=r"audit\.jsonl: not a regular file"):
        record(audit)
    assert target.read_text() == "mine"


def test_a_log_that_is_full_is_put_aside_over_a_symlink(audit: Audit, tree: Tree, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    record(audit)
    os.truncate(tree.audit, MAX_LOG)
    tree.audit.with_name("audit.jsonl.1").symlink_to(target)
    record(audit, "next")
    assert target.read_text() == "mine"
    assert tree.audit.with_name("audit.jsonl.1").lstat().st_size == MAX_LOG
    assert [line["name"] for line in lines(tree)] == ["next"]


def test_a_tree_that_lies_elsewhere_is_not_recorded_in(audit: Audit, tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    tree.root.symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidConfig, match=f"^{tree.root}: a symlink"):
        record(audit)
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_what_is_no_file_is_an_error_and_not_waited_for(audit: Audit, tree: Tree, kind: str) -> None:
    tree.root.mkdir()
    os.mkfifo(tree.audit) if kind == "fifo" else tree.audit.mkdir()
    with pytest.raises(McpdError, match=r"audit\.jsonl"):
        record(audit)


def test_a_full_disk_fails_what_is_recorded_and_leaves_no_part_of_a_line(
    audit: Audit, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(audit, "first")
    before = tree.audit.read_bytes()
    real = os.write
    written: list[int] = []

    def short(descriptor: int, data: Any) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(real(descriptor, bytes(data)[:20]))
        return written[0]

    with monkeypatch.context() as patched:
        patched.setattr("mcpd.clients.audit.os.write", short)
        with pytest.raises(NoSpace, match=r"audit\.jsonl"):
            record(audit, "second")
    assert written == [20]
    assert tree.audit.read_bytes() == before
    record(audit, "third")
    assert [line["name"] for line in lines(tree)] == ["first", "third"]


def test_many_at_once_lose_no_line(tree: Tree) -> None:
    records = [Audit(Tree(tree.root, Scope.USER), Clock()) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: record(records[number % 4], f"event{number}"), range(100)))
    assert sorted(line["name"] for line in lines(tree)) == sorted(f"event{number}" for number in range(100))
