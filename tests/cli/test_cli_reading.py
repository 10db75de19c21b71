# SPDX-License-Identifier: LGPL-2.1-or-later
"""list, search, show, source list, paths, and what every command has in common."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import codec
from mcpd.cli import output
from mcpd.cli.main import _handler
from mcpd.cli.parser import HEADINGS, build_parser
from mcpd.errors import InteractionRequired, NotAuthorized

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd


async def test_list_shows_one_row_per_server(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("list")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "ID          VERSION  SCOPE  STATE      SUMMARY",
        "calculator  1.0      user   installed  Adds numbers",
    ]


async def test_list_json_has_the_keys_of_the_bus(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("list", "--json")
    assert json.loads(ended.out) == {"servers": [mcpd.servers["calculator"]]}


async def test_list_of_nothing_is_no_error(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers.clear()
    plain, as_json = await mcpctl("list"), await mcpctl("list", "--json")
    assert (plain.code, plain.out) == (0, "")
    assert json.loads(as_json.out) == {"servers": []}


async def test_list_shows_the_problem_of_a_broken_server(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"] |= {"state": "broken", "problem": "manifest.json is not JSON"}
    assert "broken  manifest.json is not JSON" in (await mcpctl("list")).out


async def test_list_says_that_the_sandbox_is_off(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"]["sandboxed"] = False
    assert "sandbox is off" in (await mcpctl("list")).err


async def test_text_from_strangers_cannot_steer_the_terminal(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"] |= {"summary": "a\x1b]0;pwned\x07b\nc\u202ed", "description": "one\ntwo\x1b[2J"}
    mcpd.config["calculator"] = ({"a\x1b[2Jkey": "value"}, [])
    listed, shown = await mcpctl("list"), await mcpctl("show", "calculator")
    assert "a\ufffd]0;pwned\ufffdb c\ufffdd" in listed.out
    assert len(listed.out.splitlines()) == 2
    assert "one\ntwo\ufffd[2J\n" in shown.out
    assert "\x1b" not in listed.out + shown.out


HOSTILE = "\x1b[2J \x7f \x9b2J \u202e\u2066 \u200b\u2028 \U000e0041 \u00e4\u6f22"
"""Steers terminals, reorders text or is not seen, but for the last two letters."""


async def test_json_from_strangers_cannot_steer_the_terminal(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"] |= {"summary": HOSTILE}
    shown = await mcpctl.on_terminal("show", "calculator", "--json", environ={"PYTHONUTF8": "1"})
    assert json.loads(shown)["summary"] == HOSTILE
    assert [char for char in shown if not char.isprintable() and char not in "\r\n"] == []
    assert "\\u001b[2J \\u007f \\u009b2J \\u202e\\u2066 \\u200b\\u2028 \\udb40\\udc41 \u00e4\u6f22" in shown
    ascii_only = await mcpctl.on_terminal(
        "show", "calculator", "--json", environ={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    )
    assert ascii_only.isascii()
    assert json.loads(ascii_only) == json.loads(shown)


async def test_json_for_programs_is_as_it_was(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"] |= {"summary": HOSTILE}
    ended = await mcpctl("show", "calculator", "--json", environ={"PYTHONUTF8": "1"})
    assert json.dumps(HOSTILE, ensure_ascii=False) in ended.out


async def test_search_reads_every_page(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    entry = {"name": "N", "summary": "S", "version": "2", "scope": "user", "state": "available"}
    mcpd.pages = [[entry | {"id": "a"}], [entry | {"id": "b"}], [entry | {"id": "c"}]]
    ended = await mcpctl("search", "add", "numbers", "--json")
    assert [server["id"] for server in json.loads(ended.out)["servers"]] == ["a", "b", "c"]
    calls = [call[1:] for call in mcpd.calls if call[0] == "ListAvailable"]
    assert calls == [({"text": "add numbers", "limit": 200}, at) for at in ("", "1", "2")]


async def test_show_tells_all_but_the_secrets(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.config["calculator"] = ({"digits": 3}, ["api_key"])
    plain, as_json = await mcpctl("show", "calculator"), await mcpctl("show", "calculator", "--json")
    assert "config digits:" in plain.out
    assert "(set, not shown)" in plain.out
    assert json.loads(as_json.out) == mcpd.servers["calculator"] | {"config": {"digits": 3}, "secrets-set": ["api_key"]}


async def test_arguments_of_which_there_may_be_many_stand_around_options(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.config["calculator"] = ({}, [])
    assert (await mcpctl("search", "add", "--json", "numbers")).code == 0
    assert mcpd.calls[0][1]["text"] == "add numbers"
    assert (await mcpctl("config", "set", "calculator", "a=y", "--no-ask-password", "b=x")).code == 0
    assert [call[2] for call in mcpd.calls if call[0] == "SetConfig"] == [{"a": "y", "b": "x"}]
    for argv in (["config", "set", "calculator", "a=1", "--user", "b"], ["show", "calculator", "--json", "other"]):
        ended = await mcpctl(*argv)
        assert (ended.code, argv[-1] in ended.err.splitlines()[-1]) == (2, True)


async def test_show_tells_where_what_is_installed_is_from(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    source = {"type": "npm", "package": "calculator", "version": "1.0"}
    mcpd.entries["calculator"] = {"id": "calculator", "source": source | {"x-more": [1]}}
    assert "source: npm calculator 1.0" in _lines((await mcpctl("show", "calculator")).out)
    assert json.loads((await mcpctl("show", "calculator", "--json")).out)["source"] == source


async def test_show_tells_which_key_vouched_for_what_is_installed(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    assert "signed-by" not in (await mcpctl("show", "calculator")).out
    mcpd.servers["calculator"] |= {"verified": True, "signed-by": "example"}
    assert "signed-by: example" in _lines((await mcpctl("show", "calculator")).out)
    assert json.loads((await mcpctl("show", "calculator", "--json")).out)["signed-by"] == "example"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"source": {"type": "mcpb"}}, "permissions: known once it is fetched"),
        ({"source": {"type": "mcpb"}, "permissions": ["network"]}, "permissions: more may be known once it is fetched"),
        ({"manifest": "https://x.example/m.json"}, "permissions: known once it is fetched"),
        ({"source": {"type": "pypi"}}, "permissions: none beyond the sandbox"),
        ({"transports": [{"type": "http", "url": "https://x.example/"}]}, "permissions: none beyond the sandbox"),
    ],
    ids=["bundle", "bundle with some", "summary", "package", "remote"],
)
async def test_show_says_none_only_where_it_is_known(
    mcpctl: Mcpctl, mcpd: FakeMcpd, said: dict[str, Any], shown: str
) -> None:
    offered = {"id": "w", "state": "available"} | said
    mcpd.pages = [[offered]]
    if "transports" in said:
        offered["transports"] = codec.Variant("aa{sv}", said["transports"])
    assert shown in _lines((await mcpctl("show", "w")).out)


async def test_show_tells_what_can_be_configured(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"]["configurable-properties"] = [
        {"key": "digits", "type": "integer", "required": True, "description": "How many"}, {"key": "any"},
    ]  # fmt: skip
    lines = [" ".join(line.split()) for line in (await mcpctl("show", "calculator")).out.splitlines()]
    assert "property digits: integer, required: How many" in lines
    assert "property any: any value" in lines


async def test_show_says_what_each_permission_grants(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    permissions = {
        "network": "may use the network",
        "devices": "may use the devices of this machine",
        "filesystem:ro:/srv/a b": "may read /srv/a b",
        "filesystem:rw:{config.dir}?write": "may read and change {config.dir}, while write is true",
        "session-bus:talk:org.example.App": "may call org.example.App on the session bus, and use everything that"
        " this program offers",
        "session-bus:talk:org.freedesktop.Notifications?show": "may call org.freedesktop.Notifications on the session"
        " bus, while show is true",
        "session-bus:talk:org.freedesktop.systemd1": "never granted, because org.freedesktop.systemd1 starts any"
        " program as the user: the server will not be started",
        "mcp": "may call all your other servers",
        "mcp:weather": "may call the server weather",
        "Reads your calendar": "a remark, grants nothing",
        "filesystem:all": "not a permission: the server will not be started",
    }
    assert "permissions: none beyond the sandbox" in _lines((await mcpctl("show", "calculator")).out)
    mcpd.servers["calculator"]["permissions"] = list(permissions)
    lines = _lines((await mcpctl("show", "calculator")).out)
    assert [line for line in lines if line.startswith("permission")] == [
        f"permission: {text} ({words})" for text, words in permissions.items()
    ]


def _lines(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines()]


@pytest.mark.parametrize("server_id", ["nope", "../../etc/passwd", "a;reboot", "$(id)", "", " ", "a\nb", "'\"", "-n "])
async def test_an_unknown_or_hostile_id_is_not_found(mcpctl: Mcpctl, mcpd: FakeMcpd, server_id: str) -> None:
    ended = await mcpctl("show", "--", server_id)
    assert ended.code == 4
    assert ended.err.startswith("mcpctl: there is no server ")
    assert "neither installed nor in the catalog" in ended.err
    assert mcpd.calls[0] == ("GetServer", server_id)


async def test_the_path_of_a_registry_is_answered_with_its_url(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    (tmp_path / "my reg.json").write_text("{}")
    ended = await mcpctl("source", "add", str(tmp_path / "my reg.json"))
    assert (ended.code, mcpd.calls) == (2, [])
    assert f"mcpctl source add {tmp_path.as_uri()}/my%20reg.json\n" in ended.err


async def test_paths_of_both_scopes(mcpctl: Mcpctl) -> None:
    environ = {"MCP_USER_INSTALL_DIR": "/x/installed", "MCP_SYSTEM_SOURCES_PATH": "/y/sources.list"}
    found = json.loads((await mcpctl("paths", "--json", environ=environ)).out)
    assert found["user-install-dir"] == "/x/installed"
    assert found["user-sources-path"] == f"{mcpctl.environ['HOME']}/.config/mcp/sources.list"
    assert found["system-install-dir"] == f"{mcpctl.environ['MCP_ROOT']}/usr/share/mcp/installed"
    assert found["system-sources-path"] == "/y/sources.list"
    home, root = mcpctl.environ["HOME"], mcpctl.environ["MCP_ROOT"]
    assert {
        name: path for name, path in found.items() if "scripts" in name or "contents" in name or "mcps" in name
    } == {
        "user-mcps-path": f"{home}/.config/mcp/mcps.json",
        "user-mcps-dir": f"{home}/.config/mcp/mcps.d",
        "user-scripts-dir": f"{home}/.local/share/mcp/scripts",
        "user-contents-dir": f"{home}/.local/share/mcp/cas",
        "system-mcps-path": f"{root}/etc/mcp/mcps.json",
        "system-mcps-dir": f"{root}/etc/mcp/mcps.d",
        "system-scripts-dir": f"{root}/etc/mcp/scripts",
        "system-contents-dir": f"{root}/var/lib/mcp/cas",
        "vendor-mcps-path": f"{root}/usr/share/mcp/mcps.json",
        "vendor-scripts-dir": f"{root}/usr/share/mcp/scripts",
        "vendor-contents-dir": f"{root}/usr/share/mcp/cas",
    }
    assert {name: path for name, path in found.items() if "client" in name or "policy" in name} == {
        "user-clients-dir": f"{home}/.config/mcp/clients",
        "user-client-profiles-dir": f"{home}/.config/mcp/client-profiles",
        "user-policy-path": f"{home}/.config/mcp/policy.toml",
        "system-clients-dir": f"{root}/etc/mcp/clients",
        "system-client-profiles-dir": f"{root}/etc/mcp/client-profiles",
        "system-policy-path": f"{root}/etc/mcp/policy.toml",
        "vendor-clients-dir": f"{root}/usr/share/mcp/clients",
        "vendor-client-profiles-dir": f"{root}/usr/share/mcp/client-profiles",
    }
    assert found["user-orchestration-dir"] == f"{home}/.mcp-orchestration"
    assert found["user-deployments-dir"] == f"{home}/.local/share/mcp/deployments"
    assert found["user-bridge-token"] == f"{home}/.local/state/mcp/bridge.token"
    for name, file in (("url", "bridge.url"), ("socket", "bridge.sock")):
        assert found[f"user-bridge-{name}"] == f"{found['user-runtime-dir']}/{file}"


@pytest.mark.parametrize("error", [NotAuthorized, InteractionRequired])
async def test_not_authorized_is_exit_code_3(mcpctl: Mcpctl, mcpd: FakeMcpd, error: type[NotAuthorized]) -> None:
    mcpd.errors["AddSource"] = error("org.mcpd.mcp1.manage-sources was refused")
    ended = await mcpctl("source", "add", "https://example.com/r.json")
    assert (ended.code, ended.err) == (3, "mcpctl: org.mcpd.mcp1.manage-sources was refused\n")


async def test_without_mcpd_the_message_names_the_unit(mcpctl: Mcpctl) -> None:
    ended = await mcpctl("list")
    assert ended.code == 1
    assert "start it with 'systemctl --user start mcpd' or 'mcpd --user &'" in ended.err


async def test_root_without_the_system_is_shown_the_way_to_its_own_servers(mcpctl: Mcpctl, bus_address: str) -> None:
    no_bus = await mcpctl("list", "--system")
    no_mcpd = await mcpctl("list", "--system", environ={"DBUS_SYSTEM_BUS_ADDRESS": bus_address})
    assert "'systemctl start mcpd'" in no_mcpd.err
    for ended in (no_bus, no_mcpd):
        assert ended.code == 1
        assert ("Root gets the system's servers by default; add --user to use your own\n" in ended.err) == (
            os.geteuid() == 0
        )


@pytest.mark.parametrize(
    ("address", "text"),
    [("unix:path=/nonexistent/bus", "/nonexistent/bus"), ("nonsense", "nonsense"), ("", "there is no session bus")],
)
async def test_without_a_bus_the_message_names_it(mcpctl: Mcpctl, address: str, text: str) -> None:
    ended = await mcpctl("list", environ={"DBUS_SESSION_BUS_ADDRESS": address, "XDG_RUNTIME_DIR": "/nonexistent"})
    assert ended.code == 1
    assert ended.err.startswith("mcpctl: ")
    assert text in ended.err


@pytest.mark.parametrize(
    "argv",
    [
        ["--system", "list", "--user"], ["--user", "list", "--system"], ["--system", "config", "--user", "get", "x"],
        ["--system", "config", "get", "--user", "x"], ["config", "--user", "get", "--system", "x"],
    ],
)  # fmt: skip
async def test_two_scopes_contradict_each_other(mcpctl: Mcpctl, argv: list[str]) -> None:
    ended = await mcpctl(*argv)
    assert (ended.code, ended.err.strip().splitlines()[-1].partition(": error: ")[2]) == (
        2, "--user and --system cannot be used together"
    )  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [["--no-such-option"], ["no-such-command"], ["show"], ["config", "set", "x", "novalue"], ["search", "--limit", "0"],
     ["source"], ["list", "--system", "--user"], ["call", "x", "y", "--timeout", "-1"], ["rollback", "x", "--to", "x"]],
)  # fmt: skip
async def test_wrong_usage_is_exit_code_2(mcpctl: Mcpctl, argv: list[str]) -> None:
    ended = await mcpctl(*argv)
    assert ended.code == 2
    assert "usage: mcpctl" in ended.err


async def test_bytes_that_are_no_text_are_refused(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("show", b"\xff\xfe".decode(errors="surrogateescape"))
    assert ended.code == 2
    assert ended.err.startswith("mcpctl: ")


async def test_a_closed_pipe_is_no_drama(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers = {str(at): mcpd.servers["calculator"] | {"id": str(at)} for at in range(2000)}
    reader, writer = os.pipe()
    process = await mcpctl.start("list", "--json", stdout=writer)
    os.close(writer)
    os.close(reader)
    _, err = await process.communicate()
    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize("command", [["list"], ["run", "calculator"], ["stop", "1"]])
async def test_nothing_heavy_is_imported(mcpctl: Mcpctl, mcpd: FakeMcpd, command: list[str]) -> None:
    mcpd.program = ["true"]
    script = (
        "import sys; from mcpd.cli.main import main; main(sys.argv[1:])\n"
        "print(sorted({'mcp', 'rich', 'pydantic', 'httpx2', 'platformdirs'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = await _run_python(mcpctl, script, "--user", *command)
    assert done.splitlines()[-1] == "[]"


async def _run_python(mcpctl: Mcpctl, script: str, *argv: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *argv,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=mcpctl.environ,
    )  # fmt: skip
    _, err = await process.communicate()
    return err.decode()


async def test_every_command_of_the_parser_can_be_found(mcpctl: Mcpctl) -> None:
    """Handlers are named by text, so each is resolved once here."""

    def handlers(parser: object) -> list[str]:
        subparsers = [action for action in parser._actions if hasattr(action, "_name_parser_map")]  # type: ignore[attr-defined]
        inner = [child for action in subparsers for child in action._name_parser_map.values()]
        own = parser._defaults.get("handler")  # type: ignore[attr-defined]
        return [*([own] if own else []), *(name for child in inner for name in handlers(child))]

    names = handlers(build_parser())
    assert len(names) > 25
    assert all(callable(_handler(name)) for name in names)


@pytest.mark.parametrize("command", [["list"], ["config", "get", "calculator"]])
async def test_the_options_of_all_commands_stand_before_and_after_the_command(
    mcpctl: Mcpctl, mcpd: FakeMcpd, command: list[str]
) -> None:
    expected = (await mcpctl(*command, "--json", "--user")).out
    json.loads(expected)
    for at in range(len(command)):
        assert (await mcpctl(*command[:at], "--json", "--user", *command[at:])).out == expected


async def test_json_is_refused_by_a_command_that_prints_none(mcpctl: Mcpctl) -> None:
    ended = await mcpctl("--json", "run", "calculator")
    assert (ended.code, "mcpctl run: error: this command has no --json" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "code", "hint"),
    [
        (["instal"], 2, "unknown command 'instal'; did you mean 'install'?"),
        (["config", "gte"], 2, "unknown command 'gte'; did you mean 'get'?"),
        (["zzz"], 2, "unknown command 'zzz'; 'mcpctl --help' lists the commands"),
        (["tools", "calculater"], 4, "; did you mean 'calculator'?"),
        (["remove", "calculater"], 4, "; did you mean 'calculator'?"),
        (["stop", "calculater"], 4, "; did you mean 'calculator'?"),
        (["show", "wether"], 4, "; did you mean 'weather'?"),
        (["show", "calculater"], 4, "; did you mean 'calculator'?"),
        (["config", "get", "calculator", "digts"], 1, "; did you mean 'digits'?"),
    ],
)
async def test_a_mistyped_word_is_answered_with_the_one_like_it(
    mcpctl: Mcpctl, mcpd: FakeMcpd, argv: list[str], code: int, hint: str
) -> None:
    mcpd.pages = [[{"id": "weather"}]]
    mcpd.config["calculator"] = ({"digits": 3}, [])
    ended = await mcpctl(*argv)
    assert (ended.code, ended.err.endswith(f"{hint}\n")) == (code, True), ended.err


async def test_what_is_like_nothing_is_not_found_without_a_guess(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("tools", "zzz")
    assert (ended.code, "did you mean" in ended.err) == (4, False)


def test_the_help_has_every_command_below_one_heading() -> None:
    parser = build_parser()
    listed = [name for names in HEADINGS.values() for name in names]
    own = [action.dest for action in parser.commands._choices_actions]
    assert sorted(listed) == sorted(own)
    help_text = parser.format_help()
    for heading, names in HEADINGS.items():
        below = help_text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in below.splitlines() if line[2] != " "] == list(names)


async def test_without_a_command_the_help_is_printed(mcpctl: Mcpctl) -> None:
    ended, shown = await mcpctl(), await mcpctl("--help")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == shown.out


async def test_version_and_help(mcpctl: Mcpctl) -> None:
    assert (await mcpctl("--version")).out.startswith("mcpctl ")
    assert "exit status" in (await mcpctl("--help")).out


@pytest.mark.parametrize("shown", ["stdout", "stderr"])
def test_a_warning_is_coloured_where_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shown: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(getattr(sys, shown), "isatty", lambda: True)
    output.warn("a\x1b[2Jb")
    before, after = ("\x1b[33m", "\x1b[0m") if shown == "stderr" else ("", "")
    assert tuple(capsys.readouterr()) == ("", f"{before}warning:{after} a\ufffd[2Jb\n")


def test_columns_stand_below_each_other_whatever_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("NAME", "STATE"), [("日本", "ok"), ("e\u0301", ""), ("abcdef", "failed")])
    assert capsys.readouterr().out == "NAME    STATE\n日本    ok\ne\u0301\nabcdef  failed\n"


async def test_on_a_terminal_the_last_column_is_cut(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"]["summary"] = "数" * 60
    shown = await mcpctl.on_terminal("list", environ={"COLUMNS": "70", "TERM": "dumb"})
    assert shown.splitlines()[1].endswith("user   installed  " + "数" * 14 + "…")
