# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl with the real mcpd: a server of a registry, from the search to its updates and back."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.rig import Rig

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

SERVER = "com.example.echo"
PROGRAM = """\
import json, sys
results = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
    "tools/list": {"tools": [{"name": "echo", "description": DESCRIPTION, "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": VERSION}]},
}
for line in sys.stdin:
    m = json.loads(line)
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": results.get(m["method"], {})}), flush=True)
"""


class Shop:
    """A machine with a registry that offers one server in a version that the test chooses."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.registry = rig.home / "registry.json"

    def offer(self, version: str, description: str = "Says what it hears", **said: object) -> None:
        """Make the registry offer *version*, whose tool is described so, and have it read."""
        files = self.rig.home / f"echo-{version}"
        files.mkdir()
        (files / "server.py").write_text(f"DESCRIPTION, VERSION = {description!r}, {version!r}\n{PROGRAM}")
        entry = {
            "id": SERVER, "name": "Echo", "summary": "Says what it hears", "version": version,
            "source": {"type": "local", "path": str(files)},
            "transports": [{"type": "stdio", "command": "python3", "args": ["server.py"]}],
            "permissions": ["network"],
        } | said  # fmt: skip
        day = len(list(self.rig.home.glob("echo-*")))
        document = {"version": "1.0", "updated": f"2025-01-{day:02}T00:00:00Z", "servers": [entry]}
        self.registry.write_text(json.dumps(document))
        self("refresh")

    def __call__(self, *argv: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run ``mcpctl``, which is to end with *code*."""
        done = self.rig.mcpctl(*argv, stdin=stdin)
        assert done.returncode == code, done
        return done

    def json(self, *argv: str) -> Any:
        """What ``mcpctl … --json`` prints."""
        return json.loads(self(*argv, "--json").stdout)

    def version(self) -> str:
        """The version that answers."""
        return self("call", SERVER, "echo").stdout.strip()

    @property
    def files(self) -> Path:
        """Where the server is installed."""
        return self.rig.installed / SERVER


@pytest.fixture
def shop() -> Iterator[Shop]:
    """The machine, with version 1.0 on offer and nothing installed."""
    with Rig() as rig:
        rig.start_daemon()
        found = Shop(rig)
        found.registry.write_text('{"version": "1.0", "servers": []}')
        found("source", "add", found.registry.as_uri())
        found.offer("1.0")
        yield found


def test_what_is_offered_is_found_and_shown_before_it_is_installed(shop: Shop) -> None:
    (found,) = shop.json("search", "hears")["servers"]
    assert (found["id"], found["state"], found["verified"], found["installable"]) == (SERVER, "available", False, True)
    assert shop.json("search", "--installed")["servers"] == []
    assert shop.json("show", SERVER)["source"]["type"] == "local"
    planned = shop.json("install", SERVER, "--dry-run")
    kinds = {item["kind"]: item["key"] for item in planned["plan"]}
    assert kinds["source"] == str(shop.rig.home / "echo-1.0")
    assert (kinds["command"], kinds["permission"]) == ("python3 server.py", "network")
    assert shop.json("list")["servers"] == []
    refused = shop("install", SERVER, code=3)
    assert "  permissions  network  (may use the network)\n" in refused.stderr
    assert "  verified by  nobody" in refused.stderr
    assert shop("install", SERVER, "--yes").stdout == f"Installed {SERVER} 1.0 (user).\n"
    assert [server["id"] for server in shop.json("search", "--installed")["servers"]] == [SERVER]
    assert shop.version() == "1.0"


def test_there_and_back_again(shop: Shop) -> None:
    shop("install", SERVER, "--yes")
    assert "up to date" in shop("update").stderr
    shop.offer("2.0")
    (update,) = shop.json("update", "--check")["updates"]
    assert (update["version"], update["available-version"]) == ("1.0", "2.0")
    assert shop("update").stdout == f"Updated {SERVER} from 1.0 to 2.0.\n"
    assert shop.version() == "2.0"
    generations = shop.json("history", SERVER)["generations"]
    assert [(known["version"], known["state"]) for known in generations] == [("2.0", "active"), ("1.0", "previous")]
    assert shop("rollback", SERVER).stdout == f"Rolled back to {SERVER} 1.0 (user).\n"
    assert shop.version() == "1.0"


def test_a_pinned_server_is_not_updated(shop: Shop) -> None:
    shop("install", SERVER, "--yes")
    shop("pin", SERVER)
    shop.offer("2.0")
    assert shop.json("update")["updates"] == []
    said = f"{SERVER} is pinned to 1.0; its registry has 2.0. 'mcpctl pin --remove {SERVER}' unpins it.\n"
    assert shop("update").stderr.endswith(said)
    assert shop("update", SERVER).stderr.endswith(said)
    shop("pin", SERVER, "--remove")
    assert [server["id"] for server in shop.json("update")["updates"]] == [SERVER]


def test_a_file_that_was_changed_is_named(shop: Shop) -> None:
    shop("install", SERVER, "--yes")
    (shop.rig.home / "hello.py").write_text("def hello() -> str:\n    return 'hello'\n")
    shop("script", "add", str(shop.rig.home / "hello.py"))
    assert shop.json("verify") == {"servers": [{"id": SERVER, "state": "intact", "problem": ""}]}
    (program,) = shop.files.resolve().rglob("server.py")
    program.chmod(0o644)
    program.write_text(program.read_text() + "# changed\n")
    found = shop("verify", code=1).stderr
    assert f"{SERVER}:\n  changed: " in found
    assert "server.py\n" in found
    assert "'mcpctl install --reinstall" in found
    (server,) = json.loads(shop("verify", SERVER, "--json", code=1).stdout)["servers"]
    assert (server["state"], "server.py" in server["problem"]) == ("changed", True)
    shop("install", "--reinstall", SERVER, "--yes")
    shop("verify")


def test_what_another_tool_installed_is_not_called_changed(shop: Shop) -> None:
    other = shop.rig.installed / "com.example.other"
    other.mkdir(parents=True)
    (other / "manifest.json").write_text(
        '{"id": "com.example.other", "transports": [{"type": "stdio", "command": "x"}]}'
    )
    assert "com.example.other was not installed by mcpd" in shop("verify", "com.example.other", code=1).stderr
    (server,) = json.loads(shop("verify", "com.example.other", "--json", code=1).stdout)["servers"]
    assert server["state"] == "unknown"
    shop("verify")


def test_new_words_for_a_tool_wait_for_approval(shop: Shop) -> None:
    shop("install", SERVER, "--yes")
    shop.offer("2.0", description="Says what it hears, after reading your keys")
    held = shop("update", code=1)
    assert f"mcpctl approve {SERVER}" in held.stderr
    assert shop.version() == "1.0"
    shown = shop("approve", SERVER, "--dry-run").stdout.splitlines()
    assert '-  "description": "Says what it hears",' in shown
    assert '+  "description": "Says what it hears, after reading your keys",' in shown
    shop("approve", SERVER, code=3)
    assert shop.version() == "1.0"
    shop("approve", SERVER, "--yes")
    assert shop.version() == "2.0"
    shop("approve", SERVER, code=4)


def test_new_words_for_a_tool_are_refused(shop: Shop) -> None:
    shop("install", SERVER, "--yes")
    shop.offer("2.0", description="Says what it hears, after reading your keys")
    shop("update", code=1)
    said = shop("approve", "--drop", SERVER)
    assert said.stdout == f"Removed the pending update; still active: {SERVER} 1.0 (user).\n"
    assert shop.version() == "1.0"
    (server,) = shop.json("list")["servers"]
    assert not server.get("pending-version")
    assert [known["state"] for known in shop.json("history", SERVER)["generations"]] == ["active"]
    for argv in (["--drop"], ["--yes"]):
        shop("approve", SERVER, *argv, code=4)
    assert "mcpctl approve" in shop("update", code=1).stderr, "what is still offered waits again"
    shop("approve", "--drop", SERVER)
    shop("pin", SERVER)
    shop("update")


def test_a_bundle_and_an_archive_of_this_machine(shop: Shop) -> None:
    files = shop.rig.home / "echo-1.0"
    manifest = {
        "manifest_version": "0.3", "name": "bundled-echo", "version": "3.0", "description": "Says what it hears",
        "author": {"name": "Example"},
        "server": {
            "type": "python",
            "entry_point": "server.py",
            "mcp_config": {"command": "python3", "args": ["${__dirname}/server.py"]},
        },
    }  # fmt: skip
    bundle, archive = shop.rig.home / "bundled-echo.mcpb", shop.rig.home / "packed-echo-4.0.zip"
    for path in (bundle, archive):
        with zipfile.ZipFile(path, "w") as packed:
            packed.write(files / "server.py", "server.py")
            if path is bundle:
                packed.writestr("manifest.json", json.dumps(manifest))
    planned = shop.json("install", str(bundle), "--dry-run")
    assert (planned["id"], shop.json("list")["servers"]) == ("bundled-echo", [])
    assert "unverified" not in {item["kind"] for item in planned["plan"]}
    assert "not verified" in shop("install", str(bundle), code=3).stderr
    assert shop("install", str(bundle), "--yes").stdout == "Installed bundled-echo 3.0 (user).\n"
    assert shop("call", "bundled-echo", "echo").stdout == "1.0\n"
    argv = ["install", str(archive), "--command", "python3", "--arg", "server.py", "--yes"]
    assert shop(*argv).stdout == "Installed packed-echo 4.0 (user).\n"
    assert shop("call", "packed-echo", "echo").stdout == "1.0\n"
    assert [server["state"] for server in shop.json("verify")["servers"]] == ["intact", "intact"]
    assert "bundled-echo was not installed from a registry" in shop("update", "bundled-echo").stderr


def test_a_bundle_takes_the_secret_that_it_needs_without_a_terminal(shop: Shop) -> None:
    manifest = {
        "manifest_version": "0.3", "name": "keyed", "version": "1.0", "description": "Needs a key",
        "author": {"name": "Example"},
        "user_config": {"key": {"type": "string", "title": "Key", "sensitive": True, "required": True}},
        "server": {
            "type": "python", "entry_point": "server.py",
            "mcp_config": {
                "command": "python3", "args": ["${__dirname}/server.py"], "env": {"KEY": "${user_config.key}"},
            },
        },
    }  # fmt: skip
    bundle, secret = shop.rig.home / "keyed.mcpb", shop.rig.home / "secret"
    secret.write_text("s3cret")
    with zipfile.ZipFile(bundle, "w") as packed:
        packed.write(shop.rig.home / "echo-1.0/server.py", "server.py")
        packed.writestr("manifest.json", json.dumps(manifest))
    said = shop("install", str(bundle), "--yes", code=1).stderr
    options = said[said.index("set it with ") :].split()[3:5]
    assert options[1].endswith("=FILE,")
    argv = [options[0], options[1].replace("FILE,", str(secret))]
    assert shop("install", str(bundle), "--yes", *argv).stdout == "Installed keyed 1.0 (user).\n"


def test_an_update_is_found_without_a_refresh_and_a_registry_that_is_gone_is_told(shop: Shop) -> None:
    shop("install", SERVER, "--yes")
    old = shop.registry.read_text()
    shop.offer("2.0")
    new = shop.registry.read_text()
    shop("source", "remove", shop.registry.as_uri())
    shop.registry.write_text(old)
    shop("source", "add", shop.registry.as_uri())
    shop("refresh")
    shop.registry.write_text(new)
    assert shop("update").stdout == f"Updated {SERVER} from 1.0 to 2.0.\n"
    shop.registry.unlink()
    for argv, code in ((["refresh"], 1), (["update"], 0), (["update", "--check"], 0), (["show", SERVER, "--source",
                        shop.registry.as_uri()], 0)):  # fmt: skip
        assert f"warning: {shop.registry.as_uri()} could not be read" in shop(*argv, code=code).stderr


def test_who_signed_a_manifest_is_shown(shop: Shop) -> None:
    home = shop.rig.home
    shop("key", "new", str(home / "own.pem"))
    shop("key", "add", str(home / "own.pem.pub"), "--name", "own")
    entry = json.loads(shop.registry.read_text())["servers"][0]
    (home / "signed.json").write_text(json.dumps(entry | {"source": entry["source"] | {"path": "echo-1.0"}}))
    shop("sign", str(home / "signed.json"), "--key", str(home / "own.pem"))
    assert "signed.json.sig is not used" in shop("install", str(home / "signed.json"), "--dry-run").stderr
    remote = {
        "id": "elsewhere", "name": "Elsewhere", "transports": [{"type": "streamable-http", "url": "https://e.example/"}],
    }  # fmt: skip
    (home / "remote.json").write_text(json.dumps(remote))
    shop("sign", str(home / "remote.json"), "--key", str(home / "own.pem"))
    assert "  verified by  the key own\n" in shop("install", str(home / "remote.json"), "--dry-run").stdout
    shop("key", "remove", "own")
    assert "not signed by a trusted key" in shop("install", str(home / "remote.json"), "--dry-run", code=1).stderr


def test_a_setting_that_has_no_value_is_named_before_anything_is_installed(shop: Shop) -> None:
    shop.offer("1.1", configurableProperties=[{"key": "API_KEY", "label": "Key", "sensitive": True, "required": True}])
    assert "  to be set    API_KEY  (Key)\n" in shop("install", SERVER, "--dry-run").stdout
    settings = [item for item in shop.json("install", SERVER, "--dry-run")["plan"] if item["kind"] == "setting"]
    assert [(item["key"], item["label"]) for item in settings] == [("API_KEY", "Key")]


def test_what_becomes_of_a_server_whose_registry_is_not_listed_any_more(shop: Shop) -> None:
    shop("install", SERVER, "--yes")
    shop.offer("1.1", "Now sends it away")
    assert shop.json("update", "--check")["servers"][0]["state"] == "available"
    held = json.loads(shop("update", "--json", "--yes", code=1).stdout)["servers"]
    assert [(told["state"], told["pending-version"]) for told in held] == [("held", "1.1")]
    assert shop.json("update")["servers"] == [held[0] | {"problem": "", "available-version": ""}]
    shop("approve", SERVER, "--yes")
    assert "not pinned: the next update replaces it" in shop("rollback", SERVER).stderr
    (url,) = [source["url"] for source in shop.json("source", "list")["sources"] if not source["read-only"]]
    shop("source", "remove", url)
    assert f"{SERVER} has no updates: its registry {url} was removed" in shop("update", SERVER).stderr
