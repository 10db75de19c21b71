# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bridge's token goes to no client that would send it to another user, who has the port."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.clients.payload import BRIDGE
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.client_machine import Machine

NOBODY = 65533
"""A uid that is nobody here."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


@pytest.fixture
def held() -> Iterator[socket.socket]:
    """A port of loopback at which this user listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def squatted(held: socket.socket) -> socket.socket:
    """A port of loopback at which another user listens."""
    os.fchown(held.fileno(), NOBODY, -1)
    return held


def address(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname())


def unit(machine: Machine, *listen: str, active: str = "active", file: str = "enabled") -> None:
    """Have systemd say this of the unit with the bridge's port."""
    lines = [f"ActiveState={active}", f"UnitFileState={file}", *(f"Listen={each} (Stream)" for each in listen)]
    program = machine.programs / "systemctl"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    program.chmod(0o755)


def listen(machine: Machine, address: str) -> None:
    machine.write(f'[bridge]\nlisten = "{address}"\n', machine.home / ".config/mcp/mcpd.toml")


def profile(machine: Machine, url: str) -> None:
    """Let the profile ``http`` name *url*."""
    text = f'name = "HTTP"\ntransport = "http"\nurl = "{url}"\n'
    machine.write(text, machine.home / ".config/mcp/client-profiles/http.toml")


def deployed(machine: Machine) -> Any:
    """What stands in Claude Code's file for the server."""
    return json.loads((machine.home / ".claude.json").read_text())["mcpServers"]["notes"]


def port_checks(machine: Machine, scope: str = "user") -> list[tuple[str, str, str]]:
    """What doctor finds about the port: the result, what is wrong and the way out."""
    checks = machine.mcpctl(f"--{scope}", "doctor", "--json").json["checks"]
    return [(each["result"], each["message"], each["advice"]) for each in checks if each["name"] == "bridge port"]


DEPLOY = ("deploy", "claude-code", "--profile", "http", "--yes")


def test_a_configuration_with_urls_is_deployed_with_the_port_of_the_user_who_has_it(
    machine: Machine, held: socket.socket
) -> None:
    unit(machine, address(held))
    machine.json(*DEPLOY)
    assert deployed(machine) == {
        "type": "http",
        "url": f"http://{address(held)}/mcp/notes",
        "headers": {"Authorization": "Bearer ${MCPD_BRIDGE_TOKEN}"},
    }
    released = machine.json("show", "claude-code", "--profile", "http")["payload"]["mcpServers"]["notes"]
    assert released["url"] == f"{BRIDGE}/mcp/notes"
    assert machine.json("diff", "claude-code", "--profile", "http")["status"] == "up-to-date"
    assert machine.json("drift", "claude-code")["clients"][0]["status"] == "in-sync"


def test_the_systems_configuration_gets_the_port_of_the_user_who_deploys_it(
    machine: Machine, held: socket.socket
) -> None:
    machine.install("ours", Scope.SYSTEM)
    unit(machine, address(held))
    machine.json(*DEPLOY, scope=Scope.SYSTEM)
    entries = json.loads((machine.home / ".claude.json").read_text())["mcpServers"]
    assert entries["ours"]["url"] == f"http://{address(held)}/mcp/ours"


def test_a_policy_allows_the_bridge_of_each_user_with_one_pattern(machine: Machine, held: socket.socket) -> None:
    unit(machine, address(held))
    rules = '[commands]\nallowed = ["mcpctl"]\n[sources]\nallowed = ["git:*"{}]\n'
    machine.policy(rules.format(""))
    assert machine.json(*DEPLOY)["added"] == []
    machine.policy(rules.format(', "url:http://127.0.0.1:0/mcp/*"'))
    machine.json(*DEPLOY)
    assert deployed(machine)["url"] == f"http://{address(held)}/mcp/notes"


def test_the_address_of_the_settings_is_used_too(machine: Machine, held: socket.socket) -> None:
    listen(machine, address(held))
    machine.json(*DEPLOY)
    assert deployed(machine)["url"] == f"http://{address(held)}/mcp/notes"


@pytest.mark.parametrize("address", ["", "127.0.0.1:0"])
def test_without_a_port_that_stays_no_url_is_deployed_and_the_way_to_one_is_told(
    machine: Machine, address: str
) -> None:
    listen(machine, address)
    said = machine.refused(*DEPLOY, code=1)
    assert "systemctl --user enable --now mcpd-bridge-tcp.socket" in said
    assert not (machine.home / ".claude.json").exists()


@needs_root
@pytest.mark.parametrize("by", ["unit", "settings", "url", "url-of-all", "url-in-other-words"])
def test_no_client_is_sent_to_the_port_of_another_user(machine: Machine, squatted: socket.socket, by: str) -> None:
    port = squatted.getsockname()[1]
    if by == "unit":
        unit(machine, address(squatted), active="failed")
    elif by == "settings":
        listen(machine, address(squatted))
    else:
        hosts = {"url": "127.0.0.1", "url-of-all": "0.0.0.0", "url-in-other-words": "2130706433"}
        profile(machine, f"http://{hosts[by]}:{port}")
    for options in ((), ("--dry-run",)):
        assert f"uid {NOBODY}" in machine.refused(*DEPLOY, *options, code=1)
    assert not (machine.home / ".claude.json").exists()


def test_a_url_of_this_machine_where_nobody_listens_is_not_deployed(machine: Machine, held: socket.socket) -> None:
    profile(machine, f"http://{address(held)}")
    machine.json(*DEPLOY)
    assert deployed(machine)["url"] == f"http://{address(held)}/mcp/notes"
    # A client may try ::1 first, which is anybody's.
    profile(machine, f"http://localhost:{held.getsockname()[1]}")
    assert "use 127.0.0.1" in machine.refused(*DEPLOY, code=1)
    profile(machine, f"http://{address(held)}")
    held.close()
    assert "nothing is listening" in machine.refused(*DEPLOY, "--file", str(machine.home / "other.json"), code=1)


def test_what_takes_no_token_or_is_elsewhere_is_nobodys_business(machine: Machine) -> None:
    profile(machine, "https://mcp.example.com/base")
    machine.json(*DEPLOY)
    assert deployed(machine)["url"] == "https://mcp.example.com/base/mcp/notes"
    entry = json.dumps({"type": "http", "url": "http://127.0.0.1:1/mcp"})
    (machine.home / "entry.json").write_text(entry)
    machine.json("draft", "add", "claude-code", "plain", "--entry", str(machine.home / "entry.json"))
    machine.json("deploy", "claude-code", "--publish", "--yes")


@needs_root
@pytest.mark.parametrize("by", ["unit", "settings"])
def test_no_token_is_given_while_another_user_has_the_port(machine: Machine, squatted: socket.socket, by: str) -> None:
    file = machine.home / ".local/state/mcp/bridge.token"
    first = machine.mcpctl("--user", "token").out
    if by == "unit":
        unit(machine, address(squatted), active="failed", file="disabled")
    else:
        listen(machine, address(squatted))
    asked = machine.mcpctl("--user", "token")
    assert (asked.code, asked.out) == (1, "")
    assert f"{address(squatted)} belongs to uid {NOBODY}" in asked.err
    assert file.read_text() == first
    renewed = machine.mcpctl("--user", "token", "--renew")
    assert (renewed.code, renewed.out) == (1, "")
    assert "the old one is revoked" in renewed.err
    assert not file.exists()
    os.fchown(squatted.fileno(), os.getuid(), -1)
    again = machine.mcpctl("--user", "token")
    assert (again.code, again.err) == (0, "")
    assert again.out == file.read_text() != first


def test_no_token_is_given_while_nobody_has_the_port_of_the_unit(machine: Machine, held: socket.socket) -> None:
    place = address(held)
    unit(machine, place, active="inactive")
    held.close()
    asked = machine.mcpctl("--user", "token")
    assert (asked.code, asked.out) == (1, "")
    assert f"nothing is listening on {place}" in asked.err
    unit(machine, "127.0.0.1:1", active="inactive", file="disabled")
    assert machine.mcpctl("--user", "token").code == 0


@needs_root
def test_doctor_tells_who_has_the_port(machine: Machine, squatted: socket.socket) -> None:
    assert port_checks(machine) == []
    unit(machine, address(squatted), "[::1]:1", active="failed")
    foreign, lost = port_checks(machine)
    assert [foreign[0], lost[0]] == ["fail", "fail"]
    assert foreign[1].startswith(f"{address(squatted)} belongs to uid {NOBODY} and receives the token")
    assert (
        lost[1] == "nothing is listening on [::1]:1, where mcpd-bridge-tcp.socket should, so another user can take it"
    )
    assert "systemctl --user restart mcpd-bridge-tcp.socket" in lost[2]
    os.fchown(squatted.fileno(), os.getuid(), -1)
    unit(machine, address(squatted))
    assert port_checks(machine) == [("ok", f"{address(squatted)} is reserved by mcpd-bridge-tcp.socket", "")]
    unit(machine, active="inactive", file="disabled")
    listen(machine, address(squatted))
    ((result, message, _),) = port_checks(machine)
    assert (result, "while the bridge is not running" in message) == ("warn", True)


def test_doctor_tells_of_a_user_whose_number_makes_no_port(machine: Machine) -> None:
    unit(machine, active="inactive")
    ((result, message, advice),) = port_checks(machine)
    assert (result, "at most four digits" in message) == ("fail", True)
    assert advice == "choose a port: systemctl --user edit mcpd-bridge-tcp.socket"


@needs_root
def test_doctor_looks_at_the_systems_port(machine: Machine, squatted: socket.socket) -> None:
    unit(machine, address(squatted), active="failed")
    ((result, message, advice),) = port_checks(machine, "system")
    assert (result, f"belongs to uid {NOBODY}" in message) == ("fail", True)
    assert "systemctl edit mcpd-bridge-tcp.socket" in advice
