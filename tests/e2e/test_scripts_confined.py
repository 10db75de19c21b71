# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scripts that do what they may not, on a real machine: it fails, is told, and touches nothing else."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.script_parts import HELLO, ScriptRig, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = '''\
import pathlib


def write(path: str) -> str:
    """Write a file."""
    pathlib.Path(path).write_text("written")
    return "written"


def home() -> str:
    """Write at home."""
    path = pathlib.Path.home() / "kept"
    path.write_text("kept")
    return path.name
'''
NETWORK = '''\
import socket


def reach(port: int) -> str:
    """Connect to this machine."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        return connection.recv(100).decode()
'''
GENERATE_BAD = "def generate_tools(server_name, context):\n    raise RuntimeError('the moon is full')\n"
GENERATE_WRITES = """\
import os, pathlib, socket, subprocess


def _works(function):
    try:
        function()
    except OSError:
        return False
    return True


def generate_tools(server_name, context):
    places = [pathlib.Path.home() / "transformed", *(pathlib.Path(each) / "transformed" for each in PLACES)]
    did = {f"wrote{number}": _works(place.touch) for number, place in enumerate(places)}
    did["made"] = _works(lambda: (pathlib.Path.home() / "directory").mkdir())
    did["reached"] = _works(lambda: socket.create_connection(("127.0.0.1", PORT), 5).close())
    did["removed"] = _works(lambda: (pathlib.Path.home() / "kept").unlink())
    did["ran"] = _works(lambda: subprocess.run(["touch", str(places[0])], check=False))
    return [{"name": name, "function": "home"} for name, worked in did.items() if worked and name != "ran"] + [
        {"name": "generated", "function": "home"}
    ]
"""


@pytest.fixture
def rig(machine: ScriptRig) -> Iterator[ScriptRig]:
    """The machine, whose scripts and entries end with the test."""
    yield machine
    machine.forget()


@pytest.fixture
def granted(machine: ScriptRig) -> Path:
    """A directory that can be granted."""
    directory = machine.home / "granted"
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    return directory


@pytest.fixture
def port() -> Iterator[int]:
    """Where this machine answers everybody who comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def build(rig: ScriptRig, name: str, transform: str, **entry: Any) -> None:
    """An entry with a transform, made as an administrator does, in the user's map."""
    source = rig.home / f"source-{name}"
    source.mkdir()
    (source / "transform.py").write_text(transform)
    whole = {name: {"auto_discover": True, "tools_transform_cid": "transform.py", **entry}}
    (source / "mcps.source.json").write_text(json.dumps(whole))
    target = rig.map.parent / "mcps.d" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    rig.done("mcps", "build", str(source / "mcps.source.json"), "-o", str(target))
    rig.listed()


# ---------------------------------------------------------------------------------------- what it may


def test_a_script_writes_to_its_home_and_where_it_was_granted_and_nowhere_else(rig: ScriptRig, granted: Path) -> None:
    rig.put("files.py", FILES)
    name = f"mcpd-test-{os.getpid()}"
    outside = [rig.scripts / "beside.py", rig.map.parent / "mine.json", rig.installed / name]
    outside += [Path(directory, name) for directory in ("/etc", "/usr/share", "/root", "/proc")]
    for target in (granted / "a", *outside):
        said = rig.fault("files", "write", path=str(target))
        assert any(word in said for word in ("No such file", "Read-only", "Permission denied")), said
        assert not target.exists()
    # The /tmp that it sees is its own.
    assert rig.value("files", "write", path=f"/tmp/{name}") == "written"
    assert not Path("/tmp", name).exists()
    assert rig.value("files", "home") == "kept"
    assert (rig.state_of("files") / "kept").read_text() == "kept"
    rig.enter(files={"permissions": [f"filesystem:rw:{granted}"]})
    assert rig.value("files", "write", path=str(granted / "a")) == "written"
    assert (granted / "a").read_text() == "written"
    for target in outside:
        rig.fault("files", "write", path=str(target))
        assert not target.exists()
    rig.enter(files={"permissions": [f"filesystem:ro:{granted}"]})
    assert "Read-only" in rig.fault("files", "write", path=str(granted / "b"))
    assert [path.name for path in granted.iterdir()] == ["a"]


def test_a_script_has_no_network_unless_it_was_granted(rig: ScriptRig) -> None:
    rig.put("net.py", NETWORK)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        assert rig.fault("net", "reach", port=port)
        rig.enter(net={"permissions": ["network"]})
        with rig.in_call("net", "reach", port=port) as call:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"reached")
            answer = call.result(60)
        # There was one connection, and so none from before.
        assert text_of(answer) == "reached"


def test_a_user_grants_nothing_to_a_script_of_the_system(rig: ScriptRig, granted: Path) -> None:
    (rig.system_scripts / "theirs.py").write_text(FILES)
    rig.enter(theirs={"permissions": [f"filesystem:rw:{granted}"]})
    rig.fault("theirs", "write", path=str(granted / "a"))
    assert list(granted.iterdir()) == []
    (rig.system_scripts / "theirs.py").unlink()


def test_a_secret_reaches_the_script_and_is_never_listed(rig: ScriptRig) -> None:
    rig.put("secretive.py", (
        "import os\n\n\ndef length(context: dict) -> dict:\n"
        "    return {'length': len(os.environ.get('API_KEY', '')), 'unit': os.environ.get('UNIT', ''),\n"
        "            'given': sorted(context['config'])}\n"
    ))  # fmt: skip
    rig.enter(secretive={"configurableProperties": [
        {"key": "API_KEY", "label": "Key", "sensitive": True, "target": "env"},
        {"key": "UNIT", "label": "Unit", "default": "celsius", "target": "env"},
        {"key": "tone", "label": "Tone", "default": "kind"},
    ]})  # fmt: skip
    secret = "hunter2-and-more"
    assert rig.call("secretive", "length")["structuredContent"] == {"length": 0, "unit": "celsius", "given": ["tone"]}
    rig.done("secret", "set", "secretive", "API_KEY", stdin=secret)
    rig.done("config", "set", "secretive", "UNIT=kelvin")

    def found() -> Any:
        return rig.call("secretive", "length")["structuredContent"]

    assert found() == {"length": len(secret), "unit": "kelvin", "given": ["tone"]}
    shown = [rig.mcpctl(*words).stdout for words in (
        ("list", "--json"), ("show", "secretive", "--json"), ("show", "secretive"), ("config", "get", "secretive"),
        ("tools", "secretive", "--json"), ("mcps", "check"),
    )]  # fmt: skip
    assert all(shown)
    assert not [text for text in [*shown, rig.page("secretive")] if secret in text]
    holders = [path for path in rig.home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert holders == [rig.home / ".local/share/mcp/secrets/secretive.json"]
    assert holders[0].stat().st_mode & 0o777 == 0o600
    rig.done("secret", "unset", "secretive", "API_KEY")
    assert found()["length"] == 0


# ---------------------------------------------------------------------------------------- transforms


def test_T10_5_a_transform_that_fails_is_on_the_page_and_leaves_the_rest_standing(rig: ScriptRig) -> None:
    rig.put("moody.py", HELLO)
    build(rig, "moody", GENERATE_BAD)
    assert set(rig.tools("moody")) == {"greet"}
    assert rig.value("moody", "greet", name="you") == "Hello you!"
    assert set(rig.client("moody").tools()) == {"greet"}
    page = rig.page("moody")
    assert "the moon is full" in page
    assert "greet" in page
    checked = rig.mcpctl("mcps", "check")
    assert "the moon is full" in checked.stdout
    assert rig.listed()["moody"]["state"] == "installed"


def test_T10_5_a_transform_that_never_ends_is_stopped(rig: ScriptRig) -> None:
    rig.put("endless.py", HELLO)
    build(rig, "endless", "def generate_tools(server_name, context):\n    while True: pass\n")
    assert set(rig.client("endless").tools()) == {"greet"}
    assert "more than 5 s" in rig.page("endless")


def test_a_transform_can_write_nothing_whatever_its_server_was_granted(
    rig: ScriptRig, granted: Path, port: int
) -> None:
    rig.put("writer.py", FILES)
    code = GENERATE_WRITES.replace("PLACES", repr([str(granted), "/tmp", "/dev/shm"])).replace("PORT", str(port))
    build(rig, "writer", code, permissions=[f"filesystem:rw:{granted}", "network"])
    assert rig.value("writer", "write", path=str(granted / "by-a-call")) == "written"
    assert rig.value("writer", "home") == "kept"
    # Another entry, so that the transform runs now that there is something to remove.
    build_again = rig.map.parent / "mcps.d/writer.json"
    entry = json.loads(build_again.read_text())
    build_again.write_text(json.dumps({"writer": {**entry["writer"], "summary": "again"}}))
    rig.listed()
    assert set(rig.tools("writer")) == {"write", "home", "generated"}
    assert [path.name for path in granted.iterdir()] == ["by-a-call"]
    assert sorted(path.name for path in rig.state_of("writer").iterdir()) == ["kept"]
