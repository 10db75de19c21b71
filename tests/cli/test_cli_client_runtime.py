# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl client: where it finds its libraries, whose configurations are meant, and how it says what is wrong."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from mcpd.cli.libraries import GUARD
from mcpd.clients.errors import error_object
from mcpd.errors import McpdError
from mcpd.paths import Scope
from tests.cli.client_machine import MINE, REPOSITORY, Ended, Machine

WITHOUT = """
import sys
from pathlib import Path
sys.path.insert(0, {repository!r})

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
if {system}:
    sys.base_prefix = sys.prefix
from mcpd.runtime import bundled
bundled.PYTHON = Path({python!r})
from mcpd.cli.main import main
sys.exit(main())
"""
"""mcpctl in an environment that lacks libraries; the system's own Python is in no environment."""


if TYPE_CHECKING:
    from pathlib import Path


class Lacking:
    """mcpctl where libraries are missing, and an interpreter that says how it was started."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine = machine
        self.python = directory / "python"
        self._program = directory / "mcpctl.py"

    def offer(self, script: str) -> None:
        """Put an interpreter where mcpd-servers has its own."""
        self.python.write_text(f"#!/bin/sh\n{script}\n")
        self.python.chmod(0o755)

    def __call__(self, *argv: str, is_system: bool = True, missing: str = "cryptography", again: bool = False) -> Ended:
        self._program.write_text(
            WITHOUT.format(repository=str(REPOSITORY), missing=(missing,), system=is_system, python=str(self.python))
        )
        return self.machine.run(
            [sys.executable, str(self._program), "--user", "client", *argv], environ={GUARD: "1"} if again else {}
        )


@pytest.fixture
def lacking(machine: Machine, tmp_path: Path) -> Lacking:
    return Lacking(machine, tmp_path)


def test_without_libraries_the_interpreter_of_mcpd_servers_is_run_instead(lacking: Lacking) -> None:
    lacking.offer(f'echo "$@"; echo "{GUARD}=${GUARD}"; exit 7')
    for needs, argv in (("cryptography", ["show", "a b", "--json"]), ("tomlkit", ["deploy", "cursor", "-y"])):
        ended = lacking(*argv, missing=needs)
        assert (ended.code, ended.err) == (7, "")
        assert ended.out == f"-I -m mcpd.cli.main --user client {' '.join(argv)}\n{GUARD}=1\n"


def test_what_is_run_instead_does_the_whole_of_it(lacking: Lacking) -> None:
    lacking.offer(f'shift; exec "{sys.executable}" "$@"')
    lacking.machine.json("publish", "cursor")
    ended = lacking("show", "cursor", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json == lacking.machine.json("show", "cursor")


def test_what_is_run_instead_looks_for_no_further_one(lacking: Lacking) -> None:
    missing = "mcpctl: 'mcpctl client' needs the Python package cryptography, which "
    absent = lacking("show", "cursor")
    assert (absent.code, absent.out) == (1, "")
    assert absent.err == f"{missing}is not installed; install the package mcpd-servers\n"
    lacking.offer("exit 7")
    assert lacking("show", "cursor", again=True) == absent
    environment = lacking("show", "cursor", is_system=False)
    assert (environment.code, environment.out) == (1, "")
    assert environment.err == (
        f"{missing}is not in {sys.prefix}; install it with: {sys.executable} -m pip install 'mcpd-system[servers]'\n"
    )


def test_a_command_asks_for_no_more_than_it_takes(lacking: Lacking) -> None:
    lacking.offer("exit 7")
    assert lacking("list", "--json").json["count"] > 20
    lacking.machine.json("publish", "cursor")
    for missing in ("tomlkit", "ruamel"):
        assert lacking("show", "cursor", missing=missing).code == 0
        assert lacking("drift", missing=missing).code == 7


def test_a_missing_library_is_reported_as_json_too(lacking: Lacking) -> None:
    ended = lacking("show", "cursor", "--json")
    assert ended.code == 1
    assert ended.json["error"] == "internal_error"
    assert ended.err == f"mcpctl: {ended.json['message']}\n"


def test_an_error_of_the_system_is_reported_as_json_too(machine: Machine) -> None:
    unreadable = machine.root / "secret.json"
    unreadable.write_text("{}")
    unreadable.chmod(0)
    ended = machine.as_anybody("verify", str(unreadable), "--json", scope=Scope.USER)
    assert ended.code == 1
    assert ended.err == f"mcpctl: {unreadable}: Permission denied\n"
    assert ended.json["error"] == "internal_error"
    assert str(unreadable) in ended.json["message"]


def _closed(tree: Path) -> None:
    """Leave of *tree* what somebody else has of it."""
    for path in [*tree.rglob("*"), tree]:
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777
            path.chmod((mode & 0o005) * 0o111)


def test_everybody_reads_the_systems_configurations_and_may_not_change_them(machine: Machine) -> None:
    machine.install("ours", Scope.SYSTEM)
    machine.json("publish", "cursor", scope=Scope.SYSTEM)
    config = machine.json("show", "cursor", scope=Scope.SYSTEM)
    machine.json("draft", "add", "cursor", "ours", "--name", "drafted", scope=Scope.SYSTEM)
    for private in ("audit.jsonl", "keys/signing_key.pem"):
        assert (machine.system_tree / private).stat().st_mode & 0o777 == 0o600
    _closed(machine.system_tree)
    held = {path: path.stat().st_mtime_ns for path in [machine.system_tree, *machine.system_tree.rglob("*")]}

    shown = machine.as_anybody("show", "cursor", "--json")
    assert (shown.code, shown.json, shown.err) == (0, config, "")
    profiles = machine.as_anybody("profiles", "cursor", "--json")
    assert [each["profile_id"] for each in profiles.json["profiles"]] == ["default"]
    assert machine.as_anybody("draft", "show", "cursor", "--json").json["exists"]
    assert machine.as_anybody("validate", "cursor").code == 0
    assert machine.as_anybody("keys", "show", "--json").json["count"] == 1
    unknown = machine.as_anybody("show", "zed")
    assert unknown.code == 4
    assert "root can publish it with 'mcpctl --system client publish zed --profile default'" in unknown.err

    for argv in (
        ["publish", "cursor"], ["draft", "add", "cursor", "ours"], ["draft", "remove", "cursor", "ours"],
        ["draft", "clear", "cursor"], ["keys", "rotate"], ["deploy", "cursor", "--publish", "--yes"],
    ):  # fmt: skip
        ended = machine.as_anybody(*argv)
        assert (ended.code, ended.out) == (3, ""), argv
        assert ended.err == (
            f"mcpctl: only root may change the system's configurations in {machine.system_tree}: use sudo, or leave out"
            " --system for your own\n"
        )
    assert not machine.cursor.exists()

    deployed = machine.as_anybody("deploy", "cursor", "--yes", "--json")
    assert (deployed.code, deployed.json["artifact_id"]) == (0, config["artifact_id"])
    assert [*machine.servers()] == ["ours"]
    assert machine.as_anybody("drift", "cursor").code == 0
    assert machine.as_anybody("undo", "cursor").code == 0
    assert not machine.cursor.exists()
    told = [json.loads(line) for line in machine.audit.read_text().splitlines()]
    assert [line["name"] for line in told] == ["deploy_config", "undo_config"]
    assert {path: path.stat().st_mtime_ns for path in held} == held


def test_MCP_ROOT_moves_the_systems_scope(machine: Machine, tmp_path: Path) -> None:
    machine.install("ours", Scope.SYSTEM)
    assert machine.json("publish", "cursor", scope=Scope.SYSTEM)["published"]
    assert [path.name for path in (machine.system_tree / "index/cursor").iterdir()] == ["default.json"]
    assert not machine.tree.exists()
    (tmp_path / "elsewhere").mkdir()
    other = {"MCP_ROOT": str(tmp_path / "elsewhere")}
    found = machine("publish", "cursor", "--json", scope=Scope.SYSTEM, environ=other)
    assert found.json["payload"] == {"mcpServers": {}}
    assert (tmp_path / "elsewhere/var/lib/mcp/orchestration/index/cursor/default.json").exists()
    assert [*machine.json("show", "cursor")["payload"]["mcpServers"]] == ["notes", "ours"]


@pytest.mark.parametrize(
    ("argv", "tool", "ask", "code", "way"),
    [
        (["profiles", "zeb"], "list_profiles", {"client_id": "zeb"}, 4, "'mcpctl client list' lists"),
        (
            ["show", "cursor", "--profile", "nope"], "get_config", {"client_id": "cursor", "profile_id": "nope"}, 4,
            "it has default, dev",
        ),
        (
            ["diff", "cursor", "--artifact", "abc"], "diff_config", {"client_id": "cursor", "local_artifact_id": "abc"},
            4, "'mcpctl client history cursor' lists",
        ),
        (
            ["draft", "remove", "cursor", "nope"], "remove_server_from_config",
            {"client_id": "cursor", "server_name": "nope"}, 4, "'mcpctl client draft show cursor' lists",
        ),
    ],
    ids=["client", "profile", "artifact", "server"],
)  # fmt: skip
def test_a_failure_is_the_error_object_of_the_tools_and_one_line(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    tool: str,
    ask: dict[str, str],
    code: int,
    way: str,
) -> None:
    ended = machine(*argv, "--json")
    assert ended.code == code
    with pytest.raises(McpdError) as raised:
        machine.tools(monkeypatch).call(tool, ask)
    assert ended.json == error_object(raised.value)
    assert ended.err.startswith("mcpctl: ")
    assert way in ended.err
    assert ended.err.count("\n") == 1
    assert ended.err.endswith("\n")


def test_files_are_no_way_to_keep_mcpctl_waiting_or_to_write_to_the_terminal(machine: Machine) -> None:
    machine.cursor.parent.mkdir()
    os.mkfifo(machine.cursor)
    assert str(machine.cursor) in machine.refused("deploy", "cursor", "--yes", code=1)
    assert str(machine.cursor) in machine("detect").err
    for argv in (["validate", "cursor", "--file"], ["verify"], ["draft", "add", "cursor", "x", "--entry"]):
        assert str(machine.cursor) in machine.refused(*argv, str(machine.cursor), code=2)
    machine.cursor.unlink()
    name = "\x1b[2Jevil\nmcpctl: all is well"
    machine.write(json.dumps({"mcpServers": {name: MINE}}))
    machine.install("web")
    said = machine("draft", "add", "cursor", name, "--entry", "-", stdin='{"command": "x", "args": []}')
    assert (said.code, "\x1b" in said.err) == (1, False)
    machine.json("draft", "add", "cursor", "web")
    draft = machine.tree / "drafts/cursor/default.json"
    held = json.loads(draft.read_text())
    held["payload"]["mcpServers"] = {name: {"command": "x", "args": ["\x1b[31m"]}}
    draft.write_text(json.dumps(held))
    for argv in (
        ["diff", "cursor"],
        ["draft", "show", "cursor"],
        ["validate", "cursor"],
        ["deploy", "cursor", "--dry-run"],
    ):
        ended = machine(*argv)
        assert "\x1b" not in ended.out + ended.err
        assert "\nmcpctl: all is well" not in ended.out + ended.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be in somebody else's home")
@pytest.mark.parametrize("scope", [Scope.USER, Scope.SYSTEM])
def test_root_leaves_nothing_in_the_home_of_somebody_else(machine: Machine, scope: Scope) -> None:
    before = list(machine.home.iterdir())
    os.chown(machine.home, 12345, 12345)
    for words in (("show", "cursor"), ("publish", "cursor"), ("undo", "cursor"), ("detect",)):
        ended = machine(*words, scope=scope)
        assert (ended.code, "belongs to uid 12345" in ended.err) == (3, True), words
    assert list(machine.home.iterdir()) == before
