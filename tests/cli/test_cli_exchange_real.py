# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl import and export with the real mcpd: from a client's file to a running server, and out again."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "ghp_" + "a1B2" * 9
PROGRAM = """\
import json, os, sys
text = os.environ["API_TOKEN"][-4:] + os.environ["MODE"] + open(sys.argv[1]).read()
results = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
    "tools/list": {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": text}]},
}
for line in sys.stdin:
    m = json.loads(line)
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": results.get(m["method"], {})}), flush=True)
"""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A machine with a project, and a client that starts its server."""
    with Rig() as machine:
        project = machine.home / "project"
        (project / "src").mkdir(parents=True)
        (project / "src/server.py").write_text(PROGRAM)
        data = machine.home / "data"
        data.mkdir()
        (data / "text").write_text("!")
        entry = {
            "command": "python",
            "args": [str(project / "src/server.py"), str(data / "text")],
            "env": {"API_TOKEN": SECRET, "MODE": "fast"},
        }
        client = {"mcpServers": {"say it": entry, "box": {"command": "docker", "args": ["run", "x"]}}}
        (machine.home / "client.json").write_text(json.dumps(client))
        machine.start_daemon()
        yield machine


def test_a_server_of_a_client_runs_and_goes_on_to_others(rig: Rig) -> None:
    done = rig.mcpctl("import", str(rig.home / "client.json"), "--yes")
    assert (done.returncode, "Installed say.it" in done.stdout) == (0, True), done.stderr
    assert "mcpd does not run containers" in done.stderr
    assert rig.mcpctl("call", "say.it", "say").stdout == f"{SECRET[-4:]}fast!\n"
    again = rig.mcpctl("import", str(rig.home / "client.json"), "say it", "--yes")
    assert (again.returncode, again.stdout) == (0, "")
    exported = rig.mcpctl("export")
    assert exported.returncode == 0, exported.stderr
    [entry] = json.loads(exported.stdout)["servers"]
    assert (entry["id"], entry["source"]["type"]) == ("say.it", "local")
    assert f"filesystem:rw:{rig.home}/data/text" in entry["permissions"]
    assert "config" not in entry
    one = rig.mcpctl("export", "say.it", "--format", "server.json")
    assert json.loads(one.stdout)["version"]
    assert SECRET not in done.stderr + exported.stdout + one.stdout


def test_an_entry_names_the_version_that_is_installed(rig: Rig) -> None:
    repository = rig.home / "repository"
    repository.mkdir()
    (repository / "server.py").write_text(PROGRAM)
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "one")):
        subprocess.run(["git", *words], cwd=repository, env=rig.environ, check=True)
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, env=rig.environ, text=True).strip()
    target = f"git+{repository.as_uri()}"
    wishes = ["--id", "from.git", "--command", "python3", "--arg", "server.py", "--arg", "server.py"]
    done = rig.mcpctl("install", target, *wishes, "--env", "API_TOKEN=1234", "--env", "MODE=m", "--yes")
    assert done.returncode == 0, done.stderr
    lock = next(path for path in (rig.home / ".local").rglob(".mcpd-lock.json") if "from.git" in str(path))
    assert "rev" not in json.loads(lock.read_text())["entry"]["source"]
    [entry] = json.loads(rig.mcpctl("export", "from.git").stdout)["servers"]
    assert entry["source"]["rev"] == commit
    manifest = lock.with_name("manifest.json")
    said = json.loads(manifest.read_text()) | {"version": "1.2.3"}
    manifest.unlink()
    manifest.write_text(json.dumps(said))
    for kind in ("npm", "pypi"):
        recorded = {**entry, "source": {"type": kind, "package": "x"}}
        lock.unlink()
        lock.write_text(json.dumps({"entry": recorded, "resolved": {"version": "1.2.3", "integrity": "sha512-x"}}))
        [found] = json.loads(rig.mcpctl("export", "from.git").stdout)["servers"]
        assert found == recorded | {"version": "1.2.3", "source": {**recorded["source"], "version": "1.2.3"}}
    assert "registry" in said["origin"]
    lock.unlink()
    [undocumented] = json.loads(rig.mcpctl("export", "from.git").stdout)["servers"]
    assert not {"origin", "scope", "config", "installDir"} & undocumented.keys()


def test_a_bundle_from_a_file_is_nothing_for_others_without_it(rig: Rig) -> None:
    started = {"command": "python", "args": ["server.py", "server.py"], "env": {"API_TOKEN": "1234", "MODE": "m"}}
    server = {"type": "python", "entry_point": "server.py", "mcp_config": started}
    manifest = {"manifest_version": "0.3", "name": "packed", "version": "1.0", "description": "d", "server": server}
    bundle = rig.home / "packed.mcpb"
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest | {"author": {"name": "A"}}))
        archive.writestr("server.py", PROGRAM)
    done = rig.mcpctl("install", str(bundle), "--yes")
    assert done.returncode == 0, done.stderr
    what_to_do = f"install that .mcpb file (sha256 {hashlib.sha256(bundle.read_bytes()).hexdigest()})"
    exported = rig.mcpctl("export", "packed", "-o", str(rig.home / "registry.json"))
    assert (exported.returncode, what_to_do in exported.stderr) == (0, True)
    assert str(rig.home) not in (rig.home / "registry.json").read_text()
    taken = rig.mcpctl("import", str(rig.home / "registry.json"), "--yes")
    assert (taken.returncode, what_to_do in taken.stderr) == (1, True)
