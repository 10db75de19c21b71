# SPDX-License-Identifier: LGPL-2.1-or-later
"""Steps of a desktop frontend, taken with gdbus and busctl alone."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.rig import Rig

NAME = "org.mcpd.Mcp1"
ROOT = "/org/mcpd/Mcp1"
MANAGER = "org.mcpd.Mcp1.Manager"
SERVER = "com.example.echo"
SERVER_PATH = f"{ROOT}/server/com_2eexample_2eecho"
TERMINAL = {"done", "failed", "cancelled"}


def gdbus(rig: Rig, method: str, *args: str, path: str = ROOT) -> str:
    """Call *method*; what gdbus printed."""
    command = ["gdbus", "call", "--session", "-d", "org.mcpd.Mcp1", "-o", path, "-m", method, *args]
    done = subprocess.run(command, env=rig.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manager(rig: Rig, method: str, *args: str) -> str:
    """Call *method* of the Manager."""
    return gdbus(rig, f"org.mcpd.Mcp1.Manager.{method}", *args)


def finish(rig: Rig, job: str) -> None:
    """Wait until the server a job was about has its state, as a frontend without signals would: by looking."""
    path = re.search(r"'(/org/mcpd/Mcp1/job/\d+)'", job)
    assert path, job
    give_up = time.monotonic() + 60
    while True:
        done = subprocess.run(
            ["busctl", "--user", "get-property", "org.mcpd.Mcp1", path[1], "org.mcpd.Mcp1.Job", "State"],
            env=rig.environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        state = done.stdout.split('"')[1] if done.returncode == 0 else done.stderr
        if state in TERMINAL:
            assert state == "done"
            return
        assert time.monotonic() < give_up, state
        time.sleep(0.1)


def test_install_list_and_remove_by_gdbus(rig: Rig) -> None:
    rig.mcpctl("remove", SERVER)
    assert SERVER in manager(rig, "ListAvailable", "{}", "")
    finish(rig, manager(rig, "Install", SERVER, "{}"))
    assert SERVER in manager(rig, "ListServers", "{}")
    assert SERVER in gdbus(rig, "org.freedesktop.DBus.ObjectManager.GetManagedObjects")
    finish(rig, manager(rig, "Uninstall", SERVER, "{}"))
    assert SERVER not in manager(rig, "ListServers", "{}")


def test_configure_by_gdbus(installed: Rig) -> None:
    manager(installed, "SetConfig", SERVER, "{'greeting': <'servus'>}", "{}")
    assert "servus" in manager(installed, "GetConfig", SERVER)


@pytest.mark.parametrize(
    "command",
    [
        ["gdbus", "call", "--session", "-d", NAME, "-o", ROOT, "-m", f"{MANAGER}.Spawn", SERVER, "{}", "0", "{}"],
        ["busctl", "--user", "call", NAME, ROOT, MANAGER, "Spawn", "sa{uh}ta{sv}", SERVER, "0", "0", "0"],
    ],
    ids=["gdbus", "busctl"],
)
def test_a_client_that_leaves_at_once_is_told_why_it_cannot_spawn(installed: Rig, command: list[str]) -> None:
    done = subprocess.run(command, env=installed.environ, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    assert f"{command[0]} disconnects from the message bus" in done.stderr
    assert f"'mcpctl run {SERVER}'" in done.stderr
    assert manager(installed, "ListSessions") == "(@aa{sv} [],)\n"


def test_a_client_that_leaves_at_once_learns_if_it_may_spawn(installed: Rig) -> None:
    assert "'/'" in manager(installed, "Spawn", SERVER, "{}", "0", "{'check': <true>}")


def documented_commands() -> list[str]:
    page = (Path(__file__).parents[2] / "docs/dbus.md").read_text()
    lines = [line for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def test_the_documented_loop_ends_where_a_job_waits_for_the_client(rig: Rig, registry: Path, tmp_path: Path) -> None:
    entry = json.loads(registry.read_text())["servers"][0] | {"id": "waits"}
    entry["configurableProperties"] = [{"key": "needed", "required": True}]
    (tmp_path / "echo.json").write_text(json.dumps(entry))
    commands = documented_commands()
    cancel = 'busctl --user call org.mcpd.Mcp1 "$job" org.mcpd.Mcp1.Job Cancel'
    (last,) = (at for at, line in enumerate(commands) if line.startswith("until "))
    done = subprocess.run(
        ["bash", "-eu", "-c", "\n".join([*commands[: last + 1], cancel])],
        env=rig.environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.endswith('s "needs-config"\n'), done.stderr


def test_the_documented_commands_work_as_printed(rig: Rig, registry: Path, tmp_path: Path) -> None:
    rig.mcpctl("remove", SERVER)
    entry = json.loads(registry.read_text())["servers"][0]
    (tmp_path / "echo.json").write_text(json.dumps(entry))
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", "\n".join(documented_commands())],
        env=rig.environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 's "done"' in done.stdout
    assert f"'{SERVER}'" in manager(rig, "ListServers", "{}")
    assert "['api_key']" in manager(rig, "GetConfig", SERVER)


def test_the_tree_and_the_introspection_are_the_documented_ones(installed: Rig) -> None:
    tree = subprocess.run(
        ["busctl", "--user", "tree", "--list", "org.mcpd.Mcp1"], env=installed.environ, capture_output=True, text=True,
        check=True,
    ).stdout.split()  # fmt: skip
    assert ROOT in tree
    assert SERVER_PATH in tree
    shown = subprocess.run(
        ["busctl", "--user", "introspect", "org.mcpd.Mcp1", ROOT],
        env=installed.environ, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for member in ("Install", "ListServers", "SetSecret", "Spawn", "JobRemoved", "CatalogChanged", "GetManagedObjects"):
        assert f".{member} " in shown
