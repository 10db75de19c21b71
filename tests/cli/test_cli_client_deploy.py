# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl client deploy: its own servers in the client's file, after consent, and nothing else changed."""

from __future__ import annotations

import json

from mcpd.paths import Scope
from tests.cli.client_machine import MINE, NOTES, Machine

HAND_MADE = f"""{{
\t// mine, do not touch
\t"theme": "dark",   "odd" :  [1,2 ,3],
\t"mcpServers": {{
\t\t"mine": {json.dumps(MINE)},  // by hand
\t}},
\t"last": null
}}"""
"""A file of which a deployment is to change nothing; it has no line break at its end."""


def _everything(machine: Machine) -> dict[str, bytes]:
    """All files in the home but what signs and records."""
    return {
        str(path): path.read_bytes()
        for path in machine.home.rglob("*")
        if path.is_file() and machine.tree not in path.parents
    }


def test_what_is_to_change_is_shown_and_nothing_is_changed_without_consent(machine: Machine) -> None:
    before = machine.write(HAND_MADE)
    files = _everything(machine)
    for argv, code in ((["--dry-run"], 0), ([], 2)):
        ended = machine("deploy", "cursor", *argv)
        assert ended.code == code
        added = [line[1:].strip() for line in ended.out.splitlines() if line.startswith("+") and line[:3] != "+++"]
        assert '"notes": {' in added
        assert '+\t\t"notes": {' in ended.out.splitlines()
        assert not [line for line in ended.out.splitlines() if line.startswith("-") and line[:3] != "---"]
        assert "hush" not in ended.out + ended.err
        assert "sk-very" not in ended.out + ended.err
    assert ended.err == f"mcpctl: {machine.cursor} was not changed: no terminal to ask for confirmation; use --yes\n"
    asked = machine("deploy", "cursor", "--json")
    assert asked.code == 2
    assert asked.json["error"] == "invalid_input"
    dry = machine.json("deploy", "cursor", "--dry-run")
    assert (dry["deployed"], dry["added"], dry["file"]) == (False, ["notes"], str(machine.cursor))
    assert machine.cursor.read_bytes() == before
    assert _everything(machine) == files


def test_on_a_terminal_it_asks(machine: Machine) -> None:
    before = machine.write("{}\n")
    code, seen = machine.on_terminal("deploy", "cursor", answer="n\n")
    assert code == 1
    assert '+    "notes": {' in seen
    assert "Write this to ~/.cursor/mcp.json? [y/N]" in seen
    assert seen.endswith("mcpctl: " + str(machine.cursor) + ": nothing was changed\n")
    assert machine.cursor.read_bytes() == before
    code, seen = machine.on_terminal("deploy", "cursor", answer="y\n")
    assert code == 0
    assert "Deployed cursor/default to ~/.cursor/mcp.json: 1 added.\n" in seen
    assert machine.servers() == {"notes": NOTES}
    code, seen = machine.on_terminal("deploy", "cursor")
    assert (code, seen) == (0, "Unchanged ~/.cursor/mcp.json: it matches the published configuration.\n")


def test_what_is_changed_while_it_asks_is_not_lost(machine: Machine) -> None:
    machine.write('{"theme": "dark"}\n')
    theirs = '{"theme": "dark", "mcpServers": {"notes": {"command": "theirs"}}}\n'
    code, seen = machine.on_terminal(
        "deploy", "cursor", answer="y\n", meanwhile=lambda: machine.cursor.write_text(theirs)
    )
    assert code == 1
    assert f"mcpctl: {machine.cursor}: was changed by another program in the meantime" in seen
    assert machine.cursor.read_text() == theirs
    machine.write('{"theme": "dark"}\n')
    code, _ = machine.on_terminal(
        "deploy", "cursor", answer="y\n", meanwhile=lambda: machine.cursor.write_text('{"theme": "light"}\n')
    )
    assert code == 0
    assert json.loads(machine.cursor.read_text()) == {"theme": "light", "mcpServers": {"notes": NOTES}}


def test_what_is_the_users_stays_byte_for_byte_with_its_mode(machine: Machine) -> None:
    machine.write(HAND_MADE)
    machine.cursor.chmod(0o640)
    ended = machine("deploy", "cursor", "--yes")
    assert (ended.code, ended.err) == (0, "")
    assert "Deployed cursor/default to ~/.cursor/mcp.json: 1 added.\n" in ended.out
    assert "'mcpctl client undo cursor' undoes it." in ended.out
    text = machine.cursor.read_text()
    start, end = HAND_MADE.split(",  // by hand\n\t}")
    assert text.startswith(start)
    assert text.endswith("}" + end)
    assert "// by hand" in text
    assert text.count('"notes"') == 2
    assert machine.cursor.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in machine.cursor.parent.iterdir()] == ["mcp.json"]

    machine.install("web")
    published = machine.json("deploy", "cursor", "--publish", "--yes", "--message", "With web")
    assert (published["deployed"], published["added"], published["changed"]) == (True, ["web"], [])
    again = machine.json("deploy", "cursor", "--yes")
    assert (again["deployed"], again["diff"]) == (False, "")
    assert machine.cursor.read_text().startswith(start)


def test_a_file_that_was_not_there_is_for_its_user_alone(machine: Machine) -> None:
    done = machine.json("deploy", "cursor", "--yes")
    assert machine.servers() == {"notes": NOTES}
    assert machine.cursor.stat().st_mode & 0o777 == 0o600
    assert machine.cursor.parent.stat().st_mode & 0o777 == 0o700
    release = machine.json("show", "cursor")
    assert (done["artifact_id"], done["profile_id"]) == (release["artifact_id"], "default")
    kept = machine.home / ".local/share/mcp/deployments"
    assert kept.stat().st_mode & 0o777 == 0o700
    lines = [json.loads(line) for line in machine.audit.read_text().splitlines()]
    told = [line["fields"] for line in lines if line["name"] == "deploy_config"]
    assert [(each["outcome"], each["file"], each["added"]) for each in told] == [("ok", str(machine.cursor), ["notes"])]


def test_a_server_added_by_hand_stays_until_it_is_taken_over(machine: Machine) -> None:
    machine.install("web")
    machine.write(json.dumps({"mcpServers": {"notes": MINE, "mine": MINE}}, indent=2))
    kept = machine("deploy", "cursor", "--yes")
    assert kept.code == 0
    assert "Kept your own servers: notes; '--take-over notes' replaces one.\n" in kept.err
    assert machine.servers() == {"notes": MINE, "mine": MINE, "web": {"command": "mcpctl", "args": ["run", "web"]}}
    assert machine.json("deploy", "cursor", "--dry-run")["kept"] == ["notes"]
    unknown = machine("deploy", "cursor", "--yes", "--take-over", "mine", "--json")
    assert unknown.code == 2
    assert "mine cannot be taken over: the configuration has no server with that name" in unknown.err
    taken = machine("deploy", "cursor", "--yes", "--take-over", "notes")
    assert taken.code == 0
    assert "1 changed" in taken.out
    assert "hush" not in taken.out
    assert "sk-very" not in taken.out
    assert machine.servers()["notes"] == NOTES
    assert machine.servers()["mine"] == MINE


def test_what_was_deployed_is_put_right_removed_or_left(machine: Machine) -> None:
    machine.install("web")
    machine.install("gone")
    machine.json("deploy", "cursor", "--yes")
    servers = machine.servers()
    servers["notes"] |= {"disabled": True}
    servers["web"]["args"] = ["run", "another"]
    servers["gone"]["command"] = "mine-now"
    machine.write(json.dumps({"mcpServers": servers}, indent=2))
    machine.json("draft", "remove", "cursor", "gone")
    machine.json("publish", "cursor")
    ended = machine("deploy", "cursor", "--yes")
    assert ended.code == 0
    assert "Changed by hand since the deployment: web\n" in ended.err
    assert "Kept but no longer managed, because they were changed by hand: gone\n" in ended.err
    assert machine.servers() == {
        "notes": NOTES | {"disabled": True},
        "web": {"command": "mcpctl", "args": ["run", "web"]},
        "gone": {"command": "mine-now", "args": ["run", "gone"]},
    }
    machine.json("draft", "remove", "cursor", "web")
    done = machine.json("deploy", "cursor", "--yes", "--publish")
    assert (done["removed"], done["left"], done["kept"]) == (["web"], [], [])
    assert {*machine.servers()} == {"notes", "gone"}


def test_until_somebody_publishes_it_follows_what_is_installed(machine: Machine) -> None:
    machine.json("deploy", "cursor", "--yes")
    machine.install("web")
    for argv in (["deploy", "cursor", "--dry-run"], ["diff", "cursor"]):
        shown = machine(*argv)
        assert (shown.code, shown.err) == (0, "")
        assert '+    "web"' in shown.out
    assert [*machine.json("show", "cursor")["payload"]["mcpServers"]] == ["notes", "web"]
    assert len(machine.json("history", "cursor")["releases"]) == 1
    machine.json("deploy", "cursor", "--yes")
    assert [*machine.servers()] == ["notes", "web"]
    said = machine.json("show", "cursor")["metadata"]
    assert (said["source"], said["changelog"]) == ("first", "Added web")


def test_nothing_is_signed_before_there_is_consent(machine: Machine) -> None:
    for argv in (
        ["profiles", "cursor"], ["diff", "cursor"], ["diff", "cursor", "--json"], ["validate", "cursor"],
        ["draft", "show", "cursor"], ["deploy", "cursor", "--dry-run"],
    ):  # fmt: skip
        assert machine(*argv).code == 0
    code, _ = machine.on_terminal("deploy", "cursor", answer="n\n")
    assert code == 1
    assert not machine.tree.exists()


def test_what_was_shown_is_what_is_written_whatever_is_installed_meanwhile(machine: Machine) -> None:
    code, _ = machine.on_terminal("deploy", "cursor", answer="y\n", meanwhile=lambda: machine.install("web"))
    assert code == 0
    assert [*machine.servers()] == ["notes"]
    machine.cursor.unlink()
    code, _ = machine.on_terminal(
        "deploy", "cursor", answer="y\n", meanwhile=lambda: machine.json("publish", "cursor", "--message", "Now")
    )
    assert (code, [*machine.servers()]) == (0, ["notes", "web"])
    assert [each["changelog"] for each in machine.json("history", "cursor")["releases"]] == ["Now", "Added notes"]


def test_what_was_shown_does_not_replace_what_was_published_meanwhile(machine: Machine) -> None:
    machine.json("draft", "add", "cursor", "notes", "--name", "chosen")
    code, seen = machine.on_terminal(
        "deploy", "cursor", answer="y\n", meanwhile=lambda: machine.json("publish", "cursor")
    )
    assert code == 1
    assert "cursor/default was published in the meantime; review the difference again" in seen
    assert not machine.cursor.exists()
    assert [*machine.json("show", "cursor")["payload"]["mcpServers"]] == ["chosen", "notes"]


def test_a_draft_is_mentioned(machine: Machine) -> None:
    machine.json("draft", "add", "cursor", "notes", "--name", "second")
    ended = machine("deploy", "cursor", "--dry-run")
    assert ended.err == "There is an unpublished draft; 'mcpctl client publish cursor' publishes it.\n"


def test_the_beginning_of_an_id_is_enough(machine: Machine) -> None:
    machine.json("publish", "cursor")
    found = machine.json("show", "cursor")
    assert machine.json("show", "cursor", "--artifact", found["artifact_id"][:12]) == found
    assert machine("deploy", "cursor", "--yes", "--artifact", found["artifact_id"][:6]).code == 0
    assert "not found" in machine.refused("show", "cursor", "--artifact", "0123456789ab", code=4)


def test_it_says_when_what_is_installed_has_changed(machine: Machine) -> None:
    machine.json("publish", "cursor")
    machine.json("deploy", "cursor", "--yes")
    machine.install("web")
    stale = "The installed servers have changed since; 'mcpctl client publish cursor' publishes them.\n"
    ended = machine("deploy", "cursor", "--yes")
    assert (ended.code, ended.err) == (0, stale)
    assert ended.out == "Unchanged ~/.cursor/mcp.json: it matches the published configuration.\n"
    old = machine.json("show", "cursor")["artifact_id"]
    new = machine("deploy", "cursor", "--yes", "--publish")
    assert new.err == ""
    assert new.out.startswith("Published cursor/default: 2 servers, ")
    assert [*machine.servers()] == ["notes", "web"]
    back = machine("deploy", "cursor", "--yes", "--artifact", old)
    assert (back.code, back.err) == (0, "")
    assert [*machine.servers()] == ["notes"]
    assert "cannot be used together" in machine.refused("deploy", "cursor", "--artifact", old, "--publish", code=2)


def test_publishing_first_drops_nothing_that_was_drafted(machine: Machine) -> None:
    machine.json("draft", "add", "cursor", "notes", "--name", "second")
    machine.json("deploy", "cursor", "--yes", "--publish")
    machine.install("web")
    ended = machine("deploy", "cursor", "--yes", "--publish")
    assert ended.code == 0
    assert "'mcpctl client publish cursor --from-installed' publishes the installed servers instead." in ended.err
    assert [*machine.servers()] == ["notes", "second"]


def test_another_file_is_deployed_to_with_a_history_of_its_own(machine: Machine) -> None:
    project = machine.root / "project/.cursor/mcp.json"
    before = machine.write('{"mcpServers": {}}\n', project)
    done = machine.json("deploy", "cursor", "--yes", "--file", "../root/project/.cursor/mcp.json", "--profile", "dev")
    assert (done["file"], done["profile_id"]) == (str(project), "dev")
    assert json.loads(project.read_bytes())["mcpServers"] == {"notes": NOTES}
    assert not machine.cursor.exists()
    assert machine("undo", "cursor", "--file", str(project)).code == 0
    assert project.read_bytes() == before
    misspelt = str(machine.root / "misspelt/mcp.json")
    assert "create it first, or specify another file" in machine.refused("deploy", "cursor", "--file", misspelt, code=1)
    assert not (machine.root / "misspelt").exists()


def test_what_the_policy_forbids_by_now_is_not_deployed(machine: Machine) -> None:
    before = machine.write(HAND_MADE)
    machine.json("publish", "cursor")
    machine.policy('[servers]\nforbidden = ["notes"]\n')
    for argv in (["--yes"], ["--dry-run"], ["--yes", "--publish"]):
        said = machine.refused("deploy", "cursor", *argv, code=3)
        assert f"(servers.forbidden in {machine.root}/etc/mcp/policy.toml); remove the server or change the" in said
    assert machine.cursor.read_bytes() == before
    lines = [json.loads(line) for line in machine.audit.read_text().splitlines()]
    assert [(line["name"], line["fields"]["outcome"]) for line in lines[-1:]] == [
        ("deploy_config", "refused"),
    ]
    machine.policy("servers = 1\n")
    assert "policy.toml" in machine.refused("deploy", "cursor", "--yes", code=1)
    assert machine.cursor.read_bytes() == before


def test_a_configuration_that_was_tampered_with_is_not_deployed(machine: Machine) -> None:
    artifact = machine.json("publish", "cursor")["artifact_id"]
    (machine.tree / f"artifacts/{artifact}.json").write_text('{"mcpServers":{"evil":{"args":[],"command":"evil"}}}')
    assert artifact in machine.refused("deploy", "cursor", "--yes", code=1)
    assert not machine.cursor.exists()


def test_a_file_that_cannot_be_read_is_left_as_it_is(machine: Machine) -> None:
    before = machine.write('{\n"mcpServers": {')
    ended = machine("deploy", "cursor", "--yes", "--json")
    assert ended.code == 1
    assert f"{machine.cursor}:2: not JSON" in ended.json["message"]
    assert ended.err == f"mcpctl: {ended.json['message']}\n"
    assert machine.cursor.read_bytes() == before


def test_the_systems_configuration_goes_into_ones_own_file(machine: Machine) -> None:
    machine.install("ours", Scope.SYSTEM)
    done = machine.json("deploy", "cursor", "--yes", scope=Scope.SYSTEM)
    assert (done["file"], done["added"]) == (str(machine.cursor), ["ours"])
    assert [*machine.servers()] == ["ours"]
    mine = machine.json("deploy", "cursor", "--yes")
    assert (mine["added"], mine["removed"], mine["kept"]) == (["notes"], [], [])
    assert [*machine.servers()] == ["ours", "notes"]


def test_the_client_is_told_of_what_it_fills_in(machine: Machine) -> None:
    machine.json("draft", "add", "cursor", "notes", "--variable", "NOTES_DIR")
    ended = machine("deploy", "cursor", "--yes", "--publish")
    assert ended.err == "Cursor IDE needs these environment variables: NOTES_DIR.\n"
    assert machine.servers()["notes"]["env"] == {"NOTES_DIR": "${env:NOTES_DIR}"}
