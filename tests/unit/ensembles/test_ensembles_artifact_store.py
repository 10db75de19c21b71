# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is told of artifacts: which there are, each in short, and each whole; also of those of the original program."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import Busy, InvalidConfig, McpdError, NotFound
from mcpd.servers.ensembles.artifacts import execution
from mcpd.servers.ensembles.artifacts.analysis import analyze, metrics
from mcpd.servers.ensembles.artifacts.recording import markdown
from mcpd.servers.ensembles.artifacts.store import Artifacts
from tests.unit.ensembles.artifact_parts import BEGAN, ORIGINAL, STAMP, agent, artifacts, failed, keep, put, run

if TYPE_CHECKING:
    from pathlib import Path

STAMPS = [f"2026010{day}-000000-000" for day in range(1, 6)]


def test_artifacts_are_listed_with_metrics_the_newest_first(tmp_path: Path) -> None:
    for stamp in STAMPS:
        keep(tmp_path, run(agent("reader"), failed("writer", 1, 3), status="completed_with_errors"), stamp)
    listed = artifacts(tmp_path).listing("review")
    assert [each.timestamp for each in listed] == STAMPS[::-1]
    assert listed[0].payload() == {
        "id": f"review/{STAMPS[-1]}",
        "timestamp": STAMPS[-1],
        "status": "completed_with_errors",
        "started_at": "2026-05-28T20:26:40.250Z",
        "duration_seconds": 3.0,
        "cost_usd": 0.0,
        "tokens": 0,
        "agents": 2,
        "errors": 1,
        "path": str(tmp_path / "review" / STAMPS[-1]),
    }


def test_a_listing_comes_in_pages(tmp_path: Path) -> None:
    for stamp in STAMPS:
        put(tmp_path, "review", ORIGINAL, stamp)
    store = artifacts(tmp_path)
    first = store.listing("review", limit=2)
    second = store.listing("review", limit=2, before=first[-1].timestamp)
    third = store.listing("review", limit=2, before=second[-1].timestamp)
    assert [each.timestamp for each in (*first, *second, *third)] == STAMPS[::-1]
    assert store.listing("review", before=STAMPS[0]) == []


def test_artifacts_of_the_original_program_are_listed_and_measured(tmp_path: Path) -> None:
    put(tmp_path, "mixed", ORIGINAL)
    store = artifacts(tmp_path)
    [listed] = store.listing("mixed")
    assert (listed.status, listed.seconds, listed.cost_usd, listed.tokens, listed.errors) == (
        "completed_with_errors", 2.32, 0.5, 10, 1,
    )  # fmt: skip
    measured = metrics([listed])
    assert measured["success_rate"] == 0.0
    assert measured["agents"]["fetcher"]["mean_duration_seconds"] == 0.25
    assert store.read(listed.id) == ORIGINAL
    assert store.earlier(listed.id).input == '{"data": "test data"}'
    told = analyze(ORIGINAL)
    assert told["failures"][0]["message"] == "Agent execution timed out after 2 seconds"
    assert told["critical_path"] == []
    assert "Agent execution timed out" in markdown(ORIGINAL)


def test_the_count_of_artifacts_is_by_ensemble_in_the_first_root_that_has_any(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, "review", ORIGINAL, STAMPS[0])
    put(there, "review", ORIGINAL, STAMPS[1])
    put(there, "mixed", ORIGINAL)
    (there / "empty").mkdir()
    (here / "review" / "not a run").mkdir()
    store = artifacts(here, there, tmp_path / "missing")
    assert store.ensembles() == {"mixed": 1, "review": 1}
    assert (store.count("review"), store.count("empty"), store.count("../here/review")) == (1, 0, 0)
    assert [each.path.parents[1] for each in store.listing("review")] == [here]
    assert store.ids("review") == [f"review/{STAMPS[0]}"]


def test_runs_of_an_ensemble_are_those_in_its_own_root(tmp_path: Path) -> None:
    own, cloned = tmp_path / "own", tmp_path / "cloned"
    put(own, "review", ORIGINAL, STAMPS[0])
    put(cloned, "review", {"ensemble": "review", "status": "forged"}, "99991231-000000-000")
    put(cloned, "deploy", ORIGINAL)
    put(cloned, "gone", ORIGINAL)
    homes = {"review": own, "deploy": own, "shipped/review": own, "app/deploy": cloned}
    store = Artifacts(lambda: [own, cloned], lambda: BEGAN, lambda: homes)
    assert store.names() == ["app/deploy", "gone", "review"]
    assert store.resolved("review/latest") == store.resolved("shipped/review/latest") == f"review/{STAMPS[0]}"
    with pytest.raises(NotFound):
        store.read("review/99991231-000000-000")
    with pytest.raises(NotFound, match="has not run"):
        store.resolved("deploy/latest")
    assert store.resolved("app/deploy/latest") == f"app/deploy/{STAMP}"
    assert [each.id for each in store.listing("app/deploy")] == [f"app/deploy/{STAMP}"]
    assert store.earlier(f"app/deploy/{STAMP}").ensemble == "mixed"
    assert store.read(f"gone/{STAMP}") == ORIGINAL
    assert (store.name("deploy", cloned), store.name("review", own)) == ("app/deploy", "review")
    assert (store.is_in(f"app/deploy/{STAMP}", cloned), store.is_in(f"app/deploy/{STAMP}", own)) == (True, False)


def test_what_is_left_of_an_ensemble_that_has_gone_is_the_users_before_a_projects(tmp_path: Path) -> None:
    own, cloned = tmp_path / "own", tmp_path / "cloned"
    put(own, "gone", ORIGINAL, STAMPS[0])
    put(cloned, "gone", ORIGINAL, STAMPS[1])
    assert artifacts(own, cloned).ids("gone") == [f"gone/{STAMPS[0]}"]
    assert artifacts(own, cloned).ids("app/gone") == []


def test_a_listing_does_not_look_into_directories_without_runs_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "review", ORIGINAL, STAMPS[0])
    for stamp in STAMPS[1:]:
        (tmp_path / "review" / stamp).mkdir()
    store = artifacts(tmp_path)
    assert [each.timestamp for each in store.listing("review")] == [STAMPS[0]]
    monkeypatch.setattr("mcpd.servers.ensembles.artifacts.store.MAX_EMPTY", 2)
    assert store.listing("review") == []
    with pytest.raises(NotFound):
        store.resolved("review/latest")


def test_what_holds_too_many_values_is_not_parsed_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "review", b'{"a": [' + b"[]," * 600_000 + b"1]}")
    put(tmp_path, "long", b'{"input": "' + b'a, [\\" ' * 200_000 + b'"}')
    monkeypatch.setattr("mcpd.servers.ensembles.artifacts.stored.load_json", lambda *_: {"parsed": True})
    store = artifacts(tmp_path)
    with pytest.raises(InvalidConfig, match="values"):
        store.read(f"review/{STAMP}")
    # What looks like values in a text is none.
    assert store.read(f"long/{STAMP}") == {"parsed": True}


def test_what_cannot_be_read_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = put(tmp_path, "review", b"{" * 10)
    os.utime(directory / "execution.json", (BEGAN, BEGAN))
    store = artifacts(tmp_path)
    [first] = store.listing("review")
    assert first.status == "unreadable"
    monkeypatch.setattr("mcpd.servers.ensembles.artifacts.stored.load_json", lambda *_: pytest.fail("read again"))
    assert store.listing("review") == [first]


def test_a_listing_counts_values_that_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stamp in STAMPS[:2]:
        put(tmp_path, "review", b'{"a": [' + b"0," * 10_000 + b"0]}", stamp)
    put(tmp_path, "dense", b'{"a": [' + b"0," * 60_000 + b"0]}")
    store = artifacts(tmp_path)
    assert [each.status for each in store.listing("review")] == ["unknown", "unknown"]
    [dense] = store.listing("dense")
    assert dense.problem is not None
    assert "values" in dense.problem
    assert store.read(dense.id)["a"][0] == 0
    monkeypatch.setattr("mcpd.servers.ensembles.artifacts.store.MAX_LISTING", 100_000)
    assert [each.status for each in artifacts(tmp_path).listing("review")] == ["unknown", "unreadable"]


def test_a_run_whose_input_was_cut_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    document = execution.ended(run(agent("reader"), input="x" * 100_000))
    data = execution.encoded(document, 90_000)
    put(tmp_path, "review", data)
    kept = artifacts(tmp_path).read(f"review/{STAMP}")
    assert (kept["input_cut"], len(kept["input"]) < 100_000) == (True, True)
    with pytest.raises(InvalidConfig, match="beginning of its input"):
        artifacts(tmp_path).earlier(f"review/{STAMP}")


def test_the_latest_is_the_newest_of_which_there_is_anything(tmp_path: Path) -> None:
    put(tmp_path, "review", ORIGINAL, STAMPS[0])
    (tmp_path / "review" / STAMPS[1]).mkdir()
    (tmp_path / "empty" / STAMPS[0]).mkdir(parents=True)
    store = artifacts(tmp_path)
    assert store.names() == ["empty", "review"]
    assert store.resolved("review/latest") == f"review/{STAMPS[0]}"
    for name in ("empty", "none", ".."):
        with pytest.raises(NotFound, match="has not run"):
            store.resolved(f"{name}/latest")


async def test_what_goes_on_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    store = artifacts(tmp_path)
    async with store.recording(tmp_path, "review", "", {}) as recording:
        assert recording.id is not None
        with pytest.raises(Busy, match="still goes on"):
            store.earlier(recording.id)
    assert store.earlier(recording.id).results == {}


def test_an_artifact_that_has_changed_is_read_again(tmp_path: Path) -> None:
    directory = keep(tmp_path, run(agent("reader")))
    os.utime(directory / "execution.json", (BEGAN, BEGAN))
    store = artifacts(tmp_path)
    assert [each.status for each in store.listing("review")] == ["completed"]
    (directory / "execution.json").write_bytes(json.dumps({"status": "failed"}).encode())
    assert [each.status for each in store.listing("review")] == ["failed"]
    assert [each.status for each in store.listing("review")] == ["failed"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "review",
        "review/",
        "/etc/passwd",
        f"review/{STAMP}/x",
        f"review//{STAMP}",
        f"re/{STAMP}\n",
    ],
)
def test_ids_are_an_ensemble_and_a_timestamp(tmp_path: Path, name: str) -> None:
    keep(tmp_path, run(agent("reader")))
    with pytest.raises(NotFound, match="no artifact"):
        artifacts(tmp_path).read(name)


@pytest.mark.parametrize("name", ["review", "../review", "app/review"])
def test_what_is_not_there_is_not_found(tmp_path: Path, name: str) -> None:
    keep(tmp_path / "review", run(agent("reader")))
    with pytest.raises(NotFound, match="no such artifact"):
        artifacts(tmp_path / "review").read(f"{name}/20010101-000000-000")
    with pytest.raises(NotFound, match="has not run"):
        artifacts(tmp_path / "review").resolved(f"x/{name}/latest")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"status": NaN}', "not a JSON number"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "nested deeper"),
        (b"[" * 40_000, "nested too deeply"),
        (b'{"a": [' + b"1," * 600_000 + b"1]}", "values"),
        (b"\xff", "not UTF-8"),
    ],
    ids=["empty", "list", "nan", "deep", "deeper", "many", "bytes"],
)
def test_what_is_no_document_is_listed_with_its_problem(tmp_path: Path, data: bytes, problem: str) -> None:
    put(tmp_path, "review", data)
    store = artifacts(tmp_path)
    [listed] = store.listing("review")
    assert listed.status == "unreadable"
    assert listed.problem is not None
    assert problem in listed.problem
    assert listed.payload()["problem"] == listed.problem
    with pytest.raises(InvalidConfig, match=problem):
        store.read(listed.id)
    assert metrics([listed])["success_rate"] is None


def test_what_no_json_can_carry_is_taken_out(tmp_path: Path) -> None:
    put(tmp_path, "review", rb'{"input": "a\ud800", "\udfff": [1e999, {"x": -1e999}], "results": {}}')
    assert artifacts(tmp_path).read(f"review/{STAMP}") == {"input": "a?", "?": [None, {"x": None}], "results": {}}


def test_what_is_too_large_is_listed_with_its_problem(tmp_path: Path) -> None:
    directory = put(tmp_path, "review", ORIGINAL)
    os.truncate(directory / "execution.json", 65 * 1024 * 1024)
    [listed] = artifacts(tmp_path).listing("review")
    assert listed.status == "unreadable"
    with pytest.raises(InvalidConfig, match="larger than"):
        artifacts(tmp_path).read(listed.id)


@pytest.mark.parametrize(
    ("document", "status"), [(ORIGINAL, "completed_with_errors"), (b"[" * 1000, "unreadable")], ids=["whole", "broken"]
)
def test_one_listing_does_not_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: Any, status: str
) -> None:
    for stamp in STAMPS:
        directory = put(tmp_path, "review", document, stamp)
        (directory / "agents.jsonl").write_bytes(b" " * 1000)
    size = (directory / "execution.json").stat().st_size + 1000
    monkeypatch.setattr("mcpd.servers.ensembles.artifacts.store.MAX_LISTING", 2 * size - 1000)
    monkeypatch.setattr("mcpd.servers.ensembles.artifacts.store.VALUE", 0)
    listed = artifacts(tmp_path).listing("review")
    assert [each.status for each in listed] == [status] * 2 + ["unreadable"] * 3
    assert [bool(each.problem and "too many for a list" in each.problem) for each in listed] == [False] * 2 + [True] * 3


@pytest.mark.parametrize("what", ["root", "ensemble", "run", "file", "project"])
def test_no_symlink_leads_out(tmp_path: Path, what: str) -> None:
    outside = tmp_path / "outside"
    secret = put(outside / ".llm-orc" / "artifacts", "review", {"ensemble": "secret"})
    root = tmp_path / "project" / ".llm-orc" / "artifacts"
    place, target = {
        "project": (root.parent, outside / ".llm-orc"),
        "root": (root, outside / ".llm-orc" / "artifacts"),
        "ensemble": (root / "review", secret.parent),
        "run": (root / "review" / STAMP, secret),
        "file": (root / "review" / STAMP / "execution.json", secret / "execution.json"),
    }[what]
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    store = artifacts(root)
    assert [each.status for each in store.listing("review")] == (["unreadable"] if what == "file" else [])
    assert store.ensembles() == ({"review": 1} if what == "file" else {})
    with pytest.raises(NotFound):
        store.read(f"review/{STAMP}")


@pytest.mark.parametrize("what", ["ensemble", "run", "file"])
def test_no_symlink_is_another_name_of_an_artifact(tmp_path: Path, what: str) -> None:
    put(tmp_path, "other", ORIGINAL, STAMPS[0])
    place, target = {
        "ensemble": ("review", "other"),
        "run": (f"review/{STAMPS[0]}", f"../other/{STAMPS[0]}"),
        "file": (f"review/{STAMPS[0]}/execution.json", "elsewhere.json"),
    }[what]
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).symlink_to(target)
    (tmp_path / place).with_name("elsewhere.json").write_bytes(json.dumps(ORIGINAL).encode())
    store = artifacts(tmp_path)
    assert [each.status for each in store.listing("review")] == (["unreadable"] if what == "file" else [])
    with pytest.raises(NotFound):
        store.read(f"review/{STAMPS[0]}")


def test_a_run_that_ends_while_it_is_looked_at_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = put(tmp_path, "review", {"ensemble": "review", "status": "running"})

    def ends(_: int) -> bool:
        (directory / "execution.json").write_bytes(json.dumps(ORIGINAL).encode())
        return False

    monkeypatch.setattr("mcpd.servers.ensembles.artifacts.places.goes_on", ends)
    assert artifacts(tmp_path).read(f"review/{STAMP}") == ORIGINAL


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    directory = tmp_path / "review" / STAMP
    directory.mkdir(parents=True)
    os.mkfifo(directory / "execution.json")
    [listed] = artifacts(tmp_path).listing("review")
    assert listed.status == "unreadable"
    with pytest.raises(McpdError, match="not a regular file"):
        artifacts(tmp_path).read(listed.id)


def test_a_lock_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    directory = put(tmp_path, "review", {"ensemble": "review", "status": "running"})
    for name in ("run.lock", "agents.jsonl"):
        os.mkfifo(directory / name)
    assert artifacts(tmp_path).read(f"review/{STAMP}") == {
        "ensemble": "review", "status": "interrupted", "results": {},
    }  # fmt: skip


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def _members(*names: str) -> Any:
    return st.dictionaries(st.sampled_from(names), ANYTHING, max_size=len(names))


AGENTS = _members("response", "status", "error", "fault", "depends_on", "started_at", "completed_at", "attempts",
                  "usage", "instances", "child", "fallback", "reused", "model", "kind")  # fmt: skip
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "ensemble": ANYTHING,
        "status": st.sampled_from(["completed", "running", "failed"]) | ANYTHING,
        "input": ANYTHING,
        "results": st.dictionaries(st.text(), AGENTS | ANYTHING, max_size=4) | ANYTHING,
        "metadata": _members("started_at", "completed_at", "duration", "usage") | ANYTHING,
        "deliverable": ANYTHING,
        "fault": ANYTHING,
        "definition": ANYTHING,
    },
)


@given(document=DOCUMENTS)
def test_whatever_is_in_a_document_can_be_told(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    root = tmp_path_factory.mktemp("artifacts")
    put(root, "review", document)
    store = artifacts(root)
    [listed] = store.listing("review")
    read = store.read(listed.id)
    for told in (listed.payload(), metrics([listed]), read, analyze(read)):
        json.dumps(told, allow_nan=False, ensure_ascii=False).encode()
    assert markdown(read).startswith("# ")
    store.earlier(listed.id)
