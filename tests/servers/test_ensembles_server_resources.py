# SPDX-License-Identifier: LGPL-2.1-or-later
"""The resources of ``llm-orc`` with the SDK's client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.servers.ensembles_harness import ERAS, PAIR, UPPER, Room, invoked, read
from tests.servers.failures import refused

if TYPE_CHECKING:
    from pathlib import Path

    from mcp import Client

TEMPLATES = [
    "llm-orc://ensemble/{name}",
    "llm-orc://artifacts/{ensemble}",
    "llm-orc://artifact/{id}",
    "llm-orc://metrics/{ensemble}",
]
KEY = "sk-nobody-may-see-this"


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A project with an ensemble."""
    made = Room(tmp_path)
    made.put(PAIR)
    return made


async def all_uris(client: Client) -> list[str]:
    """Every page of the list."""
    found, cursor = [], None
    while True:
        page = await client.list_resources(cursor=cursor)
        found += [str(each.uri) for each in page.resources]
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("mode", ERAS)
async def test_all_resources_have_the_scheme(room: Room, mode: str) -> None:
    async with room.started(mode=mode) as client:
        before = await all_uris(client)
        await invoked(client, "pair", "moon")
        after = await all_uris(client)
        templates = (await client.list_resource_templates()).resource_templates
    assert all(uri.startswith("llm-orc://") for uri in after)
    assert before[:3] == ["llm-orc://ensembles", "llm-orc://profiles", "llm-orc://ensemble/pair"]
    assert set(after) - set(before) == {"llm-orc://artifacts/pair", "llm-orc://metrics/pair"}
    assert [each.uri_template for each in templates] == TEMPLATES


@pytest.mark.parametrize("mode", ERAS)
async def test_ensembles_are_listed_with_metadata(room: Room, mode: str) -> None:
    room.put("name: torn\nagents: 5\n")
    own = room.home / ".config/llm-orc/ensembles"
    own.mkdir(parents=True)
    (own / "pair.yaml").write_text(PAIR)
    async with room.started(mode=mode) as client:
        found = (await read(client, "llm-orc://ensembles"))["ensembles"]
        shadowed = await read(client, "llm-orc://ensemble/user%2Fpair")
    mine = next(each for each in found if each["qualified"] == "project/pair")
    assert (mine["name"], mine["agents"], mine["kinds"]) == ("pair", 3, ["model"])
    assert (mine["tier"], mine["project"], mine["shadowed"]) == ("project", str(room.project), False)
    assert mine["description"] == "Two readers and a summary"
    assert next(each for each in found if each["qualified"] == "user/pair")["shadowed"] is True
    assert shadowed["source"]["tier"] == "user"
    torn = next(each for each in found if each["name"] == "torn")
    assert "torn.yaml:2" in torn["problem"]
    assert {each["tier"] for each in found} == {"project", "user", "shipped"}


@pytest.mark.parametrize("mode", ERAS)
async def test_the_configuration_is_complete(room: Room, mode: str) -> None:
    async with room.started(mode=mode) as client:
        found = await read(client, "llm-orc://ensemble/pair")
        qualified = await read(client, "llm-orc://ensemble/project/pair")
    assert found["agents"][2] == {
        "name": "sum", "model_profile": "fast", "depends_on": ["first", "second"], "input_scope": "dependencies"
    }  # fmt: skip
    assert found["default_task"] == "What is there?"
    assert found["yaml"] == PAIR
    assert found["source"]["file"] == str(room.base / "ensembles/pair.yaml")
    assert "sum" in found["mermaid"]
    assert qualified == found


async def test_an_ensemble_that_cannot_be_used_says_why(room: Room) -> None:
    room.put("name: torn\nagents:\n  - {name: a}\n")
    async with room.started() as client:
        found = await read(client, "llm-orc://ensemble/torn")
    assert "torn.yaml:3" in found["problem"]
    assert found["problems"][0]["line"] == 3


@pytest.mark.parametrize("mode", ERAS)
async def test_runs_and_what_they_took(room: Room, mode: str) -> None:
    room.put("name: odd\nagents:\n  - {name: a, model_profile: broken}\n")
    async with room.started(mode=mode) as client:
        never = await read(client, "llm-orc://artifacts/pair")
        answer = await invoked(client, "pair", "moon")
        await invoked(client, "pair", "sun")
        await client.call_tool("invoke", {"ensemble_name": "odd", "input": "x"})
        artifacts = await read(client, "llm-orc://artifacts/pair")
        metrics = await read(client, "llm-orc://metrics/pair")
        failed = await read(client, "llm-orc://metrics/odd")
        artifact_id = answer["artifact_id"]
        artifact = await read(client, f"llm-orc://artifact/{artifact_id}")
        encoded = await read(client, f"llm-orc://artifact/{artifact_id.replace('/', '%2F')}")
    assert never == {"ensemble": "pair", "total": 0, "artifacts": []}
    assert artifacts["total"] == 2
    oldest = artifacts["artifacts"][-1]
    assert (oldest["id"], oldest["status"], oldest["uri"]) == (
        artifact_id, "completed", f"llm-orc://artifact/{artifact_id}"
    )  # fmt: skip
    assert oldest["cost_usd"] == 6.0
    assert oldest["timestamp"] in artifact_id
    assert artifact["results"]["first"]["response"] == "<moon>"
    assert artifact["definition"]["name"] == "pair"
    assert encoded == artifact
    assert metrics["success_rate"] == 1.0
    assert metrics["cost_usd"]["mean"] == 6.0
    assert metrics["duration_seconds"]["count"] == 2
    assert failed["success_rate"] == 0.0


@pytest.mark.parametrize("mode", ERAS)
async def test_profiles_say_whether_there_is_a_key_but_not_which(room: Room, mode: str) -> None:
    (room.base / "profiles").mkdir()
    (room.base / "profiles" / "gpt.yaml").write_text("{name: gpt, provider: openai-compatible, model: gpt-x}\n")
    (room.base / "profiles" / "claude.yaml").write_text("{name: claude, provider: anthropic, model: c}\n")
    (room.base / "profiles" / "odd.yaml").write_text(
        f"{{name: odd, provider: openai-compatible, model: m, base_url: 'https://me:{KEY}@example.com/v1'}}\n"
    )
    room.environ["OPENAI_API_KEY"] = KEY
    async with room.started(mode=mode) as client:
        found = await read(client, "llm-orc://profiles")
    profiles = {each["name"]: each for each in found["profiles"] if not each["shadowed"]}
    assert (profiles["gpt"]["has_key"], profiles["claude"]["has_key"]) == (True, False)
    assert profiles["fast"]["provider"] == "mock"
    assert profiles["gpt"]["file"] == str(room.base / "profiles/gpt.yaml")
    assert KEY not in json.dumps(found)


@pytest.mark.parametrize(("mode", "code"), [("legacy", -32002), ("2026-07-28", -32602)])
@pytest.mark.parametrize(
    "uri",
    [
        "llm-orc://ensemble/none",
        "llm-orc://ensemble/..%2F..%2Fetc%2Fpasswd",
        "llm-orc://artifacts/none",
        "llm-orc://artifact/pair%2F20200101-000000-000",
        "llm-orc://artifact/pair/../../../secret",
        "llm-orc://metrics/none",
        "llm-orc://nothing",
        "file:///etc/passwd",
    ],
)
async def test_what_there_is_not_is_not_found(room: Room, mode: str, code: int, uri: str) -> None:
    async with room.started(mode=mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.read_resource(uri)
    assert caught.value.error.code == code
    assert caught.value.error.data["uri"] == uri


async def test_names_are_completed(room: Room) -> None:
    async def complete(template: str, name: str, value: str) -> list[str]:
        ref = types.ResourceTemplateReference(type="ref/resource", uri=template)
        return (await client.complete(ref, {"name": name, "value": value})).completion.values

    async with room.started() as client:
        answer = await invoked(client, "pair", "moon")
        assert await complete("llm-orc://ensemble/{name}", "name", "pa") == ["pair"]
        assert await complete("llm-orc://artifacts/{ensemble}", "ensemble", "") == ["pair"]
        assert await complete("llm-orc://artifact/{id}", "id", "pair/2") == [answer["artifact_id"]]
        assert await complete("llm-orc://artifact/{id}", "id", "none/") == []


async def test_ids_are_completed_by_their_beginning_however_old_they_are(room: Room) -> None:
    for number in range(250):
        directory = room.base / f"artifacts/pair/20260101-000000-{number:03}"
        directory.mkdir(parents=True)
        (directory / "execution.json").write_text("{}")
    ref = types.ResourceTemplateReference(type="ref/resource", uri="llm-orc://artifact/{id}")
    async with room.started() as client:
        oldest = (await client.complete(ref, {"name": "id", "value": "pair/20260101-000000-00"})).completion
        some = (await client.complete(ref, {"name": "id", "value": "pair/"})).completion
    assert oldest.values == [f"pair/20260101-000000-00{number}" for number in range(9, -1, -1)]
    assert (len(some.values), some.has_more, oldest.has_more) == (100, True, False)


@pytest.mark.parametrize(
    "ref",
    [
        types.PromptReference(type="ref/prompt", name="review"),
        types.ResourceTemplateReference(type="ref/resource", uri="llm-orc://nothing/{name}"),
    ],
    ids=["prompt", "template"],
)
async def test_what_has_no_arguments_to_complete_is_an_invalid_one(room: Room, ref: Any) -> None:
    async with room.started() as client:
        with pytest.raises(MCPError) as caught:
            await client.complete(ref, {"name": "name", "value": ""})
    assert caught.value.error.code == -32602


async def test_the_latest_run_and_runs_by_a_qualified_name(room: Room) -> None:
    async with room.started() as client:
        answer = await invoked(client, "pair", "moon")
        # As what a power cut leaves of a run that has just begun.
        (room.base / "artifacts/pair/29990101-000000-000").mkdir()
        latest = await read(client, "llm-orc://artifact/pair/latest")
        runs = await read(client, "llm-orc://artifacts/project%2Fpair")
        numbers = await read(client, "llm-orc://metrics/project/pair")
    assert latest["id"] == answer["artifact_id"]
    assert [each["id"] for each in runs["artifacts"]] == [answer["artifact_id"]]
    assert (runs["ensemble"], numbers["ensemble"], numbers["runs"]) == ("pair", "pair", 1)


async def test_the_list_comes_in_pages(room: Room) -> None:
    for number in range(1200):
        room.put(PAIR.replace("name: pair", f"name: e{number:04}"))
    async with room.started() as client:
        first = await client.list_resources()
        found = await all_uris(client)
        with pytest.raises(MCPError) as caught:
            await client.list_resources(cursor="nonsense")
    assert len(first.resources) == 500
    assert {f"llm-orc://ensemble/e{number:04}" for number in range(1200)} <= set(found)
    assert len(found) == len(set(found))
    assert caught.value.error.code == -32602


async def test_a_hostile_file_is_a_listed_problem(room: Room) -> None:
    bomb: dict[str, Any] = {"a": "&a [x, x]"}
    (room.base / "ensembles" / "bomb.yaml").write_text(
        "\n".join([f"a: {bomb['a']}", *(f"b{i}: &b{i} [*{'a' if not i else f'b{i - 1}'}, *a]" for i in range(40))])
    )
    (room.base / "ensembles" / "link.yaml").symlink_to("/etc/passwd")
    async with room.started() as client:
        found = (await read(client, "llm-orc://ensembles"))["ensembles"]
    assert "pair" in {each["name"] for each in found}
    assert all(each["problem"] for each in found if each["name"] in {"bomb", "link"})
    assert "root:" not in json.dumps(found)


CIRCLE = """\
name: circle
agents:
  - {name: one, model_profile: fast, depends_on: [two]}
  - {name: two, model_profile: fast, depends_on: [one]}
"""


async def test_what_a_project_brings_is_no_run_of_anothers_ensemble(room: Room) -> None:
    other = room.directory / "other/.llm-orc"
    forged = json.dumps({"ensemble": "code-review", "status": "completed", "input": "x", "results": {}})
    for base, name in ((room.base, "code-review"), (other, "code-review"), (other, "pair")):
        directory = base / "artifacts" / name / "99991231-235959-999"
        directory.mkdir(parents=True)
        (directory / "execution.json").write_text(forged.replace("code-review", name))
    async with room.started("--project", str(room.project), "--project", str(other.parent)) as client:
        answer = await invoked(client, "pair", "moon")
        latest = await read(client, "llm-orc://artifact/pair/latest")
        listed = await all_uris(client)
        runs = await read(client, "llm-orc://artifacts/code-review")
        for artifact in ("code-review/99991231-235959-999", "code-review/latest", "pair/99991231-235959-999"):
            assert (await refused(client, "resume_execution", artifact_id=artifact)).data["error"] == "NotFound"
    assert latest["id"] == answer["artifact_id"]
    assert runs["total"] == 0
    assert [uri for uri in listed if "/artifacts/" in uri] == ["llm-orc://artifacts/pair"]


async def test_runs_of_a_shadowed_ensemble_have_its_whole_name(room: Room) -> None:
    other = room.directory / "other/.llm-orc"
    for name in ("ensembles", "scripts"):
        (other / name).mkdir(parents=True)
    (other / "ensembles/pair.yaml").write_text("name: pair\nagents:\n  - {name: mine, script: scripts/upper.py}\n")
    (other / "scripts/upper.py").write_text(UPPER)
    async with room.started("--project", str(room.project), "--project", str(other.parent)) as client:
        first = await invoked(client, "pair", "moon")
        second = await invoked(client, "other/pair", "moon")
        artifact = await read(client, second["artifact"])
        runs = await read(client, "llm-orc://artifacts/other%2Fpair")
        listed = await all_uris(client)
        again = await client.call_tool("resume_execution", {"artifact_id": second["artifact_id"]})
        told = await client.call_tool("analyze_execution", {"artifact_id": second["artifact_id"]})
        ref = types.ResourceTemplateReference(type="ref/resource", uri="llm-orc://artifact/{id}")
        values = (await client.complete(ref, {"name": "id", "value": "other/p"})).completion.values
    assert not first["artifact_id"].startswith("project/")
    assert second["artifact_id"].startswith("other/pair/")
    assert (artifact["id"], artifact["deliverable"]) == (second["artifact_id"], "MOON")
    assert [each["id"] for each in runs["artifacts"]] == [second["artifact_id"]]
    assert [uri for uri in listed if "/artifacts/" in uri] == [
        "llm-orc://artifacts/other%2Fpair", "llm-orc://artifacts/pair",
    ]  # fmt: skip
    assert list((again.structured_content or {})["results"]) == ["mine"]
    assert (told.structured_content or {})["artifact_id"] == second["artifact_id"]
    assert second["artifact_id"] in values


async def test_an_ensemble_in_a_circle_is_refused_with_file_and_line(room: Room) -> None:
    file = room.put(CIRCLE)
    async with room.started() as client:
        failure = await refused(client, "invoke", ensemble_name="circle", input="x")
    assert f"{file}:3" in failure.message
