# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was set for a script server is dropped, whatever has become of its script; and what is said of odd names."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from mcpd.bus.client import Client
from mcpd.errors import InvalidArgument, McpdError
from mcpd.paths import Scope
from tests.bus.harness import connected
from tests.bus.inside import served

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bus.harness import Machine

PROPERTIES = [{"key": "format"}, {"key": "token", "sensitive": True}]
FORGET = {"forget": True}


def kept(machine: Machine) -> list[Path]:
    layout = machine.paths.user
    return [path for place in (layout.secrets, layout.overlay) for path in place.glob("*.json")]


@pytest.mark.parametrize("left", ["def f(:\n", None, "def f(): pass\n"])
async def test_all_that_was_set_is_forgotten(machine: Machine, left: str | None) -> None:
    script = machine.paths.user.scripts / "x.py"
    script.parent.mkdir(parents=True)
    script.write_text("")
    machine.paths.user.mcps.parent.mkdir(parents=True, exist_ok=True)
    machine.paths.user.mcps.write_text(json.dumps({"x": {"configurableProperties": PROPERTIES}}))
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()) as core,
        connected(machine.bus) as connection,
    ):
        client = Client(connection, system=False)
        await client.manager.call("SetConfig", "sa{sv}a{sv}", ["x", {"format": "odt"}, {}])
        core.store.set_secret("x", "token", "s3cret")
        assert len(kept(machine)) == 2
        state = machine.paths.user.state / "x"
        (state / "deep").mkdir(parents=True)
        if left is None:
            script.unlink()
        else:
            script.write_text(left)
        (await client.run_job("Uninstall", "sa{sv}", ["x", FORGET])).check()
        assert kept(machine) == []
        assert not state.exists()


async def test_what_is_installed_is_not_forgotten_but_removed(machine: Machine) -> None:
    machine.install("x", where=machine.paths.user.installed)
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()),
        connected(machine.bus) as connection,
    ):
        client = Client(connection, system=False)
        with pytest.raises(InvalidArgument, match="x is installed"):
            (await client.run_job("Uninstall", "sa{sv}", ["x", FORGET])).check()
        with pytest.raises(InvalidArgument, match="cannot be used together"):
            await client.run_job("Uninstall", "sa{sv}", ["x", {**FORGET, "keep-config": True}])


async def test_an_error_about_a_name_that_is_no_text_is_answered(machine: Machine) -> None:
    machine.paths.user.scripts.mkdir(parents=True)
    target = os.fsencode(machine.root) + b"/\xff\xfe.py"
    with open(target, "wb"):  # noqa: PTH123 -- no path of pathlib's
        pass
    os.symlink(target, os.fsencode(machine.paths.user.scripts / "odd.py"))  # noqa: PTH211
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()),
        connected(machine.bus) as connection,
    ):
        manager = Client(connection, system=False).manager
        with pytest.raises(McpdError) as error:
            await manager.call("GetConfig", "s", ["odd"])
        assert "\\udcff\\udcfe.py" in error.value.message
