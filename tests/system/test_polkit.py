# SPDX-License-Identifier: LGPL-2.1-or-later
"""polkit decides, asked by mcpd, about real callers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.machine import Inside, Machine

ACTION = "org.mcpd.mcp1."
ASKS = "==== AUTHENTICATING FOR "

AGENT = r"""
import asyncio, os, sys
from dbus_next import BusType, Message, MessageType, Variant
from dbus_next.aio import MessageBus
from dbus_next.service import ServiceInterface, method

class Agent(ServiceInterface):
    def __init__(self):
        super().__init__("org.freedesktop.PolicyKit1.AuthenticationAgent")

    @method()
    async def BeginAuthentication(self, action: "s", message: "s", icon: "s", details: "a{ss}", cookie: "s",
                                  identities: "a(sa{sv})"):
        print("asked", action, flush=True)
        self.cookie = cookie
        await asyncio.get_running_loop().create_future()

    @method()
    def CancelAuthentication(self, cookie: "s"):
        print("withdrawn", cookie == self.cookie, flush=True)

async def main():
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    bus.export("/agent", Agent())
    pid = int(sys.argv[1])
    with open(f"/proc/{pid}/stat") as stat:
        start = int(stat.read().rpartition(")")[2].split()[19])
    subject = ["unix-process", {"pid": Variant("u", pid), "start-time": Variant("t", start)}]
    reply = await bus.call(Message(
        destination="org.freedesktop.PolicyKit1", path="/org/freedesktop/PolicyKit1/Authority",
        interface="org.freedesktop.PolicyKit1.Authority", member="RegisterAuthenticationAgent",
        signature="(sa{sv})ss", body=[subject, "C", "/agent"]))
    print(reply.body or "ready", flush=True)
    await bus.wait_for_disconnect()

asyncio.run(main())
"""
"""A polkit agent for one process that never answers."""

WAITING = "import os, sys; sys.stdin.readline(); os.execvp(sys.argv[1], sys.argv[1:])"
"""Starts a program, as the same process, once a line comes in."""


def restart_polkit(machine: Machine) -> None:
    machine.run("systemctl", "reset-failed", "polkit.service")
    machine.run("systemctl", "restart", "polkit.service")


@pytest.mark.parametrize(
    ("command", "action"),
    [
        (("install", "git+file:///srv/git/echo", "--id", "by-bob"), "install-untrusted"),
        (("remove", "echo"), "uninstall"),
        (("config", "set", "echo", "key=value"), "configure"),
        (("secret", "set", "echo", "key"), "set-secret"),
        (("source", "add", "https://registry.invalid/"), "manage-sources"),
        (("refresh",), "refresh"),
        (("run", "echo"), "spawn"),
    ],
)
def test_a_user_without_rights_is_refused(machine: Machine, echo: str, command: tuple[str, ...], action: str) -> None:
    done = machine.mcpctl("--system", *command, user="bob", input=b"secret", check=False)
    assert done.returncode == 3
    assert f"{ACTION}{action} needs authentication" in done.stderr
    assert echo in machine.mcpctl("list", user="root").stdout
    assert "by-bob" not in machine.mcpctl("list").stdout


def test_nobody_is_asked_if_that_is_not_wanted(machine: Machine, echo: str) -> None:
    with machine.terminal("mcpctl", "--system", "--no-ask-password", "remove", echo, user="admin") as terminal:
        assert terminal.end() == 3
        assert ASKS not in terminal.shown
        assert f"{ACTION}uninstall needs authentication" in terminal.shown


def test_an_administrator_gives_a_password_on_the_terminal(machine: Machine) -> None:
    install = ("mcpctl", "--system", "install", "pypi:mcp-echo", "--id", "by-admin", "--yes")
    with machine.terminal(*install, user="admin") as terminal:
        terminal.expect(ASKS + ACTION + "install-untrusted")
        terminal.expect("Password:")
        terminal.type_unseen("admin")
        assert terminal.end() == 0, terminal.shown
        assert "Installed by-admin 1.0 (system)." in terminal.shown
    machine.mcpctl("remove", "by-admin")


def test_a_wrong_password_is_no_authorization(machine: Machine, echo: str) -> None:
    with machine.terminal("mcpctl", "--system", "remove", echo, user="admin") as terminal:
        terminal.expect("Password:")
        terminal.type_unseen("wrong")
        terminal.expect("AUTHENTICATION FAILED")
        assert terminal.end() == 3, terminal.shown
    assert echo in machine.mcpctl("list").stdout


def test_another_users_password_is_asked_of_an_administrator_only(machine: Machine, echo: str) -> None:
    """bob may not authenticate as himself: the agent offers him the administrator."""
    with machine.terminal("mcpctl", "--system", "remove", echo, user="bob") as terminal:
        terminal.expect("Authenticating as: admin")
        terminal.expect("Password:")
        terminal.type_unseen("bob")
        terminal.expect("AUTHENTICATION FAILED")
    assert echo in machine.mcpctl("list").stdout


def test_root_is_asked_nothing(machine: Machine, echo: str) -> None:
    with machine.terminal("mcpctl", "config", "get", echo) as terminal:
        assert terminal.end() == 0
    with machine.terminal("mcpctl", "source", "add", "https://registry.invalid/") as terminal:
        assert terminal.end() == 0, terminal.shown
        assert ASKS not in terminal.shown
    machine.mcpctl("source", "remove", "https://registry.invalid/")


@pytest.fixture
def waiting(machine: Machine, echo: str) -> Iterator[tuple[Inside, Inside]]:
    """A call of bob that waits for an agent that never answers, and the agent."""
    pipe = -1
    call = ["busctl", "--allow-interactive-authorization=yes", "--timeout=120", "call", "org.mcpd.Mcp1",
            "/org/mcpd/Mcp1", "org.mcpd.Mcp1.Manager", "Uninstall", "sa{sv}", echo, "0"]  # fmt: skip
    caller = machine.popen("python3", "-c", WAITING, *call, user="bob", stdin=pipe, stdout=pipe, stderr=pipe)
    agent = machine.popen("python3", "-c", AGENT, str(caller.inner_pid), user="bob", stdout=pipe, stderr=pipe)
    assert agent.stdout is not None
    assert caller.stdin is not None
    assert agent.stdout.readline() == b"ready\n"
    caller.stdin.write(b"\n")
    caller.stdin.flush()
    assert agent.stdout.readline() == f"asked {ACTION}uninstall\n".encode()
    yield caller, agent
    for program in (caller, agent):
        program.kill()
        program.wait()


def test_a_prompt_that_nobody_answers_blocks_nobody_else(machine: Machine, waiting: tuple[Inside, Inside]) -> None:
    caller, _agent = waiting
    assert "echo" in machine.mcpctl("--system", "list", user="alice").stdout
    assert machine.mcpctl("call", "echo", "echo", "text=hello").stdout == "hello\n"
    assert machine.mcpctl("--system", "refresh", user="alice", check=False).returncode == 3
    assert caller.poll() is None


def test_the_prompt_of_a_client_that_vanishes_is_withdrawn(machine: Machine, waiting: tuple[Inside, Inside]) -> None:
    caller, agent = waiting
    caller.kill()
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"withdrawn True\n"
    assert "echo" in machine.mcpctl("list").stdout


def test_polkit_knows_every_action_and_lets_mcpd_ask(machine: Machine) -> None:
    known = machine.run("pkaction").stdout.split()
    shipped = re.findall(r'<action id="([^"]+)"', machine.read("/usr/share/polkit-1/actions/org.mcpd.mcp1.policy"))
    assert len(shipped) >= 11
    assert set(shipped) == {action for action in known if action.startswith(ACTION)}
    for action in shipped:
        # Only the owner of an action may ask about others, or say what it is about.
        assert "org.freedesktop.policykit.owner -> unix-user:mcpd" in (
            machine.run("pkaction", "--verbose", "--action-id", action).stdout
        )


def test_details_reach_polkits_rules(machine: Machine, echo: str) -> None:
    """An administrator's rule decides by what is asked about, so mcpd, which is not root, may pass it on."""
    rule = """polkit.addRule(function(action, subject) {
        if (action.id == "org.mcpd.mcp1.uninstall" && subject.user == "bob")
            return action.lookup("id") == "for-bob" ? polkit.Result.YES : polkit.Result.NO;
    });"""
    machine.mcpctl("install", "pypi:mcp-echo", "--id", "for-bob", "--yes")
    machine.write("/etc/polkit-1/rules.d/10-test.rules", rule)
    try:
        restart_polkit(machine)
        assert machine.mcpctl("--system", "remove", echo, user="bob", check=False).returncode == 3
        assert machine.mcpctl("--system", "remove", "for-bob", user="bob").returncode == 0
    finally:
        machine.run("rm", "/etc/polkit-1/rules.d/10-test.rules")
        restart_polkit(machine)
    assert echo in machine.mcpctl("list").stdout


SESSION = ("systemd-run", "--quiet", "--wait", "--collect", "--expand-environment=no", "-p", "PAMName=login", "-p",
           "Environment=XDG_SEAT=seat0 XDG_SESSION_TYPE=tty XDG_SESSION_CLASS=user")  # fmt: skip
"""Logs somebody in at the machine itself, as a display manager does."""


def test_who_administers_the_machine_and_sits_at_it_is_asked_less(machine: Machine) -> None:
    routine = {"update", "uninstall", "rollback", "refresh", "configure", "install-trusted"}
    never = {"install-untrusted", "set-secret", "manage-sources", "cancel-foreign"}
    script = "loginctl show-session $XDG_SESSION_ID -p Active -p Remote; for a; do pkcheck --process $$ --action-id $a"
    script += " >/dev/null 2>&1 && echo $a; done; true"
    asked = [ACTION + action for action in sorted(routine | never)]
    for user, right_away in (("admin", routine), ("bob", {"update", "refresh"})):
        session = (*SESSION, "--pipe", f"--uid={user}", "/bin/bash", "-c", script, "bash", *asked)
        lines = machine.run(*session).stdout.split()
        assert lines[:2] == ["Remote=no", "Active=yes"]
        assert {line.removeprefix(ACTION) for line in lines[2:]} == right_away, user


def test_the_rule_holds_for_mcpctl(machine: Machine, echo: str) -> None:
    machine.run(*SESSION, "--pipe", "--uid=admin", "mcpctl", "--system", "--no-ask-password", "refresh")
    call = ("mcpctl", "--system", "call", echo, "echo", "text=hi", "--json")
    spawned = machine.run(*SESSION, "--pipe", "--uid=bob", *call)
    assert json.loads(spawned.stdout)["content"][0]["text"] == "hi"


def test_the_password_is_asked_for_within_a_session_too(machine: Machine, echo: str) -> None:
    """There the agent of the terminal stands back behind one of the desktop, and there is none."""
    command = ("mcpctl", "--system", "secret", "set", echo, "key")
    with machine.terminal(*SESSION, "--pty", "--uid=admin", *command) as terminal:
        terminal.expect("key of echo:")
        terminal.type_unseen("s3cret")
        terminal.expect(ASKS + ACTION + "set-secret")
        terminal.expect("Password:")
        terminal.type_until("admin", "AUTHENTICATION COMPLETE")
        terminal.end()
        assert "needs authentication" not in terminal.shown
