# SPDX-License-Identifier: LGPL-2.1-or-later
"""doctor: what is missing is found, and each fault names its way out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import codec
from mcpd.cli import checks
from mcpd.paths import Scope, from_environment
from mcpd.runtime import bundled
from mcpd.trust.signing import new_key

if TYPE_CHECKING:
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd


async def _checks(mcpctl: Mcpctl, **environ: str) -> tuple[int, list[dict[str, Any]]]:
    ended = await mcpctl("doctor", "--json", environ=environ)
    return ended.code, json.loads(ended.out)["checks"]


def _named(checks: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [check for check in checks if check["name"] == name]
    return found


def _programs(tmp_path: Path, **scripts: str) -> str:
    """A PATH with *scripts* only."""
    directory = tmp_path / "programs"
    directory.mkdir(parents=True)
    for name, text in scripts.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    return str(directory)


async def test_doctor_prints_a_line_per_check(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    path = _programs(tmp_path, bwrap='[ "$1" = --version ] && echo bubblewrap 0.9.0; exit 0', git="echo git 2")
    ended = await mcpctl("doctor", environ={"PATH": path})
    lines = ended.out.splitlines()
    assert ended.code == 0
    assert "ok    bubblewrap: bubblewrap 0.9.0" in lines
    assert "ok    session bus: reachable" in lines
    at = lines.index("warn  npm: npm was not found")
    assert lines[at + 1].strip() == "servers from npm cannot be installed; install npm"
    assert _named((await _checks(mcpctl, PATH=path))[1], "mcpd")["message"].startswith("mcpd is version 1.2.3")


async def test_doctor_fails_without_bubblewrap(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    code, checks = await _checks(mcpctl, PATH=_programs(tmp_path))
    assert code == 1
    assert _named(checks, "bubblewrap") == {
        "name": "bubblewrap", "result": "fail", "message": "not found, so no server can be confined",
        "advice": "install bubblewrap",
    }  # fmt: skip


async def test_doctor_knows_old_and_powerless_bubblewraps(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    old = _programs(tmp_path / "old", bwrap="echo bubblewrap 0.4.1")
    assert _named((await _checks(mcpctl, PATH=old))[1], "bubblewrap")["result"] == "fail"
    script = (
        '[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit; echo no permissions to create namespace >&2; exit 1'
    )
    code, checks = await _checks(mcpctl, PATH=_programs(tmp_path / "new", bwrap=script))
    assert code == 1
    assert _named(checks, "namespaces")["message"] == "bwrap: no permissions to create namespace"
    assert "unprivileged" in _named(checks, "namespaces")["advice"]


async def test_doctor_warns_that_the_sandbox_is_off(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    settings = Path(mcpctl.environ["HOME"]) / ".config/mcp/mcpd.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[runtime]\nsandbox = "off"\n')
    code, checks = await _checks(mcpctl, PATH=_programs(tmp_path))
    assert code == 0
    assert _named(checks, "sandbox")["result"] == "warn"
    assert str(settings) in _named(checks, "sandbox")["advice"]
    settings.write_text("[runtime]\nsandbox = 1\n")
    code, checks = await _checks(mcpctl)
    assert code == 1
    assert f"{settings}: runtime.sandbox" in _named(checks, "settings")["message"]


async def test_doctor_finds_broken_servers_and_open_secrets(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"] |= {"state": "broken", "problem": "manifest.json is not JSON"}
    secrets = Path(mcpctl.environ["HOME"]) / ".local/share/mcp/secrets"
    secrets.mkdir(parents=True, mode=0o700)
    (secrets / "calculator.json").write_text("{}")
    (secrets / "calculator.json").chmod(0o644)
    code, checks = await _checks(mcpctl)
    assert code == 1
    assert _named(checks, "server")["message"] == "calculator: manifest.json is not JSON"
    assert _named(checks, "secrets")["message"] == f"readable by others: {secrets}/calculator.json"


async def test_doctor_names_configured_directories_that_do_not_exist(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    home = Path(mcpctl.environ["HOME"])
    (home / "there").mkdir(parents=True)
    mcpd.servers["calculator"]["permissions"] = ["filesystem:rw:{config.roots}", "filesystem:ro:~/.gitconfig"]
    mcpd.config["calculator"] = ({"roots": ["~/there", "~/gone"]}, [])
    _, checks = await _checks(mcpctl)
    assert _named(checks, "server") == {
        "name": "server", "result": "warn", "message": f"calculator: {home}/gone does not exist",
        "advice": "create it, or change roots; see 'mcpctl config get calculator'",
    }  # fmt: skip
    (home / "gone").mkdir()
    assert not [check for check in (await _checks(mcpctl))[1] if check["name"] == "server"]


async def test_doctor_knows_the_way_out_for_scripts(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    home, root = Path(mcpctl.environ["HOME"]), Path(mcpctl.environ["MCP_ROOT"])
    own, system, vendor = home / ".local/share/mcp/scripts", root / "etc/mcp/scripts", root / "usr/share/mcp/scripts"
    for directory, name in ((own, "mine"), (system, "theirs"), (vendor, "packaged")):
        directory.mkdir(parents=True)
        (directory / f"{name}.py").write_text("def f(:\n")
        mcpd.servers[name] = mcpd.servers["calculator"] | {"id": name, "state": "broken", "problem": f"{name}: no"}
    (home / ".config/mcp").mkdir(parents=True)
    (home / ".config/mcp/mcps.json").write_text('{"nope": {"definition_cid": "' + "0" * 64 + '"}}')
    broken = {"state": "broken", "problem": "nope: definition_cid: absent"}
    mcpd.servers["nope"] = mcpd.servers["calculator"] | {"id": "nope"} | broken
    mcpd.servers["calculator"] |= {"state": "broken", "problem": "manifest.json is not JSON"}
    found = [check for check in (await _checks(mcpctl))[1] if check["name"] == "server"]
    assert {check["message"]: check["advice"] for check in found} == {
        "calculator: manifest.json is not JSON": "'mcpctl rollback calculator' or 'mcpctl remove calculator'",
        "mine: no": f"fix {own}/mine.py, or 'mcpctl script remove mine'",
        "theirs: no": f"fix {system}/theirs.py, or 'mcpctl --system script remove theirs'",
        "packaged: no": f"fix {vendor}/packaged.py, which belongs to a package",
        "nope: definition_cid: absent": "fix its entry in the mcps map; 'mcpctl mcps check' shows where it is",
    }


async def test_doctor_tells_of_the_map_once(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    path = Path(mcpctl.environ["HOME"]) / ".config/mcp/mcps.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"a": 1,}')
    mcpd.servers["calculator"] |= {"state": "broken", "problem": "manifest.json is not JSON"}
    ended = await mcpctl("doctor")
    assert (ended.err, ended.out.count(f"{path}: not JSON")) == ("", 1)


async def test_doctor_fails_if_mcpd_found_that_it_cannot_confine(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    assert _named((await _checks(mcpctl))[1], "confinement")["result"] == "ok"
    mcpd.features = ["spawn"]
    code, checks = await _checks(mcpctl)
    assert (code, _named(checks, "confinement")["result"]) == (1, "fail")
    settings = Path(mcpctl.environ["HOME"]) / ".config/mcp/mcpd.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[runtime]\nsandbox = "off"\n')
    assert "confinement" not in [check["name"] for check in (await _checks(mcpctl))[1]]


async def test_doctor_builds_a_sandbox(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    _, checks = await _checks(mcpctl)
    if _named(checks, "namespaces")["result"] == "ok":
        assert _named(checks, "sandbox")["message"] == "a program ran in it"
    else:
        assert "sandbox" not in [check["name"] for check in checks]


def test_doctor_fails_where_nothing_runs_in_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_ROOT", str(tmp_path))
    monkeypatch.setattr(checks, "PROBE", "/usr/bin/false")
    found = {check.name: check for check in checks.local_checks(from_environment(), Scope.USER)}
    if found["namespaces"].result == "ok":
        assert (found["sandbox"].result, found["sandbox"].message) == ("fail", "/usr/bin/false exited with 1")


def test_doctor_warns_that_scripts_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_ROOT", str(tmp_path))
    found = {check.name: check for check in checks.local_checks(from_environment(), Scope.USER)}
    assert found["scripts"].result == "ok"
    monkeypatch.setattr(bundled, "PYTHON", tmp_path / "absent")
    monkeypatch.setattr(bundled, "NEEDED_BY_SCRIPTS", ("surely_no_such_module",))
    found = {check.name: check for check in checks.local_checks(from_environment(), Scope.USER)}
    assert found["scripts"].result == "warn"
    assert "install" in found["scripts"].advice


async def test_doctor_leaves_nothing_in_the_home(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    home = Path(mcpctl.environ["HOME"])
    home.mkdir()
    await _checks(mcpctl)
    assert list(home.iterdir()) == []


async def test_doctor_of_the_system_where_there_is_only_a_user(mcpctl: Mcpctl) -> None:
    ended = await mcpctl("doctor", "--system", "--json")
    checks = json.loads(ended.out)["checks"]
    assert _named(checks, "directories")["result"] == "warn"
    assert "mcpctl --user doctor" in _named(checks, "directories")["advice"]
    assert not [check for check in checks if check["name"].endswith(" directory")]
    (Path(mcpctl.environ["MCP_ROOT"]) / "var/lib/mcp/state").mkdir(parents=True)
    checks = json.loads((await mcpctl("doctor", "--system", "--json")).out)["checks"]
    assert _named(checks, "state directory")["result"] == "ok"
    assert _named(checks, "cache directory")["result"] == "fail"


async def test_doctor_gives_each_hint_once(mcpctl: Mcpctl) -> None:
    out = (await mcpctl("doctor")).out
    assert out.count("systemctl --user status mcpd") == 1
    assert out.count("systemctl --user start mcpd") == 1


async def test_doctor_without_mcpd_or_bus(mcpctl: Mcpctl) -> None:
    code, checks = await _checks(mcpctl)
    assert code == 1
    assert _named(checks, "mcpd")["advice"] == "see 'systemctl --user status mcpd'"
    code, checks = await _checks(mcpctl, DBUS_SESSION_BUS_ADDRESS="unix:path=/nonexistent")
    assert code == 1
    assert _named(checks, "session bus")["result"] == "fail"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "calculator": {"enabled": false},\n}', "not JSON: "),
        ("[]", "the map must be an object"),
        ('{\n\n"calculator": {"enabled": "false"}}', ":3: entry 'calculator': enabled"),
    ],
)
async def test_doctor_fails_for_a_map_that_takes_nothing_away(
    mcpctl: Mcpctl, mcpd: FakeMcpd, text: str, said: str
) -> None:
    file = Path(mcpctl.environ["HOME"]) / ".config/mcp/mcps.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    code, checks = await _checks(mcpctl)
    found = _named(checks, "mcps map")
    assert (code, found["result"]) == (1, "fail")
    assert str(file) in found["message"]
    assert said in found["message"]
    assert ("NOT in force" in found["message"]) is ("enabled" not in said)
    for command in (["list"], ["show", "calculator"]):
        ended = await mcpctl(*command)
        assert ended.code == 0
        assert f"warning: {file}" in ended.err
        assert str(file) not in ended.out


async def test_doctor_warns_of_entries_for_nobody(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    file = Path(mcpctl.environ["HOME"]) / ".config/mcp/mcps.d/mine.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"calculator": {},\n"calcullator": {"enabled": false}}')
    found = _named((await _checks(mcpctl))[1], "mcps map")
    assert (found["result"], found["message"].startswith(f"{file}:2: there is no server 'calcullator'")) == (
        "warn",
        True,
    )
    file.write_text(
        '{"calculator": {"disalowed_tools": ["x"], "tools": {"add": {"arguments": {"a": {"hidden": true}}}},'
        '"runtime": {"callTimout": 1, "callTimeout": 1}, "prompts": {"p": {"text": "x"}},'
        '"resources": {"r": {"uri": "a://b", "mimetype": "text/plain", "mimeType": "text/plain"}}}}'
    )
    warnings = [check["message"] for check in (await _checks(mcpctl))[1] if check["name"] == "mcps map"]
    said = re.compile("unknown field '(.*)' has no effect")
    assert [match[1] for warning in warnings if (match := said.search(warning))] == [
        "disalowed_tools", "runtime.callTimout", "resources.r.mimetype", "prompts.p.text",
        "tools.add.arguments.a.hidden",
    ]  # fmt: skip
    file.write_text('{"calculator": {"enabled": false}}')
    assert _named((await _checks(mcpctl))[1], "mcps map")["result"] == "ok"
    assert "warning" not in (await mcpctl("list")).err


async def test_doctor_tells_of_registries_that_offer_nothing(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    sources: list[dict[str, Any]] = [
        {"url": "https://a.example/r.json", "state": "untrusted", "problem": "it is not signed"},
        {"url": "https://b.example/r.json", "state": "failed", "problem": "https://b.example/r.json: answered 404"},
        {"url": "", "file": "/etc/mcp/sources.list.d/c.toml", "state": "invalid", "problem": "no url"},
        {"url": "https://d.example/r.json", "state": "offline", "problem": "no answer"},
        {"url": "https://e.example/r.json", "state": "ready", "faults": ["entry 3: transports", "entry 4: id"]},
        {"url": "https://g.example/r.json", "state": "offline", "problem": "no answer", "faults": list("pqrs")},
        {"url": "https://f.example/r.json", "state": "ready", "faults": []},
        {"url": "https://h.example/r.json", "state": "refused", "problem": "it is older", "updated": 1},
        {"url": "https://j.example/r.json", "state": "refused", "problem": "it is not signed"},
        {"url": "file:///i/", "state": "partly", "problem": "b.json: not JSON"},
    ]
    mcpd.sources = [
        {key: codec.Variant("as", value) if key == "faults" else value for key, value in source.items()}
        for source in sources
    ]
    code, checks = await _checks(mcpctl)
    assert code == 1
    assert [(check["result"], check["message"]) for check in checks if check["name"] == "registry"] == [
        ("fail", "https://a.example/r.json: it is not signed"),
        ("fail", "https://b.example/r.json: answered 404"),
        ("fail", "/etc/mcp/sources.list.d/c.toml: no url"),
        ("warn", "https://d.example/r.json: no answer"),
        ("warn", "https://e.example/r.json: 2 errors in its entries: entry 3: transports; entry 4: id"),
        ("warn", "https://g.example/r.json: no answer"),
        (
            "warn",
            "https://g.example/r.json: 4 errors in its entries: p; q; r; and others, see 'mcpctl source list'",
        ),
        ("warn", "https://h.example/r.json: it is older"),
        ("fail", "https://j.example/r.json: it is not signed"),
        ("warn", "file:///i/: b.json: not JSON"),
    ]
    advice = [check["advice"] for check in checks if check["name"] == "registry"]
    assert "mcpctl source remove https://a.example/r.json" in advice[0]
    assert "/etc/mcp/sources.list.d/c.toml" in advice[2]
    assert _named(checks, "registries")["message"] == "10 listed"


async def test_doctor_tells_of_keys_that_cannot_be_used(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    assert _named((await _checks(mcpctl))[1], "keys")["message"] == "0 trusted"
    keys = Path(mcpctl.environ["HOME"]) / ".config/mcp/keys.d"
    keys.mkdir(parents=True)
    (keys / "friend.pem").write_bytes(new_key()[1])
    (keys / "secret.pem").write_bytes(new_key()[0])
    _, checks = await _checks(mcpctl)
    assert _named(checks, "keys")["message"] == "1 trusted"
    found = _named(checks, "key")
    assert found["result"] == "warn"
    assert f"{keys}/secret.pem" in found["message"]
    assert (await mcpctl("doctor")).err == ""
