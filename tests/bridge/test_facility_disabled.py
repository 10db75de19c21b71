# SPDX-License-Identifier: LGPL-2.1-or-later
"""Seed 004's T5.6 and T14.3: what mcpd says is disabled is not served, however it is asked for."""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.bridge_harness import descendants, eventually, initialize, text_of
from tests.bridge.bridge_machine import Machine
from tests.bridge.facility import SERVER, request, tool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the servers ``f``, and ``off``, whose manifest disables it."""
    found = Machine(tmp_path_factory.mktemp("machine"))
    try:
        for name, changes in (("f", {}), ("off", {"disabled": True})):
            found.install(name, changes)
            shutil.copy(SERVER, found.home / ".local/share/mcp/installed" / name / "server.py")
        found.boot()
        yield found
    finally:
        found.close()


MESSAGES = (tool("echo", 5, message="x"), request("tools/list", 5), initialize(5))


def is_refused(machine: Machine, server: str, message: dict[str, Any]) -> bool:
    reply = machine.client(server).post(message)
    error = reply.json().get("error", {"message": ""})
    return (reply.status_code, reply.json()["id"]) == (403, 5) and "disabled" in error["message"]


@pytest.mark.parametrize("message", MESSAGES)
def test_T5_6_T14_3_a_disabled_server_is_refused_and_not_started(machine: Machine, message: dict[str, Any]) -> None:
    before = descendants(machine.daemon.pid)
    assert is_refused(machine, "off", message)
    assert descendants(machine.daemon.pid) <= before


def test_T5_6_T14_3_a_server_can_be_disabled_while_it_is_in_use(machine: Machine) -> None:
    assert text_of(machine.client("f").open().ask(tool("echo", message="before"))) == "before"
    switch = machine.home / ".config/mcp/mcps.json"
    switch.parent.mkdir(parents=True, exist_ok=True)
    switch.write_text(json.dumps({"f": {"enabled": False}}))
    for message in MESSAGES:
        eventually(partial(is_refused, machine, "f", message), "mcpd read what was switched off")
    switch.unlink()
    eventually(lambda: machine.client("f").post(initialize(5)).status_code == 200, "it is switched on again")
    assert text_of(machine.client("f").open().ask(tool("echo", message="after"))) == "after"
