# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl on a real machine: what runs, what was logged, what is wrong."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.system.machine import Inside, Machine

PIPE = -1
FORGED = """
import socket, sys
entry = f"MESSAGE=forged {sys.argv[2]}\\nPRIORITY=6\\nSYSLOG_IDENTIFIER=mcp-server\\nMCP_SERVER_ID={sys.argv[1]}\\n"
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(entry.encode(), "/run/systemd/journal/socket")
"""


@pytest.fixture
def running(machine: Machine, echo: str) -> Iterator[Inside]:
    """``mcpctl run echo`` of root, answering."""
    program = machine.popen("mcpctl", "run", echo, stdin=PIPE, stdout=PIPE)
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    program.stdin.flush()
    assert json.loads(program.stdout.readline())["result"] == {}
    yield program
    program.kill()
    program.wait()


def _sessions(machine: Machine, user: str = "root") -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = json.loads(machine.mcpctl("ps", "--json", user=user).stdout)["sessions"]
    return sessions


def test_ps_shows_the_unit_and_what_it_uses(machine: Machine, echo: str, running: Inside) -> None:
    (session,) = _sessions(machine)
    assert (session["server-id"], session["state"], session["owner-uid"]) == (echo, "running", 0)
    assert session["unit"].startswith("mcpd-spawn@")
    assert machine.run("ps", "-o", "user=", "-p", str(session["pid"])).stdout.strip() == "mcp-server"
    used = machine.property(session["unit"], "CPUUsageNSec")
    assert 0 < session["cpu"] <= int(used) / 1e9 + 0.001
    for key, name in (("memory", "MemoryCurrent"), ("tasks", "TasksCurrent")):
        assert (key in session) == machine.property(session["unit"], name).isdigit()
    heading, row = machine.mcpctl("ps").stdout.splitlines()
    assert session["unit"] in row
    assert "CPU" in heading


def test_stop_ends_a_server_and_its_unit(machine: Machine, echo: str, running: Inside) -> None:
    (session,) = _sessions(machine)
    assert machine.mcpctl("stop", echo).stdout.startswith(f"Stopped {echo} (session ")
    running.wait(20)
    machine.wait_until(lambda: not _sessions(machine), "the session is gone")
    unit = session["unit"]
    listed = ("systemctl", "list-units", "--all", "--no-legend", unit)
    machine.wait_until(lambda: not machine.run(*listed).stdout.strip(), f"{unit} is gone")


def test_a_user_sees_and_stops_only_what_is_theirs(machine: Machine, echo: str, running: Inside) -> None:
    assert _sessions(machine, "alice") == []
    (session,) = _sessions(machine)
    stop = ("busctl", "call", "org.mcpd.Mcp1", session["path"], "org.mcpd.Mcp1.Session", "Stop", "a{sv}", "0")
    assert machine.run(*stop, user="bob", check=False).returncode != 0
    assert [(one["path"], one["state"]) for one in _sessions(machine)] == [(session["path"], "running")]


def test_logs_show_the_server_and_mcpd_and_nobody_else(machine: Machine, echo: str) -> None:
    word = secrets.token_hex(8)
    machine.python(FORGED, "bob", echo, word)
    machine.mcpctl("call", echo, "stderr", f"text=real {word}")
    assert any(word in str(entry["MESSAGE"]) for entry in machine.journal("MCP_SERVER_ID=echo", "_UID=1001"))
    lines = machine.wait_until(
        lambda: [line for line in machine.mcpctl("logs", echo).stdout.splitlines() if word in line],
        "the journal has the line",
    )
    assert [line.partition("]: ")[2] for line in lines] == [f"real {word}"]
    whole = machine.mcpctl("logs", echo, "--since=-5min").stdout
    assert f"{echo} started for uid 0" in whole
    assert len(machine.mcpctl("logs", echo, "-n", "2").stdout.splitlines()) == 2
    assert word not in machine.mcpctl("logs", echo, "--since", "tomorrow").stdout


def test_logs_follow(machine: Machine, echo: str) -> None:
    word = secrets.token_hex(8)
    follower = machine.popen("mcpctl", "logs", "-f", "-n", "1", echo, stdout=PIPE)
    assert follower.stdout is not None
    assert follower.stdout.readline()
    machine.mcpctl("call", echo, "stderr", f"text={word}")
    while word not in (line := follower.stdout.readline().decode()):
        assert line, "it ended"
    follower.terminate()
    follower.wait(20)


def test_logs_of_a_users_server_that_is_gone(machine: Machine) -> None:
    word = secrets.token_hex(8)
    machine.mcpctl("install", "pypi:mcp-echo", "--id", "short-lived", "--yes", user="alice")
    machine.mcpctl("call", "short-lived", "stderr", f"text={word}", user="alice")
    machine.mcpctl("remove", "short-lived", user="alice")
    machine.run("journalctl", "--sync")
    done = machine.mcpctl("logs", "short-lived", user="alice")
    assert word in done.stdout
    assert "Server short-lived no longer exists" in done.stderr
    assert machine.mcpctl("logs", "never-was", user="alice", check=False).returncode == 4
    assert machine.mcpctl("logs", "short-lived", user="bob", check=False).returncode == 4


def test_logs_say_who_may_read_the_journal(machine: Machine, echo: str) -> None:
    done = machine.mcpctl("--system", "logs", echo, user="alice", check=False)
    assert done.returncode == 3
    assert "systemd-journal" in done.stderr


def _doctor(machine: Machine, *argv: str, user: str = "root") -> tuple[int, dict[str, dict[str, str]]]:
    done = machine.mcpctl("doctor", "--json", *argv, user=user, check=False)
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize(("argv", "user"), [((), "root"), (("--system",), "alice"), (("--user",), "alice")])
def test_doctor_is_content_with_what_was_installed(machine: Machine, argv: tuple[str, ...], user: str) -> None:
    code, checks = _doctor(machine, *argv, user=user)
    # node is not installed here, and root's secrets are not everybody's to look at.
    expected = {"node", "npm", *(("secrets",) if user != "root" else ())}
    assert [check for name, check in checks.items() if check["result"] != "ok" and name not in expected] == []
    assert code == 0
    if "--user" not in argv:
        assert checks["polkit actions"]["result"] == "ok"


def test_doctor_finds_what_is_broken(fresh_machine: Callable[[], Machine]) -> None:
    machine = fresh_machine()
    machine.run("chmod", "666", "/run/mcp/spawn.sock")
    machine.run("systemctl", "stop", "mcpd-build.socket")
    machine.run("groupdel", "mcp")
    machine.run("sed", "-i", "s/unix-user:mcpd/unix-user:nobody/", "/usr/share/polkit-1/actions/org.mcpd.mcp1.policy")
    machine.run("systemctl", "restart", "polkit.service")
    machine.write("/etc/mcp/mcpd.toml", '[runtime]\nsandbox = "off"\n')
    code, checks = _doctor(machine)
    assert code == 1
    assert "mcpd 666 instead of mcpd 600" in checks["mcpd-spawn.socket"]["message"]
    assert checks["mcpd-build.socket"]["result"] == "fail"
    assert checks["users"]["message"] == "missing: group mcp"
    assert "mcpd may not check" in checks["polkit actions"]["message"]
    assert checks["sandbox"]["result"] == "warn"


def test_completions_are_where_shells_look(machine: Machine) -> None:
    for path in (
        "bash-completion/completions/mcpctl",
        "zsh/vendor-completions/_mcpctl",
        "fish/vendor_completions.d/mcpctl.fish",
    ):
        assert "mcpctl" in machine.read(f"/usr/share/{path}")


@pytest.mark.parametrize(
    "page",
    ["mcpctl.1", "mcpd.8", "mcpd-bridge.8", "mcpd.toml.5", "mcp-manifest.5", "mcp-sources.list.5", "org.mcpd.Mcp1.5"],
)
def test_manual_pages_are_found(machine: Machine, page: str) -> None:
    name, _, section = page.rpartition(".")
    shown = machine.run("man", section, name, env={"MANPAGER": "cat", "MANWIDTH": "100"}).stdout
    assert "NAME" in shown
    assert f"{name} - " in shown
