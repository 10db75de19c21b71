# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl client draft, validate and publish: from what is installed to a signed configuration, and nothing else."""

from __future__ import annotations

import json

import pytest

from mcpd.paths import Scope
from tests.cli.client_machine import NOTES, Machine

SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
OTHER = {"command": "other", "args": ["serve"], "env": {"OTHER_TOKEN": "${env:OTHER_TOKEN}"}}


def _audit(machine: Machine) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (machine.tree / "audit.jsonl").read_text().splitlines()]
    return [(line["name"], line["fields"]["outcome"]) for line in lines if line["name"] != "initialize_keys"]


def test_a_draft_is_begun_changed_published_and_gone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    none = machine("draft", "show", "cursor")
    assert (none.code, none.out) == (0, "")
    assert "'mcpctl client draft add cursor ID' creates one" in none.err
    assert not machine.tree.exists()

    added = machine.json("draft", "add", "cursor", "notes", "--name", "mine", "--variable", "NOTES_DIR")
    entries = {"notes": NOTES, "mine": {**NOTES, "env": {"NOTES_DIR": "${env:NOTES_DIR}"}}}
    assert added["draft"] == {"mcpServers": entries}
    other = machine("draft", "add", "cursor", "other", "--entry", "-", stdin=json.dumps(OTHER))
    assert (other.code, other.err) == (0, "")
    assert other.out.startswith("Added other to the draft for cursor/default.\n")
    assert "'mcpctl client publish cursor' signs and publishes it.\n" in other.out
    removed = machine.json("draft", "remove", "cursor", "notes", "mine")
    ask = {"client_id": "cursor"}
    tools = machine.tools(monkeypatch)
    assert removed == tools.call("view_draft_config", ask) == machine.json("draft", "show", "cursor")
    assert (removed["exists"], removed["draft"]) == (True, {"mcpServers": {"other": OTHER}})
    shown = machine("draft", "show", "cursor").out
    assert shown.splitlines()[1].split() == ["other", "OTHER_TOKEN", "other", "serve"]

    done = machine.json("publish", "cursor", "--message", "Only the other")
    assert (done["published"], done["metadata"]["changelog"]) == (True, "Only the other")
    assert done["payload"] == {"mcpServers": {"other": OTHER}}
    config = tools.call("get_config", ask)
    assert {name: done[name] for name in config} == config
    assert done.keys() - config.keys() == {"published", "dropped", "warnings"}
    assert not machine.json("draft", "show", "cursor")["exists"]
    assert _audit(machine) == [("publish_config", "ok")]


def test_a_draft_begins_with_what_is_published_and_is_dropped(machine: Machine) -> None:
    machine.json("publish", "cursor")
    release = machine.json("show", "cursor")
    machine.install("later")
    entry = machine.root / "entry.json"
    entry.write_text(json.dumps(OTHER))
    found = machine.json("draft", "add", "cursor", "x", "--entry", str(entry))
    assert found["draft"]["mcpServers"] == {"notes": NOTES, "x": OTHER}
    assert found["base_artifact_id"] == release["artifact_id"]
    assert found["changes"]["servers_added"] == ["x"]
    cleared = machine("draft", "clear", "cursor")
    assert (cleared.out, cleared.err) == ("Deleted the draft for cursor/default.\n", "")
    assert machine.json("draft", "clear", "cursor") == {
        "client_id": "cursor",
        "profile_id": "default",
        "cleared": False,
    }
    assert machine.json("show", "cursor") == release


def test_every_profile_has_a_draft_of_its_own(machine: Machine) -> None:
    ended = machine("draft", "add", "cursor", "notes", "--name", "again", "--profile", "dev")
    assert "'mcpctl client publish cursor --profile dev' signs and publishes it.\n" in ended.out
    assert not machine.json("draft", "show", "cursor")["exists"]
    assert "there is no draft" in machine("draft", "clear", "cursor").err.lower()
    published = machine("publish", "cursor", "--profile", "dev")
    assert published.out.startswith("Published cursor/dev: 2 servers, ")
    assert "'mcpctl client deploy cursor --profile dev' writes it to your client's file.\n" in published.out


@pytest.mark.parametrize(
    ("argv", "stdin", "code", "error", "message"),
    [
        (["add", "cursor", "nope"], "", 4, "server_not_found", "'mcpctl list' lists the servers"),
        (
            ["remove", "cursor", "nope"], "", 4, "server_not_found",
            "'mcpctl client draft show cursor' lists the servers",
        ),
        (["add", "cursor", "notes", "--variable", "A=b"], "", 2, "invalid_input", "A=b"),
        (["add", "cursor", "x", "--entry", "-"], "[1]", 2, "invalid_input", "standard input: not a JSON object"),
        (["add", "cursor", "x", "--entry", "-"], "{", 2, "invalid_input", "standard input"),
        (["add", "cursor", "x", "--entry", "no-such"], "", 4, None, "there is no file no-such"),
        (
            ["add", "cursor", "x", "--entry", "-"],
            json.dumps({"command": "x", "args": ["--token", SECRET]}), 1, "validation_failed", "args[1]",
        ),
        (
            ["add", "cursor", "x", "--entry", "-"],
            json.dumps({"command": "x", "env": {"API_KEY": "hush hush"}}), 1, "validation_failed", "API_KEY",
        ),
    ],
    ids=["unknown", "not-in-it", "variable", "list", "no-json", "no-file", "token", "named-secret"],
)  # fmt: skip
def test_what_cannot_be_in_a_draft_begins_none(
    machine: Machine, argv: list[str], stdin: str, code: int, error: str | None, message: str
) -> None:
    ended = machine("draft", *argv, "--json", stdin=stdin)
    assert ended.code == code
    if error is not None:
        assert ended.json["error"] == error
    assert message in ended.err
    assert ended.err.count("\n") == 1
    for text in (ended.out, ended.err):
        assert SECRET not in text
        assert "hush" not in text
    drafts = machine.tree / "drafts"
    assert not drafts.exists() or not [*drafts.rglob("*.json")]


def test_all_that_are_named_are_removed_or_none(machine: Machine) -> None:
    ended = machine("draft", "remove", "cursor", "notes", "nope")
    assert (ended.code, ended.out) == (4, "")
    assert "has no server 'nope'" in ended.err
    assert not machine.json("draft", "show", "cursor")["exists"]


def test_what_is_wrong_is_told_by_its_code(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = {
        "mcpServers": {
            "bad": {"args": ["x"]},
            "env": {"command": "x", "args": [], "env": {"A": 1}},
            "key": {"command": "x", "args": [], "env": {"MY_TOKEN": SECRET}},
        }
    }
    file = machine.root / "payload.json"
    file.write_text(json.dumps(payload))
    ended = machine("validate", "cursor", "--file", str(file))
    assert ended.code == 1
    assert ended.err == ""
    for code in ("MISSING_COMMAND", "INVALID_ENV_TYPE", "SECRET_VALUE"):
        assert f"({code})\n" in ended.out
    assert SECRET not in ended.out
    as_json = machine("validate", "cursor", "--file", "-", "--json", stdin=file.read_text())
    assert as_json.code == 1
    ask = {"client_id": "cursor", "payload": payload}
    assert as_json.json == machine.tools(monkeypatch).call("validate_config", ask)
    assert machine.json("validate", "cursor") == machine.tools(monkeypatch).call(
        "validate_config", {"client_id": "cursor"}
    )
    assert machine("validate", "cursor").out == "cursor/default can be published and deployed.\n"
    assert not machine.tree.exists()


def test_publishing_says_what_it_did_and_how_to_go_on(machine: Machine) -> None:
    first = machine("publish", "cursor")
    assert (first.code, first.err) == (0, "")
    said, way = first.out.splitlines()
    assert said.startswith("Published cursor/default: 1 server, ")
    assert way == "'mcpctl client deploy cursor' writes it to your client's file."
    artifact = machine.json("show", "cursor")["artifact_id"]
    assert said.endswith(artifact[:12])
    again = machine.json("publish", "cursor")
    assert (again["published"], again["artifact_id"]) == (False, artifact)
    machine.install("web")
    both = machine("publish", "cursor", "zed", "cursor")
    assert both.code == 0
    assert [line.split(":")[0] for line in both.out.splitlines()] == [
        "Published cursor/default",
        "Published zed/default",
    ]
    assert [each["published"] for each in machine.json("publish", "cursor", "zed")["published"]] == [False, False]
    for argv in ([], ["--all", "cursor"]):
        assert "'mcpctl client list' lists them" in machine.refused("publish", *argv, code=2)


def test_all_is_what_was_published_or_has_a_draft_and_no_draft_is_lost(machine: Machine) -> None:
    nothing = machine("publish", "--all")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err.startswith("There is nothing new to publish; ")
    machine.json("publish", "cursor", "zed")
    machine.json("draft", "add", "codex", "notes", "--name", "drafted", "--profile", "dev")
    machine.json("draft", "add", "amp", "notes", "--name", "chosen")
    chosen = machine.json("publish", "amp")
    machine.install("web")
    done = machine.json("publish", "--all")["published"]
    places = {(each["client_id"], each["profile_id"]): [*each["payload"]["mcpServers"]] for each in done}
    assert places == {
        ("cursor", "default"): ["notes", "web"],
        ("zed", "default"): ["notes", "web"],
        ("codex", "dev"): ["drafted", "notes"],
    }
    assert machine.json("show", "amp") == {name: chosen[name] for name in machine.json("show", "amp")}
    assert machine.json("publish", "--all", "--profile", "dev") == {"published": []}
    every = machine.json("publish", "--all", "--from-installed")["published"]
    dropped = {each["client_id"]: each["dropped"] for each in every if each["profile_id"] == "default"}
    assert dropped == {"amp": ["chosen"], "cursor": [], "zed": []}
    assert [*machine.json("show", "amp")["payload"]["mcpServers"]] == ["notes", "web"]


def test_what_was_made_of_a_draft_is_not_discarded_by_publishing(machine: Machine) -> None:
    machine.json("draft", "add", "cursor", "notes", "--name", "chosen")
    chosen = machine.json("publish", "cursor")
    machine.install("web")
    for argv in (["publish", "cursor"], ["publish", "cursor", "zed"]):
        ended = machine(*argv)
        assert ended.code == 2
        assert "cursor/default was made from a draft, which publishing the installed servers would discard" in ended.err
        assert "Added web; removed chosen" in ended.err
        assert "'mcpctl client publish cursor --profile default --from-installed'" in ended.err
    refused = machine("publish", "cursor", "--json").json
    assert (refused["error"], refused["details"]["dropped"]) == ("invalid_input", ["chosen"])
    assert refused["details"]["changes"]["servers_added"] == ["web"]
    assert machine.json("show", "cursor")["artifact_id"] == chosen["artifact_id"]
    assert _audit(machine)[-1] == ("publish_config", "refused")

    machine.json("draft", "add", "cursor", "web")
    assert "has a draft" in machine.refused("publish", "cursor", "--from-installed", code=2)
    machine.json("draft", "clear", "cursor")
    done = machine("publish", "cursor", "--from-installed")
    assert done.code == 0
    assert f"this replaces {chosen['artifact_id'][:12]}, which was made from a draft: Added web; removed" in done.err
    assert [*machine.json("show", "cursor")["payload"]["mcpServers"]] == ["notes", "web"]
    assert machine.json("publish", "cursor")["published"] is False


def test_a_draft_that_is_what_is_installed_stays_a_choice(machine: Machine) -> None:
    machine.json("draft", "add", "cursor", "notes")
    machine.json("publish", "cursor")
    assert machine.json("publish", "cursor")["published"] is False
    machine.install("web")
    assert "--from-installed" in machine.refused("publish", "cursor", code=2)


def test_what_was_made_of_a_draft_is_not_discarded_either_when_it_cannot_be_verified(machine: Machine) -> None:
    machine.json("draft", "add", "cursor", "notes", "--name", "chosen")
    artifact = machine.json("publish", "cursor")["artifact_id"]
    (machine.tree / f"artifacts/{artifact}.json").write_text("{}")
    assert "would discard: it cannot be verified" in machine("publish", "cursor").err
    assert machine("publish", "cursor", "--from-installed").code == 0
    assert [*machine.json("show", "cursor")["payload"]["mcpServers"]] == ["notes"]


def test_one_that_cannot_be_published_stops_no_other(machine: Machine) -> None:
    machine.policy('[servers]\nforbidden = ["bad*"]\n')
    machine.json("draft", "add", "cursor", "notes", "--name", "badly")
    ended = machine("publish", "curser", "cursor", "zed", "--json")
    assert ended.code == 4
    assert [each["client_id"] for each in ended.json["published"]] == ["zed"]
    lines = ended.err.splitlines()
    assert len(lines) == 2
    assert "did you mean 'cursor'?" in lines[0]
    assert "is forbidden by 'bad*'" in lines[1]
    assert machine.json("draft", "show", "cursor")["exists"]


def test_each_unknown_client_is_told_what_could_have_been_meant(machine: Machine) -> None:
    ended = machine("publish", "curser", "zedd")
    assert (ended.code, ended.out) == (4, "")
    assert [line.partition("did you mean ")[2].partition("?")[0] for line in ended.err.splitlines()] == [
        "'cursor'",
        "'zed'",
    ]


def test_what_the_policy_forbids_is_refused_and_recorded(machine: Machine) -> None:
    machine.policy('[commands]\nallowed = ["mcpctl"]\n')
    machine.policy('[permissions]\nforbidden = ["network"]\n', Scope.USER)
    machine.json("draft", "add", "cursor", "other", "--entry", "-", stdin=json.dumps(OTHER))
    shown = machine("validate", "cursor")
    assert shown.code == 1
    assert "policy: server 'other': the command 'other' is not allowed" in shown.out
    ended = machine("publish", "cursor", "--json")
    assert ended.code == 3
    assert ended.json["error"] == "policy_violation"
    assert [each["rule"] for each in ended.json["details"]["violations"]] == ["commands.allowed"]
    assert f"commands.allowed in {machine.root}/etc/mcp/policy.toml" in ended.err
    assert _audit(machine) == [("publish_config", "refused")]
    assert not (machine.tree / "index").exists()

    machine.policy("[comands]\n")
    broken = machine.refused("publish", "cursor", code=1)
    assert f"{machine.root}/etc/mcp/policy.toml: comands: unknown rule" in broken
    machine.policy("")
    assert machine("publish", "cursor").code == 0


def test_a_users_policy_narrows_the_machines_and_does_not_widen_it(machine: Machine) -> None:
    machine.install("web", permissions=["network"])
    machine.policy('[sources]\nallowed = ["git:*"]\n')
    machine.policy('[sources]\nallowed = ["*"]\n[permissions]\nforbidden = ["network"]\n', Scope.USER)
    first = machine.json("show", "cursor")
    assert [*first["payload"]["mcpServers"]] == ["notes"]
    assert "permissions.forbidden" in machine.refused("publish", "cursor", code=3)
    machine.policy("", Scope.USER)
    assert machine("publish", "cursor").code == 0
    machine.json("draft", "add", "cursor", "other", "--entry", "-", stdin=json.dumps(OTHER))
    assert "sources.allowed" in machine.refused("publish", "cursor", code=3)


def test_a_broken_draft_says_how_to_be_rid_of_it(machine: Machine) -> None:
    machine.json("draft", "add", "cursor", "notes", "--name", "more")
    draft = machine.tree / "drafts/cursor/default.json"
    draft.write_text('{"payload": ')
    for argv in (["draft", "show", "cursor"], ["publish", "cursor"]):
        assert str(draft) in machine.refused(*argv, code=1)
    assert machine("draft", "clear", "cursor").code == 0
    assert machine("publish", "cursor").code == 0


def test_what_does_not_fit_the_client_is_a_warning_or_refused(machine: Machine) -> None:
    passed = machine("draft", "add", "zed", "notes", "--variable", "NOTES_DIR", "--json")
    assert passed.code == 0
    assert "NOTES_DIR" in " ".join(passed.json["warnings"])
    assert passed.json["draft"]["mcpServers"]["notes"] == NOTES
    many = {f"s{number}": {"command": "mcpctl", "args": ["run", "notes"]} for number in range(21)}
    ended = machine("validate", "cursor", "--file", "-", "--json", stdin=json.dumps({"mcpServers": many}))
    assert [each["code"] for each in ended.json["errors"]] == ["TOO_MANY_SERVERS"]
