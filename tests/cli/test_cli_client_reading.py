# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl client list, profiles, show, verify and keys: what is known, and that it is what was signed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mcpd.paths import Scope
from tests.cli.client_machine import Machine

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
name = "My Editor"
platform = "linux"
profiles = ["default"]
[file]
format = "jsonc"
key = ["mcp"]
linux = ["{config}/my-editor/settings.json"]
[stdio]
command = "command"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with two servers and what is published of them, that tests leave as it is."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.install("notes")
    machine.install("com.example.web")
    for profile in ("default", "dev"):
        machine.json("publish", "cursor", "--profile", profile)
    return machine


def test_the_clients_are_those_of_the_tool_and_their_files_those_that_exist(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = machine.home / ".config/mcp/clients"
    machine.write(OWN, clients / "my-editor.toml")
    machine.write("nonsense = 1\n" + OWN, clients / "broken.toml")
    machine.write("{}", machine.home / ".config/amp/settings.jsonc")
    ended = machine("list", "--json")
    assert ended.json == machine.tools(monkeypatch).call("list_clients", {})
    assert ended.json["count"] == len(ended.json["clients"]) >= 25
    shown = machine("list")
    rows = {line.split()[0]: line.split()[-1] for line in shown.out.splitlines()[1:]}
    assert [*rows] == [client["client_id"] for client in ended.json["clients"]]
    assert rows["cursor"] == "~/.cursor/mcp.json"
    assert rows["my-editor"] == "~/.config/my-editor/settings.json"
    assert rows["amp"] == "~/.config/amp/settings.jsonc"
    for each in (ended, shown):
        assert each.code == 0
        assert each.err.count("\n") == 1
        assert f"{clients}/broken.toml" in each.err
        assert "nonsense" in each.err
    assert not machine.tree.exists()


def test_variables_move_a_clients_file(machine: Machine) -> None:
    rows = machine("list", environ={"CODEX_HOME": f"{machine.home}/c", "XDG_CONFIG_HOME": f"{machine.home}/x"}).out
    assert "~/c/config.toml\n" in rows
    assert "~/x/zed/settings.json\n" in rows


def test_profiles_and_configurations_are_those_of_the_tools(
    read_only: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = read_only.tools(monkeypatch)
    found = read_only.json("profiles", "cursor")
    assert found == tools.call("list_profiles", {"client_id": "cursor"})
    assert [each["profile_id"] for each in found["profiles"]] == ["default", "dev"]
    config = read_only.json("show", "cursor", "--profile", "dev")
    assert config == tools.call("get_config", {"client_id": "cursor", "profile_id": "dev"})
    assert config["payload"]["mcpServers"]["notes"] == {"command": "mcpctl", "args": ["run", "notes"]}
    artifact = config["artifact_id"]
    again = read_only.json("show", "cursor", "--artifact", artifact)
    assert again == tools.call("get_config", {"client_id": "cursor", "artifact_id": artifact})


def test_people_are_shown_the_same(read_only: Machine) -> None:
    profiles = read_only("profiles", "cursor")
    config = read_only("show", "cursor")
    assert (profiles.code, profiles.err, config.code, config.err) == (0, "", 0, "")
    said = dict(line.split(": ", 1) for line in config.out.split("\n\n")[0].splitlines())
    assert (said["client"].strip(), said["servers"].strip()) == ("cursor/default", "2")
    assert [line.split() for line in config.out.split("\n\n")[1].splitlines()] == [
        ["SERVER", "VARIABLES", "RUNS"],
        ["com.example.web", "mcpctl", "run", "com.example.web"],
        ["notes", "mcpctl", "run", "notes"],
    ]
    rows = profiles.out.splitlines()
    assert [row.split()[0] for row in rows] == ["PROFILE", "default", "dev"]
    assert said["artifact"].strip()[:12] in rows[1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["show", "curser"], "Client 'curser' not found; did you mean 'cursor'? 'mcpctl client list' lists the known"),
        (["profiles", "../x"], "'mcpctl client list' lists the known clients"),
        (["show", "cursor", "--profile", "prd"], "Profile 'prd' not found for client 'cursor'; it has default, dev"),
        (["show", "cursor", "--artifact", "0" * 64], "'mcpctl client history cursor' lists the published ones"),
        (["verify", "no-such-file"], "there is no file no-such-file"),
    ],
    ids=["client", "hostile-client", "profile", "artifact", "file"],
)
def test_what_is_not_there_is_named_with_the_way_out(read_only: Machine, argv: list[str], message: str) -> None:
    assert message in read_only.refused(*argv, code=4)


def test_what_show_gives_verifies_and_nothing_else_does(read_only: Machine, tmp_path: Path) -> None:
    config = read_only.json("show", "cursor")
    document, answer = tmp_path / "config.json", tmp_path / "answer.json"
    document.write_text(json.dumps(config))
    answer.write_text(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"structuredContent": config}}))
    verified = read_only.json("verify", str(document))
    assert verified["verified"] is True
    for name in ("artifact_id", "client_id", "profile_id", "created_at", "signing_key_id"):
        assert verified[name] == config[name]
    for key in ("verification_key.pem", "verification_key.raw"):
        assert read_only("verify", str(answer), "--key", str(read_only.tree / key)).code == 0
    ended = read_only("verify", "-", stdin=json.dumps(config))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"Good signature on cursor/default, {config['artifact_id']}\n")
    assert config["signing_key_id"] in ended.out


def test_what_was_changed_does_not_verify(read_only: Machine) -> None:
    config = read_only.json("show", "cursor")
    config["payload"]["mcpServers"]["notes"]["args"] = ["run", "evil"]
    ended = read_only("verify", "-", "--json", stdin=json.dumps(config))
    assert (ended.code, ended.json["error"]) == (1, "signature_error")
    assert ended.err.startswith("mcpctl: standard input: the ")
    assert ended.err.count("\n") == 1


def test_another_key_or_none_vouches_for_nothing(machine: Machine, read_only: Machine, tmp_path: Path) -> None:
    document, key = tmp_path / "config.json", tmp_path / "key"
    document.write_text(json.dumps(read_only.json("show", "cursor")))
    key.write_text("no key")
    assert str(key) in machine.refused("verify", str(document), "--key", str(key), code=1)
    assert str(document) in machine.refused("verify", str(document), code=1)
    assert not machine.tree.exists()
    machine.json("keys", "init")
    for argv in ([], ["--key", str(machine.tree / "verification_key.pem")]):
        assert str(document) in machine.refused("verify", str(document), *argv, code=1)
    document.write_text("{}")
    assert "contains no signed configuration" in machine.refused("verify", str(document), code=1)


def test_keys_are_made_once_renewed_and_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    none = machine("keys", "show")
    assert (none.code, none.out) == (0, "")
    assert none.err.startswith("There is no key yet; ")
    assert machine.json("keys", "show") == {"keys": [], "count": 0}
    assert not machine.tree.exists()
    made = machine.json("keys", "init")
    assert made == machine.tools(monkeypatch).call("initialize_keys", {}) | {"created": True}
    unchanged = machine("keys", "init")
    assert unchanged.out == f"Unchanged key {made['signing_key_id']}: {machine.tree}/verification_key.pem\n"
    machine.json("publish", "cursor")
    document = json.dumps(machine.json("show", "cursor"))
    rotated = machine("keys", "rotate")
    assert rotated.code == 0
    assert rotated.out.startswith("New key orchestration-")
    assert f"Re-signed 1 configuration. {made['signing_key_id']} is valid until " in rotated.out
    keys = machine.json("keys", "show")
    assert keys["count"] == 2
    current, retired = sorted(keys["keys"], key=lambda key: key["expires_at"] or "")
    assert retired["key_id"] == made["signing_key_id"]
    assert current["expires_at"] is None
    assert machine.json("show", "cursor")["signing_key_id"] == current["key_id"]
    assert machine("verify", "-", stdin=document).code == 0
    states = {line.split()[0]: line.split()[1] for line in machine("keys", "show").out.splitlines()[1:]}
    assert states == {current["key_id"]: "current", retired["key_id"]: "valid"}
    signing = machine.tree / "keys/signing_key.pem"
    assert signing.stat().st_mode & 0o777 == 0o600
    signing.chmod(0o644)
    assert f"chmod 600 {signing}" in machine.refused("show", "cursor", "--profile", "dev", code=1)


def test_what_is_published_is_not_what_is_installed_any_more(read_only: Machine, machine: Machine) -> None:
    machine.install("notes")
    machine.json("publish", "claude-desktop", "--profile", "dev")
    before = machine.json("show", "claude-desktop", "--profile", "dev")
    machine.install("web")
    ended = machine("show", "claude-desktop", "--profile", "dev", "--json")
    assert ended.json == before
    assert ended.err == (
        "The installed servers have changed since; 'mcpctl client publish claude-desktop --profile dev' publishes"
        " them.\n"
    )
    old = machine("show", "claude-desktop", "--profile", "dev", "--artifact", before["artifact_id"])
    assert old.err == ""


def test_what_nobody_published_is_shown_as_such_and_verifies(machine: Machine) -> None:
    machine.install("notes")
    shown = machine("show", "cursor")
    assert shown.code == 0
    assert "published:" not in shown.out
    assert shown.err == (
        "It is not published, so it follows the installed servers; 'mcpctl client publish cursor' publishes it.\n"
    )
    machine.install("web")
    config = machine.json("show", "cursor")
    assert [*config["payload"]["mcpServers"]] == ["notes", "web"]
    assert machine("verify", "-", stdin=json.dumps(config)).code == 0
    assert machine("show", "cursor", "--artifact", config["artifact_id"], "--json").json["payload"] == config["payload"]


def test_the_systems_configurations_are_made_of_the_systems_servers(machine: Machine) -> None:
    machine.install("mine")
    machine.install("ours", Scope.SYSTEM)
    assert [*machine.json("show", "cursor")["payload"]["mcpServers"]] == ["mine", "ours"]
    assert [*machine.json("show", "cursor", scope=Scope.SYSTEM)["payload"]["mcpServers"]] == ["ours"]
    assert machine.system_tree.stat().st_mode & 0o777 == 0o755
    assert machine.tree.stat().st_mode & 0o777 == 0o700
