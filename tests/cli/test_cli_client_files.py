# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl client detect, diff, drift, undo and history: the clients' own files, which come back byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpd.paths import Scope
from tests.cli.client_machine import MINE, Machine

ODD = '\n{"mcpServers":  {"mine" : {"command": "mine"} ,} // odd\r\n}\t'
"""A file that no program would write again as it is."""


def _rows(out: str) -> dict[str, list[str]]:
    """The lines of a table below its headings, by their first column."""
    return {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}


def test_the_clients_one_has_are_found_and_a_broken_one_stops_no_other(machine: Machine) -> None:
    none = machine("detect")
    assert (none.code, none.out) == (0, "")
    assert none.err.startswith("None of the known clients was found; 'mcpctl client list' shows ")
    machine.write(json.dumps({"mcpServers": {"mine": MINE}}))
    machine.json("deploy", "cursor", "--yes")
    broken = machine.home / ".codex/config.toml"
    machine.write("[mcp_servers\n", broken)
    (machine.home / ".config/goose").mkdir(parents=True)
    program = machine.programs / "zed"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    shown, ended = machine("detect"), machine("detect", "--json")
    for each in (shown, ended):
        assert each.code == 0
        assert each.err.count("\n") == 1
        assert each.err.startswith(f"warning: {broken}:1")
    found = {client["client_id"]: client for client in ended.json["clients"]}
    assert ended.json["count"] == len(found) == 4
    states = {name: (found[name]["exists"], found[name]["servers"], found[name]["deployed_profile"]) for name in found}
    assert states == {
        "cursor": (True, 2, "default"),
        "codex": (True, None, None),
        "goose": (False, 0, None),
        "zed": (False, 0, None),
    }
    assert found["zed"]["programs"] == [str(program)]
    assert found["codex"]["problem"].startswith(str(broken))
    assert _rows(shown.out) == {
        "cursor": ["2", "default", "~/.cursor/mcp.json"],
        "codex": ["broken", "-", "~/.codex/config.toml"],
        "goose": ["no", "file", "-", "~/.config/goose/config.yaml"],
        "zed": ["no", "file", "-", "~/.config/zed/settings.json"],
    }


@pytest.mark.parametrize("leads_to", ["dotfiles.json", "nowhere"])
def test_a_symlink_is_not_called_broken(machine: Machine, leads_to: str) -> None:
    machine.write("{}", machine.home / ".cursor/dotfiles.json")
    machine.cursor.symlink_to(leads_to)
    found = machine("detect")
    assert _rows(found.out) == {"cursor": ["symlink", "-", "~/.cursor/mcp.json"]}
    assert found.err.startswith(f"warning: {machine.cursor}: a symlink, ")
    assert f"--file {machine.cursor.with_name(leads_to)} to change its target" in found.err


def test_the_difference_is_that_of_the_servers_that_are_mcpctls(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install("web")
    missing, plan = machine("diff", "cursor"), machine("deploy", "cursor", "--dry-run")
    assert (missing.code, missing.err) == (0, "")
    first, *rest, last = missing.out.splitlines()
    assert (first, last) == (
        "cursor/default, ~/.cursor/mcp.json: outdated", "'mcpctl client deploy cursor' writes it.",
    )  # fmt: skip
    assert rest == plan.out.splitlines()
    machine.write(json.dumps({"mcpServers": {"mine": MINE}}))
    machine.json("deploy", "cursor", "--yes")
    same = machine("diff", "cursor", "--json")
    assert (same.code, same.json["status"], same.json["diff"]["servers_unchanged"]) == (
        0, "up-to-date", ["notes", "web"],
    )  # fmt: skip
    ask = {"client_id": "cursor", "local_payload": machine.json("show", "cursor")["payload"]}
    report = machine.tools(monkeypatch).call("diff_config", ask)
    assert same.json == report | {"kept": [], "restored": [], "left": []}

    servers = machine.servers()
    servers["notes"] |= {"env": {"API_TOKEN": "hush hush"}, "args": ["run", "else"]}
    machine.write(json.dumps({"mcpServers": servers}))
    changed = machine.json("diff", "cursor")
    assert changed["restored"] == ["notes"]
    assert changed["diff"]["servers_modified"] == [
        {"server_id": "notes", "changes": [{"path": "args[1]", "old_value": "else", "new_value": "notes"}]}
    ]
    before = machine.json("show", "cursor")["artifact_id"]
    machine.json("draft", "remove", "cursor", "web")
    machine.json("publish", "cursor")
    fewer = machine.json("diff", "cursor")
    assert (fewer["status"], fewer["diff"]["servers_removed"]) == ("outdated", ["web"])
    old = machine("diff", "cursor", "--artifact", before)
    assert old.out.splitlines()[:2] == [f"cursor/default, {before[:12]}: outdated", "- web"]
    assert "deploy" not in old.out
    ask = {"client_id": "cursor", "local_artifact_id": before}
    assert machine.json("diff", "cursor", "--artifact", before) == machine.tools(monkeypatch).call("diff_config", ask)


def test_what_a_file_keeps_secret_is_in_no_difference(machine: Machine) -> None:
    machine.install("web")
    machine.install("odd")
    machine.json("draft", "add", "cursor", "notes", "--variable", "A")
    machine.json("draft", "add", "cursor", "web", "--variable", "NOTES_DIR")
    machine.json("draft", "add", "cursor", "odd")
    machine.json("publish", "cursor")
    machine.json("deploy", "cursor", "--yes")
    theirs = {
        "notes": {
            "command": "npx", "args": ["notes", "--token", "hush1"],
            "env": {"A": "hush2", "B": "${env:B}", "C-D": "hush3"},
        },
        "web": {"url": "https://x/?token=hush4", "headers": {"Authorization": "Bearer hush5", "X": "Bearer ${env:X}"}},
        "odd": {"cmd": ["hush6"], "environment": {"PIN": 555123}, "apiKey": "hush7", "on": True},
    }  # fmt: skip
    machine.write(json.dumps({"mcpServers": theirs}))
    ended, shown = machine("diff", "cursor", "--json"), machine("diff", "cursor")
    for text in (ended.out, ended.err, shown.out, shown.err):
        assert "hush" not in text
        assert "555123" not in text
    changes = {
        server["server_id"]: {each["path"]: (each["old_value"], each["new_value"]) for each in server["changes"]}
        for server in ended.json["diff"]["servers_modified"]
    }
    hidden = "(hidden)"
    assert changes == {
        "notes": {
            "args[0]": ("notes", "run"), "args[1]": ("--token", "notes"), "args[2]": (hidden, None),
            "command": ("npx", "mcpctl"), "env.A": (hidden, "${env:A}"),
        },
        # What was added stays, so it is no difference.
        "web": {
            "command": (None, "mcpctl"), "args": (None, ["run", "web"]),
            "env": (None, {"NOTES_DIR": "${env:NOTES_DIR}"}),
        },
        "odd": {"command": (None, "mcpctl"), "args": (None, ["run", "odd"])},
    }  # fmt: skip


def test_a_difference_says_that_more_is_installed_and_what_cannot_be_read(machine: Machine) -> None:
    machine.json("publish", "cursor")
    machine.json("deploy", "cursor", "--yes")
    machine.install("web")
    ended = machine("diff", "cursor", "--json")
    assert ended.json["status"] == "up-to-date"
    assert ended.err == "The installed servers have changed since; 'mcpctl client publish cursor' publishes them.\n"
    other = machine.root / "other.json"
    machine.write("{", other)
    assert f"{other}:1: not JSON" in machine("diff", "cursor", "--file", str(other)).err
    machine.write('{"mcpServers": {"notes": ["odd"]}}', other)
    odd = machine("diff", "cursor", "--file", str(other), "--json")
    assert (odd.code, odd.json["status"], odd.json["kept"]) == (0, "up-to-date", ["notes"])


@pytest.mark.parametrize(
    ("client", "file"),
    [("cursor", ".cursor/mcp.json"), ("opencode", ".config/opencode/opencode.json")],
)
def test_a_difference_is_what_a_deployment_writes(machine: Machine, client: str, file: str) -> None:
    """Servers by hand under a name that is wanted, additions, variables that are gone, servers no longer wanted."""
    key = "mcp" if client == "opencode" else "mcpServers"
    path = machine.home / file
    for name in ("web", "gone", "theirs", "hand"):
        machine.install(name)
    machine.json("draft", "add", client, "web", "--variable", "A")
    machine.json("draft", "remove", client, "hand")
    machine.json("publish", client)
    machine.json("deploy", client, "--yes")
    document = json.loads(path.read_text())
    document[key]["notes"]["timeout"] = 5
    document[key]["theirs"]["note"] = document[key]["hand"] = {"command": "mine"}
    document[key]["theirs"]["command"] = "mine"
    path.write_text(json.dumps(document))
    for name in ("gone", "theirs"):
        machine.json("draft", "remove", client, name)
    for name in ("web", "hand"):
        machine.json("draft", "add", client, name)
    machine.json("publish", client)

    found = machine.json("diff", client)
    written = machine.json("deploy", client, "--yes")
    assert (found["kept"], found["left"]) == (written["kept"], written["left"]) == (["hand"], ["theirs"])
    changes = found["diff"]
    assert [each["server_id"] for each in changes["servers_modified"]] == written["changed"] == ["web"]
    assert (changes["servers_added"], changes["servers_removed"]) == (written["added"], written["removed"])
    assert written["removed"] == ["gone"]
    assert (found["status"], found["remote_artifact_id"]) == ("outdated", written["artifact_id"])
    after = machine.json("diff", client)
    assert (after["status"], machine.json("deploy", client, "--dry-run")["diff"]) == ("up-to-date", "")


def test_drift_is_what_became_of_what_was_deployed(machine: Machine) -> None:
    nothing = machine("drift")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "Nothing has been deployed yet; to deploy, run 'mcpctl client deploy CLIENT'.\n"
    machine.install("web")
    zed = machine.home / ".config/zed/settings.json"
    codex = machine.home / ".codex/config.toml"
    for client in ("cursor", "zed", "codex"):
        machine.json("deploy", client, "--yes")
    assert _rows(machine("drift").out) == {
        "cursor": ["in-sync", "~/.cursor/mcp.json"],
        "codex": ["in-sync", "~/.codex/config.toml"],
        "zed": ["in-sync", "~/.config/zed/settings.json"],
    }
    servers = machine.servers()
    del servers["web"]
    servers["notes"]["disabled"] = True
    machine.write(json.dumps({"mcpServers": servers | {"mine": MINE}}))
    zed.unlink()
    codex.write_text("no toml")
    found = machine("drift", "--json")
    assert (found.code, found.err) == (1, "")
    states = {each["client_id"]: each for each in found.json["clients"]}
    assert {name: each["status"] for name, each in states.items()} == {
        "cursor": "drifted", "codex": "unreadable", "zed": "file-missing",
    }  # fmt: skip
    assert found.json["count"] == 3
    cursor = states["cursor"]
    assert (cursor["missing"], cursor["modified"], cursor["extended"], cursor["unexpected"]) == (
        ["web"], [], ["notes"], ["mine"],
    )  # fmt: skip
    assert str(codex) in states["codex"]["problem"]
    every, change = machine("drift"), "shows the changes and repairs it"
    assert every.code == 1
    undo = f"'mcpctl client undo zed --keep-edits --file {zed}'"
    assert _rows(every.out)["codex"] == ["unreadable", "~/.codex/config.toml"]
    assert every.err.splitlines() == [
        f"'mcpctl client deploy cursor' {change}.",
        f"warning: {states['codex']['problem']}",
        f"'mcpctl client deploy zed' {change}; {undo} forgets its last deployment.",
    ]
    assert "repair the file first" in states["codex"]["problem"]
    assert machine("undo", "zed", "--keep-edits", "--file", str(zed)).code == 0
    assert "zed" not in _rows(machine("drift").out)
    shown = machine("drift", "cursor", "goose")
    assert shown.code == 1
    assert _rows(shown.out) == {"cursor": ["drifted", "~/.cursor/mcp.json", "missing:", "web"], "goose": ["none", "-"]}
    assert shown.err == "'mcpctl client deploy cursor' shows the changes and repairs it.\n"
    machine.json("deploy", "cursor", "--yes")
    assert machine("drift", "cursor").code == 0
    assert "exactly one client" in machine.refused("drift", "--file", "x", code=2)


def test_drift_is_looked_for_in_every_file_that_was_deployed_to(machine: Machine) -> None:
    project = machine.root / "my project/mcp.json"
    machine.write("{}", project)
    machine.install("ours", Scope.SYSTEM)
    machine.json("deploy", "cursor", "--yes")
    machine.json("deploy", "cursor", "--yes", "--profile", "dev", "--file", str(project))
    assert machine("drift").code == 0
    machine.write("{}")
    found = machine("drift", "--json")
    assert found.code == 1
    assert found.json["count"] == 2
    assert [(each["client_id"], each["file"], each["status"]) for each in found.json["clients"]] == [
        ("cursor", str(project), "in-sync"), ("cursor", str(machine.cursor), "drifted"),
    ]  # fmt: skip
    assert machine("drift", "cursor", "--file", str(project)).code == 0
    machine.write("{}", project)
    both, change = machine("drift", "cursor"), "shows the changes and repairs it"
    assert both.code == 1
    assert [line.split()[1] for line in both.out.splitlines()[1:]] == ["drifted", "drifted"]
    assert both.err.splitlines() == [
        f"'mcpctl client deploy cursor --profile dev --file '{project}'' {change}.",
        f"'mcpctl client deploy cursor' {change}.",
    ]
    machine.json("deploy", "cursor", "--yes", scope=Scope.SYSTEM)
    machine.write("{}")
    system = machine("drift", "cursor").err.splitlines()[0]
    assert system == f"'mcpctl --system client deploy cursor' {change}."


def test_undo_brings_back_every_byte_and_the_mode_one_deployment_at_a_time(machine: Machine) -> None:
    first = machine.write(ODD)
    machine.cursor.chmod(0o604)
    machine.json("deploy", "cursor", "--yes")
    second = machine.cursor.read_bytes()
    machine.install("web")
    machine.json("deploy", "cursor", "--yes", "--publish")
    assert machine.cursor.read_bytes() not in {first, second}
    shown = machine("undo", "cursor")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("Restored ~/.cursor/mcp.json, as it was before cursor/default ")
    assert machine.cursor.read_bytes() == second
    undone = machine.json("undo", "cursor")
    assert machine.cursor.read_bytes() == first
    assert machine.cursor.stat().st_mode & 0o777 == 0o604
    assert machine.json("history", "cursor")["deployments"][1] == undone
    assert machine.refused("undo", "cursor", code=4) == "Cursor IDE: no deployment that could be undone"
    assert machine.cursor.read_bytes() == first


def test_undo_removes_a_file_that_was_not_there(machine: Machine) -> None:
    machine.json("deploy", "zed", "--yes")
    file = machine.home / ".config/zed/settings.json"
    assert file.exists()
    ended = machine("undo", "zed")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Removed ~/.config/zed/settings.json, as it was before zed/default ")
    assert not file.parent.exists()
    assert machine("drift", "zed").out.splitlines()[1].split() == ["zed", "none", "-"]


def test_edits_since_are_not_lost_without_saying_so(machine: Machine) -> None:
    before = machine.write('{"theme": "dark"}\n')
    machine.json("deploy", "cursor", "--yes")
    edited = machine.cursor.read_text().replace('"dark"', '"light"')
    machine.write(edited)
    said = machine.refused("undo", "cursor", code=1)
    assert str(machine.cursor) in said
    assert "--force" in said
    assert "--keep-edits" in said
    assert machine.cursor.read_text() == edited
    kept = machine("undo", "cursor", "--keep-edits")
    assert kept.out.startswith("Removed the servers from ~/.cursor/mcp.json, as it was before cursor/default ")
    now_there = json.loads(machine.cursor.read_text())
    assert (now_there["theme"], now_there.get("mcpServers", {})) == ("light", {})

    machine.cursor.write_bytes(before)
    machine.json("deploy", "cursor", "--yes")
    machine.write(edited)
    forced = machine("undo", "cursor", "--force")
    assert forced.code == 0
    assert machine.cursor.read_bytes() == before
    saved = machine.json("history", "cursor")["deployments"][0]["saved"]
    assert f"Its content is kept as {saved} as long as 'mcpctl client history' lists it.\n" == forced.err
    assert Path(saved).read_text() == edited


def test_an_undo_that_was_not_done_is_not_recorded_as_done(machine: Machine) -> None:
    machine.json("deploy", "cursor", "--yes")
    machine.write("{}")
    assert machine("undo", "cursor").code == 1
    lines = [json.loads(line) for line in machine.audit.read_text().splitlines()]
    assert (lines[-1]["name"], lines[-1]["fields"]["outcome"]) != ("undo_config", "ok")


def test_history_tells_of_both_newest_first(machine: Machine) -> None:
    none = machine("history", "cursor")
    assert (none.code, none.out) == (0, "")
    assert none.err.startswith("Nothing was published or deployed for cursor; ")
    machine.json("publish", "cursor", "--message", "The first")
    machine.json("deploy", "cursor", "--yes")
    machine.json("undo", "cursor")
    machine.json("publish", "cursor", "--profile", "dev", "--message", "Another")
    shown = machine("history", "cursor")
    rows = [line.split() for line in shown.out.splitlines()[1:]]
    assert [row[1:3] for row in rows] == [
        ["published", "dev"], ["undone", "default"], ["deployed", "default"], ["published", "default"],
    ]  # fmt: skip
    assert [row[-1] for row in rows] == ["Another", "~/.cursor/mcp.json", "~/.cursor/mcp.json", "first"]
    found = machine.json("history", "cursor", "--profile", "default")
    config = machine.json("show", "cursor")
    assert found["releases"] == [
        {
            "profile_id": "default", "artifact_id": config["artifact_id"], "created_at": config["created_at"],
            "signing_key_id": config["signing_key_id"], "changelog": "The first",
        }
    ]  # fmt: skip
    [deployed] = found["deployments"]
    assert (deployed["file"], deployed["artifact_id"]) == (str(machine.cursor), config["artifact_id"])
    assert deployed["undone_at"] >= deployed["deployed_at"]
