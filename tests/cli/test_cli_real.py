# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl with the real mcpd: one server's life, from a directory to nothing."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rig import BIN, Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = "com.example.echo"
ECHO = """\
import json, sys
results = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
}
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "tools/call":
        config = json.load(open("manifest.json"))["config"]
        result = {"content": [{"type": "text", "text": m["params"]["arguments"]["text"] + str(config["digits"])}]}
    else:
        result = results.get(m.get("method"), {})
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
print("end of input", flush=True)
sys.exit(9)
"""
MANIFEST = {
    "id": SERVER,
    "name": "Echo",
    "summary": "Says what it hears",
    "version": "1.0",
    "transports": [{"type": "stdio", "command": "python3", "args": ["server.py"]}],
    "permissions": ["network"],
    "configurableProperties": [
        {"key": "digits", "type": "integer", "default": 1},
        {"key": "api_key", "sensitive": True, "required": True},
    ],
}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A machine with mcpd and nothing installed."""
    with Rig() as machine:
        machine.start_daemon()
        yield machine


@pytest.fixture
def project(rig: Rig) -> Path:
    """A directory with a server."""
    directory = rig.home / "echo"
    directory.mkdir(exist_ok=True)
    (directory / "server.py").write_text(ECHO)
    (directory / "manifest.json").write_text(json.dumps(MANIFEST))
    return directory


@pytest.fixture
def installed(rig: Rig, project: Path) -> Rig:
    """The machine with that server installed."""
    (rig.home / "key").write_text("s3cret\n")
    argv = ["install", str(project), "--yes", "--reinstall", "--set", "digits=3"]
    done = rig.mcpctl(*argv, "--secret-file", f"api_key={rig.home}/key")
    assert (done.returncode, done.stdout) == (0, f"Installed {SERVER} 1.0 (user).\n"), done.stderr
    return rig


def test_installing_needs_consent_and_values(rig: Rig, project: Path) -> None:
    refused = rig.mcpctl("install", str(project))
    assert (refused.returncode, "--secret-file api_key=FILE" in refused.stderr) == (1, True)
    (rig.home / "key").write_text("s3cret")
    refused = rig.mcpctl("install", str(project), "--secret-file", f"api_key={rig.home}/key")
    assert (refused.returncode, "--yes" in refused.stderr) == (3, True)
    assert json.loads(rig.mcpctl("list", "--json").stdout) == {"servers": []}


def test_configuration_reaches_the_server(installed: Rig) -> None:
    assert installed.mcpctl("call", SERVER, "echo", "text=grüß").stdout == "grüß3\n"
    assert installed.mcpctl("config", "set", SERVER, "digits=42").returncode == 0
    assert installed.mcpctl("call", SERVER, "echo", "text=grüß").stdout == "grüß42\n"
    assert installed.mcpctl("config", "unset", SERVER, "digits").returncode == 0
    found = json.loads(installed.mcpctl("config", "get", SERVER, "--json").stdout)
    assert (found["values"], found["secrets-set"]) == ({"digits": 1}, ["api_key"])
    assert [known["key"] for known in found["properties"]] == ["digits", "api_key"]
    assert installed.mcpctl("config", "set", SERVER, "nope=1").returncode == 1
    assert installed.mcpctl("config", "set", SERVER, "api_key=x").returncode == 1


PROGRAM = """\
import json, os, sys
results = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
    "tools/list": {"tools": [{"name": "env", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": os.environ["API_KEY"] + os.environ["MODE"]}]},
}
for line in sys.stdin:
    m = json.loads(line)
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": results.get(m["method"], {})}), flush=True)
"""


def test_a_program_without_a_manifest_gets_its_key_and_its_network(rig: Rig) -> None:
    directory = rig.home / "program"
    directory.mkdir()
    (directory / "server.py").write_text(PROGRAM)
    (rig.home / "key").write_text("s3cret\n")
    argv = ["install", str(directory), "--command", "python3", "--arg", "server.py", "--permission", "network",
            "--secret", "API_KEY", "--env", "MODE=fast"]  # fmt: skip
    unanswered = rig.mcpctl(*argv)
    assert (unanswered.returncode, "--secret-file API_KEY=FILE" in unanswered.stderr) == (1, True), unanswered.stderr
    done = rig.mcpctl(*argv, "--secret-file", f"API_KEY={rig.home}/key")
    assert done.returncode == 0, done.stderr
    assert rig.mcpctl("call", "program", "env").stdout == "s3cretfast\n"
    shown = rig.mcpctl("show", "program").stdout
    assert "network  (may use the network)" in shown
    assert "s3cret" not in shown
    again = rig.mcpctl(*argv, "--secret-file", f"API_KEY={rig.home}/key")
    assert (again.returncode, "--reinstall" in again.stderr) == (1, True)
    assert rig.mcpctl("remove", "program").returncode == 0


def test_a_secret_is_nowhere_to_be_read(installed: Rig) -> None:
    assert installed.mcpctl("secret", "set", SERVER, "api_key", stdin="other-s3cret").returncode == 0
    shown = [installed.mcpctl(*argv, SERVER).stdout for argv in (["show"], ["config", "get"], ["show", "--json"])]
    assert all(text and "s3cret" not in text for text in shown)
    assert "s3cret" not in (installed.installed / SERVER / "manifest.json").read_text()


def test_run_is_the_server_itself(installed: Rig) -> None:
    pipe = subprocess.PIPE
    argv = [str(BIN / "mcpctl"), "--user", "run", SERVER]
    with subprocess.Popen(argv, env=installed.environ, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write('{"jsonrpc": "2.0", "id": "a", "method": "tools/list"}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["tools"][0]["name"] == "echo"
        listed = json.loads(installed.mcpctl("ps", "--json").stdout)["sessions"]
        assert [session["server-id"] for session in listed] == [SERVER]
        process.stdin.close()
        assert process.stdout.read() == "end of input\n"
    assert process.returncode == 9
    assert installed.mcpctl("ps").stdout == ""


def test_stop_ends_a_running_server(installed: Rig) -> None:
    argv = [str(BIN / "mcpctl"), "--user", "run", SERVER]
    with subprocess.Popen(argv, env=installed.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        assert installed.mcpctl("stop", SERVER).returncode == 0
        assert process.wait() == 143


def test_removing_leaves_nothing(installed: Rig) -> None:
    assert installed.mcpctl("tools", SERVER).stdout.splitlines()[1].split() == ["echo"]
    assert installed.mcpctl("remove", SERVER).stdout == f"Removed {SERVER}.\n"
    assert installed.mcpctl("remove", SERVER).returncode == 4
    assert installed.mcpctl("run", SERVER).returncode == 4
    assert json.loads(installed.mcpctl("list", "--json").stdout) == {"servers": []}
