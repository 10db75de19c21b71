# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl mcps check: what is wrong with a map is found before a client finds it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from mcpd.cli import mcps_checks
from mcpd.cli.commands import mcps, servers
from mcpd.cli.main import main
from mcpd.errors import SandboxUnavailable
from mcpd.paths import Scope, from_environment
from mcpd.scripts.contents import content_id, write
from mcpd.store import Store
from tests.cli.map_files import HELLO, TRANSFORM, checked, messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.runtime.launch import LaunchSpec, Leash
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd


async def test_T10_5_check_shows_what_a_source_would_offer(
    mcpctl: Mcpctl, home: Path, project: Path, tmp_path: Path
) -> None:
    source = project / "mcps.source.json"
    code, found = await checked(mcpctl, source)
    assert (code, messages(found, "fail"), found["unavailable"]) == (0, [], "")
    (offer,) = found["servers"]
    assert (offer["id"], offer["source"], offer["problems"]) == ("hello", str(project / "hello.py"), [])
    assert [tool["name"] for tool in offer["tools"]] == ["greet", "seen-only"]
    assert [resource["uri"] for resource in offer["resources"]] == ["hello://self"]
    assert [prompt["name"] for prompt in offer["prompts"]] == ["ask"]
    # Nothing was left behind, or could be reached.
    assert not (tmp_path / "mark").exists()
    assert not (home / ".local/share/mcp/cas").exists()
    assert not (home / ".cache").exists()
    lines = (await mcpctl("mcps", "check", str(source))).out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["SERVER", "OFFERS", "NAME"],
        ["hello", "tool", "greet"],
        ["hello", "tool", "seen-only"],
        ["hello", "resource", "hello://self"],
        ["hello", "prompt", "ask"],
    ]
    assert lines[1].endswith("Greets")


async def test_check_without_files_looks_at_all_that_mcpd_reads(mcpctl: Mcpctl, home: Path, project: Path) -> None:
    ended = await mcpctl("mcps", "check")
    assert (ended.code, ended.out) == (0, "")
    assert "no script servers" in ended.err
    await mcpctl("mcps", "build", str(project / "mcps.source.json"), "-o", str(home / ".config/mcp/mcps.json"))
    scripts = home / ".local/share/mcp/scripts"
    (scripts / "plain.py").write_text(HELLO)
    (scripts / "broken.py").write_text("x = 1\ndef f(:\n")
    code, found = await checked(mcpctl)
    assert code == 1
    assert [(offer["id"], offer["state"], len(offer["tools"])) for offer in found["servers"]] == [
        ("broken", "broken", 0), ("hello", "script", 2), ("plain", "script", 1)
    ]  # fmt: skip
    assert messages(found, "fail") == [f"broken: {scripts}/broken.py:2: invalid syntax"]
    (scripts / "broken.py").write_text("x = 1\n")
    (home / ".config/mcp/mcps.d").mkdir()
    (home / ".config/mcp/mcps.d/off.json").write_text('{"plain": {"enabled": false}}')
    code, found = await checked(mcpctl)
    assert (code, [(offer["id"], offer["state"]) for offer in found["servers"]]) == (
        0, [("broken", "script"), ("hello", "script"), ("plain", "disabled")]
    )  # fmt: skip


async def test_check_tells_all_that_is_wrong_and_where(mcpctl: Mcpctl, home: Path, project: Path) -> None:
    path = project / "mcps.json"
    missing = "cid://" + "0" * 64
    document = {
        "lost": {"definition_cid": missing},
        "typo": {"enabled": "yes"},
        "odd": {"definition_cid": missing, "summery": "x"},
        "nobody": {"tools": {"a": {"enabled": False}}},
        "static": {"resources": {"r": {"uri": missing}}},
    }
    path.write_text(json.dumps(document, indent=2))
    code, found = await checked(mcpctl, path)
    assert code == 1
    fails = messages(found, "fail")
    assert [message.partition(" ")[0] for message in fails] == [f"{path}:{line}:" for line in (2, 5, 8, 19)]
    assert "definition_cid: the content cid://000" in fails[0]
    assert "enabled: " in fails[1]
    assert "resources.r.uri: the content" in fails[3]
    assert messages(found, "warn") == [
        f"{path}:8: unknown field 'summery' has no effect",
        f"{path}:12: there is no server 'nobody', so its entry has no effect",
    ]
    (home / ".config/mcp/mcps.json").write_text('{"a": 1,}')
    ended = await mcpctl("mcps", "check")
    assert (ended.code, ended.err.count("\n")) == (1, 0)
    assert ended.out.startswith(f"fail  {home}/.config/mcp/mcps.json: not JSON")
    source = project / "bad.source.json"
    source.write_text('{"a": {"definition_cid": "absent.py"}}')
    ended = await mcpctl("mcps", "check", str(source))
    assert (ended.code, ended.err, ended.out.count("\n")) == (1, "", 1)
    path.write_text("{")
    code, found = await checked(mcpctl, path)
    assert (code, found["servers"]) == (1, [])
    assert messages(found, "fail")[0].startswith(f"{path}: not JSON")
    assert (await mcpctl("mcps", "check", str(project / "absent.json"))).code == 4


async def test_check_names_the_server_and_makes_up_no_description(mcpctl: Mcpctl, home: Path) -> None:
    (home / ".local/share/mcp/scripts/a.py").write_text("def bare() -> str:\n    return ''\n")
    name = write(home / ".local/share/mcp/cas", b"def f(:\n")
    (home / ".config/mcp/mcps.json").write_text(json.dumps({"e": {"definition_cid": name}}))
    ended = await mcpctl("mcps", "check")
    assert ended.code == 1
    assert ended.out.splitlines()[1].split() == ["a", "tool", "bare"]
    fails = [line.split()[1:] for line in ended.out.splitlines() if line.startswith("fail")]
    assert fails
    assert all("e" in "".join(words[:3]) and words[0].rstrip(":") != name for words in fails)
    # An id that is part of what is said is no name.
    (home / ".config/mcp/mcps.json").unlink()
    (home / ".local/share/mcp/scripts/a.py").write_text("def f(:\n")
    assert (await mcpctl("mcps", "check")).out.splitlines()[-1].split()[1] == "a:"


async def test_check_and_build_look_at_permissions(mcpctl: Mcpctl, home: Path, project: Path) -> None:
    source = project / "perms.source.json"
    key = {"key": "KEY", "type": "string", "sensitive": True}
    document: dict[str, dict[str, Any]] = {
        "hello": {"definition_cid": "hello.py", "permissions": ["network", "filesystem:rw:"]},
        "told": {"definition_cid": "hello.py", "permissions": ["Reads your calendar"]},
        "secret": {
            "definition_cid": "hello.py", "permissions": ["filesystem:ro:{config.KEY}"], "configurableProperties": [key]
        },
    }  # fmt: skip
    source.write_text(json.dumps(document))
    out = project / "out.json"
    ended = await mcpctl("mcps", "build", str(source), "-o", str(out))
    assert (ended.code, out.exists(), (home / ".local/share/mcp/cas").exists()) == (1, False, False)
    assert f"{source}:1: entry 'hello': 'filesystem:rw:' is not a permission" in ended.err
    assert "entry 'secret': permission 'filesystem:ro:{config.KEY}': 'KEY' is sensitive" in ended.err
    for entry in document.values():
        entry["definition_cid"] = write(home / ".local/share/mcp/cas", HELLO.encode())
    out.write_text(json.dumps(document))
    code, found = await checked(mcpctl, out)
    assert code == 1
    assert [message.split(": ")[1] for message in messages(found, "fail")] == ["entry 'hello'", "entry 'secret'"]
    assert [message.split(": ")[2] for message in messages(found, "warn")] == [
        "'Reads your calendar' is not a permission and grants nothing"
    ]


async def test_check_and_doctor_warn_of_keys_that_are_there_twice(mcpctl: Mcpctl, mcpd: FakeMcpd, home: Path) -> None:
    path = home / ".config/mcp/mcps.json"
    path.write_text(
        '{"calculator": {"enabled": false, "summary": "{\\"enabled\\": 1}", "tools": {"enabled": {}}},\n'
        '"other": {},\n"calc\\u0075lator"\n: {"enabled": true,\n"enabled": true}}'
    )
    wanted = [
        f"{path}:3: duplicate key 'calculator'; only the last one is used",
        f"{path}:5: duplicate key 'enabled'; only the last one is used",
    ]
    for found in ((await checked(mcpctl))[1], (await checked(mcpctl, path))[1]):
        assert [said for said in messages(found, "warn") if "duplicate key" in said] == wanted
    doctor = json.loads((await mcpctl("doctor", "--json")).out)
    assert [said for said in messages(doctor, "warn") if "duplicate key" in said] == wanted


async def told(mcpctl: Mcpctl, source: Path, result: str) -> list[str]:
    """The checks of the entries of *source* as ``mcps check``, ``doctor`` and ``mcps build`` tell of them, alike."""
    in_use = Path(mcpctl.environ["HOME"]) / ".config/mcp/mcps.json"
    in_use.write_text(source.read_text())
    found = (await checked(mcpctl))[1], json.loads((await mcpctl("doctor", "--json")).out)
    by_name = [
        [check for check in each["checks"] if check["name"] == "mcps map" and check["result"] == result]
        for each in found
    ]
    assert by_name[0] == by_name[1]
    in_use.unlink()
    built = await mcpctl("mcps", "build", str(source), "-o", "-")
    said = [f"warning: {check['message']}; {check['advice']}" for check in by_name[0]]
    lines = [each.replace(str(in_use), str(source)) for each in said]
    assert (built.code, [line for line in built.err.splitlines() if line in lines]) == (0, lines)
    return [check["message"].removeprefix(f"{in_use}:") for check in by_name[0]]


@pytest.fixture
def notes(mcpctl: Mcpctl, mcpd: FakeMcpd, home: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store with the installed server ``notes``, which has listed two tools."""
    for name in ("HOME", "MCP_ROOT"):
        monkeypatch.setenv(name, mcpctl.environ[name])
    directory = home / ".local/share/mcp/installed/notes"
    directory.mkdir(parents=True)
    transports = [{"type": "stdio", "command": "python3", "args": ["server.py"]}]
    manifest = {"id": "notes", "name": "Notes", "summary": "Keeps notes", "version": "1", "transports": transports}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    store = Store(from_environment(), Scope.USER)
    store.set_tools("notes", [{"name": "notes_read"}, {"name": "notes_write"}])
    return store


async def test_fields_of_scripts_have_no_effect_on_an_installed_server(
    mcpctl: Mcpctl, notes: Store, project: Path
) -> None:
    source = project / "notes.source.json"
    source.write_text(json.dumps({"notes": {
        "summary": "Mine", "auto_discover": True, "variables": {"a": 1}, "prompts": {}, "runtime": {"callTimeout": 9},
        "resources": {"last": {"uri": "notes://last"}},
        "tools": {"notes_read": {"description": "Reads", "function": "read"}},
    }}))  # fmt: skip
    assert await told(mcpctl, source, "fail") == []
    assert await told(mcpctl, source, "warn") == [
        (
            "1: entry 'notes': ignoring auto_discover, runtime, variables, resources, tools.notes_read.function:"
            " notes is an installed server, not a script"
        )
    ]
    source.write_text('{"notes": {"summary": "Mine", "prompts": false, "tools": {"notes_read": {"name": "read"}}}}')
    assert await told(mcpctl, source, "warn") == []


async def test_a_server_may_take_the_place_of_a_script_that_comes_along(mcpctl: Mcpctl, notes: Store) -> None:
    shipped = from_environment().vendor_mcps
    shipped.parent.mkdir(parents=True, exist_ok=True)
    shipped.write_text('{"notes": {"tools": {"gone": {"enabled": false}}}}')
    assert {check["result"] for check in (await checked(mcpctl))[1]["checks"]} == {"ok"}


async def test_tools_that_an_installed_server_did_not_list_are_told_of(
    mcpctl: Mcpctl, notes: Store, project: Path
) -> None:
    source = project / "notes.source.json"
    source.write_text(json.dumps({"notes": {
        "allowed_tools": ["notes_*", "nodes_*"],
        "disallowed_tools": ["notes_delete", "notes_writ?"],
        "tools": {
            "notes_raed": {"enabled": False}, "notes/write": {"enabled": False}, "notes.read": {"description": "Reads"},
            "notes_read": {"name": "read"},
        },
    }}))  # fmt: skip
    assert await told(mcpctl, source, "warn") == [
        (
            "1: entry 'notes': ignoring tools.notes_raed, tools.notes.read, allowed_tools: nodes_*,"
            " disallowed_tools: notes_delete: notes listed no such tool when it was installed"
        )
    ]
    # Servers that lack a setting list none.
    notes.set_tools("notes", [])
    assert await told(mcpctl, source, "warn") == []


async def test_a_users_files_name_tools_as_the_systems_leave_them(mcpctl: Mcpctl, notes: Store, project: Path) -> None:
    source, system = project / "notes.source.json", Path(mcpctl.environ["MCP_ROOT"]) / "etc/mcp/mcps.json"
    system.parent.mkdir(parents=True)
    system.write_text('{"notes": {"disallowed_tools": ["notes_write"], "tools": {"notes_read": {"name": "read"}}}}')
    source.write_text('{"notes": {"tools": {"read": {"enabled": false}}}}')
    assert await told(mcpctl, source, "warn") == []
    source.write_text('{"notes": {"tools": {"notes_read": {"enabled": false}, "notes_write": {"enabled": false}}}}')
    assert await told(mcpctl, source, "warn") == [
        (
            "1: entry 'notes': ignoring tools.notes_read, tools.notes_write:"
            " notes listed no such tool when it was installed"
        )
    ]


async def test_a_users_files_do_not_say_what_a_script_of_the_system_is(
    mcpctl: Mcpctl, mcpd: FakeMcpd, home: Path, vendor: Path, project: Path
) -> None:
    (vendor / "shared.py").write_text(HELLO)
    source = project / "shared.source.json"
    source.write_text('{"shared": {"variables": {"a": 1}, "tools": {"hello": {"name": "greet"}}}}')
    assert await told(mcpctl, source, "warn") == ["1: entry 'shared': ignoring variables: shared is a system script"]
    (home / ".local/share/mcp/scripts/shared.py").write_text(HELLO)
    assert await told(mcpctl, source, "warn") == []


async def test_resources_that_cannot_be_read_are_told_of(
    mcpctl: Mcpctl, mcpd: FakeMcpd, home: Path, project: Path
) -> None:
    for name in ("hello", "other"):
        (home / f".local/share/mcp/scripts/{name}.py").write_text(HELLO)
    source = project / "hello.source.json"
    entry: dict[str, Any] = {
        "resources": {
            "last": {"uri": "hello://last"},
            "own": {"uri": "server://hello/hello"},
            "web": {"uri": "https://example.org/"},
            "space": {"uri": "a b", "source": "hello://last"},
            "unset": {"uri": "variable://unset"},
            "other": {"uri": "server://other/hello"},
        }
    }
    source.write_text(json.dumps({"hello": entry}))
    found = await told(mcpctl, source, "fail")
    begin = "1: entry 'hello': resource "
    assert [message.removeprefix(begin)[:40] for message in found] == [
        "web: 'https://example.org/' cannot be re",
        "space: 'a b' is not a URI (RFC 3986)",
        "unset: the entry has no variable 'unset'",
        "other: 'server://other/hello' is the res",
    ]
    # What another file of the map says counts.
    more = home / ".config/mcp/mcps.d/more.json"
    more.parent.mkdir()
    more.write_text('{"hello": {"variables": {"unset": 1}, "permissions": ["mcp:other", "mcp:nobody"]}}')
    del entry["resources"]["web"], entry["resources"]["space"]
    entry["resources"]["nobody"] = {"uri": "server://nobody/x"}
    (home / ".config/mcp/mcps.json").write_text(json.dumps({"hello": entry}))
    code, checks = await checked(mcpctl)
    assert (code, messages(checks, "fail")) == (0, [])
    (message,) = messages(checks, "warn")
    assert message.endswith(f"{begin}nobody: there is no server 'nobody'")


async def test_check_goes_on_after_a_source_that_cannot_be_built(mcpctl: Mcpctl, project: Path) -> None:
    bad = project / "bad.source.json"
    bad.write_text('{"a": {"definition_cid": "x"},\n"b": {"definition_cid": "../x"}}')
    code, found = await checked(mcpctl, bad, project / "mcps.source.json")
    assert code == 1
    assert [message.partition(" ")[0] for message in messages(found, "fail")] == [f"{bad}:1:", f"{bad}:2:"]
    assert [offer["id"] for offer in found["servers"]] == ["hello"]


async def test_check_reports_a_transform_that_fails(mcpctl: Mcpctl, project: Path) -> None:
    (project / "tools.py").write_text("def generate_tools(server_name, context):\n    raise ValueError('no luck')\n")
    code, found = await checked(mcpctl, project / "mcps.source.json")
    assert code == 1
    (problem,) = messages(found, "fail")
    assert "hello" in problem
    assert "no luck" in problem
    assert [tool["name"] for tool in found["servers"][0]["tools"]] == ["greet"]


async def test_T1_3_a_map_may_be_named_by_its_content_id(mcpctl: Mcpctl, mcpd: FakeMcpd, home: Path) -> None:
    cas, path = home / ".local/share/mcp/cas", home / ".config/mcp/mcps.json"
    (home / ".local/share/mcp/scripts/hello.py").write_text(HELLO)
    name = write(cas, b'{\n\n"hello": {"enabled": false}}')
    path.write_text(json.dumps(f"cid://{name}"))
    code, found = await checked(mcpctl)
    assert (code, found["servers"][0]["state"]) == (0, "disabled")
    write(cas, b'{\n\n"hello": {"enabled": 1}}')
    path.write_text(json.dumps(content_id(b'{\n\n"hello": {"enabled": 1}}')))
    (message,) = messages((await checked(mcpctl))[1], "fail")
    assert ":3: entry 'hello': enabled" in message
    path.write_text(json.dumps("0" * 64))
    doctor = await mcpctl("doctor", "--json")
    (check,) = [each for each in json.loads(doctor.out)["checks"] if each["name"] == "mcps map"]
    assert check["message"].startswith(f"{path}: the content cid://000")
    assert "NOT in force" in check["message"]


async def test_doctor_looks_at_what_entries_name(mcpctl: Mcpctl, mcpd: FakeMcpd, home: Path) -> None:
    path = home / ".config/mcp/mcps.json"
    path.write_text(json.dumps({"new": {"tools_transform_cid": "transforms/tools.py"}}))
    checks = json.loads((await mcpctl("doctor", "--json")).out)["checks"]
    (check,) = [each for each in checks if each["name"] == "mcps map"]
    assert check["result"] == "fail"
    assert check["message"].startswith(
        f"{path}:1: entry 'new': tools_transform_cid: 'transforms/tools.py' is not a content id"
    )
    assert "warning" not in (await mcpctl("list")).err


def test_root_runs_no_code_of_files_that_are_not_in_use(
    mcpctl: Mcpctl, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in mcpctl.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(mcps, "PlainLauncher", Refuses)
    source = str(project / "mcps.source.json")
    assert main(["--system", "mcps", "check", source]) == 0
    told = capsys.readouterr()
    assert "hello   not asked" in told.out
    assert (
        "root does not run code from files that are not in use yet; as an ordinary user, 'mcpctl --user mcps check"
        " FILE' shows what servers would offer" in told.err
    )
    (project / "tools.py").write_text("def generate_tools(:\n")
    assert main(["--system", "mcps", "check", source]) == 1
    assert "tools_transform_cid: tools.py:1: invalid syntax" in capsys.readouterr().out


async def test_of_a_linked_script_only_itself_is_shown(mcpctl: Mcpctl, home: Path, tmp_path: Path) -> None:
    elsewhere, scripts = tmp_path / "elsewhere", home / ".local/share/mcp/scripts"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("nobody's business")
    (elsewhere / "hello.py").write_text(HELLO)
    (scripts / "hello.py").symlink_to(elsewhere / "hello.py")
    (elsewhere / "tools.py").write_text(TRANSFORM.format(secret=str(elsewhere / "secret"), mark=str(tmp_path / "mark")))
    name = write(home / ".local/share/mcp/cas", (elsewhere / "tools.py").read_bytes())
    (home / ".config/mcp/mcps.json").write_text(json.dumps({"hello": {"tools_transform_cid": name}}))
    code, found = await checked(mcpctl)
    assert (found["unavailable"], found["servers"][0]["problems"], code) == ("", [], 0)
    assert {tool["name"] for tool in found["servers"][0]["tools"]} == {"hello", "seen-only"}


@pytest.mark.parametrize("name", ["mcps.d", "mcps.d/notes.txt", "mcps.d/bad.json"])
def test_listing_reads_the_map_only_where_one_may_be(
    mcpctl: Mcpctl, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable, value in mcpctl.environ.items():
        monkeypatch.setenv(variable, value)
    path = Path(mcpctl.environ["MCP_ROOT"]) / "etc/mcp" / name
    if path.suffix in {".txt", ".json"}:
        path.parent.mkdir(parents=True)
        path.write_text("[]")
    else:
        path.mkdir(parents=True)
    asked: list[object] = []
    monkeypatch.setattr(mcps_checks, "map_checks", lambda *args: asked.append(args) or [])
    monkeypatch.setattr(servers, "open_bus", NoServers)
    assert main(["--user", "list"]) == 0
    assert bool(asked) is (path.suffix == ".json")


class NoServers:
    """A bus on which mcpd has no servers."""

    def __init__(self, _args: object) -> None:
        self.manager = self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def call(self, *_: object) -> list[object]:
        return []


class Refuses:
    """What must not be asked to start anything."""

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        raise AssertionError(spec.id)


class NoSandbox:
    """A machine where none can be built."""

    name = "none"

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        raise SandboxUnavailable("bubblewrap is missing")


def test_where_nothing_can_be_confined_nothing_is_run(
    mcpctl: Mcpctl, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in mcpctl.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(mcps, "PlainLauncher", NoSandbox)
    assert main(["--user", "mcps", "check", str(project / "mcps.source.json")]) == 0
    told = capsys.readouterr()
    assert "hello   not asked" in told.out
    assert "scripts were only read, not run: bubblewrap is missing" in told.err
    (project / "hello.py").write_text("def f(:\n")
    assert main(["--user", "mcps", "check", str(project / "mcps.source.json")]) == 1
    assert "definition_cid: hello.py:1: invalid syntax" in capsys.readouterr().out


def test_a_file_that_makes_too_many_servers_is_told_of(tmp_path: Path) -> None:
    file = tmp_path / "many.json"
    for count, fails in ((1000, 0), (1001, 1)):
        file.write_text(json.dumps({f"s{number}": {"definition_cid": "0" * 64} for number in range(count)}))
        checks = [check for check in mcps_checks.entry_checks(read(file), None) if check.result == "fail"]
        assert [check.message.startswith(f"{file}: 1001 entries define servers") for check in checks] == [True] * fails


def read(path: Path) -> mcps_checks.MapFile:
    found = mcps_checks.read_map(path, [], Scope.USER)
    assert found is not None
    return found
