# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a policy does about entries that are made to be taken for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from payload_parts import NPX, by_id, family, paths_below, payload, run, server

from mcpd.clients.addresses import read_address
from mcpd.clients.policy import Policy
from mcpd.paths import Paths, Scope

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = paths_below(tmp_path)
    found.system.policy.parent.mkdir(parents=True)
    found.user.policy.parent.mkdir(parents=True)
    return found


def broken(paths: Paths, text: str, value: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Rule, server and value of the violations of *value* where the administrator's policy is *text*."""
    paths.system.policy.write_text(text)
    found = Policy.load(paths, Scope.SYSTEM).check(value, {})
    return [(each.rule, each.server_id, each.value) for each in found]


@pytest.mark.parametrize(
    ("rules", "is_broken"),
    [
        pytest.param("[commands]\nallowed = []", True, id="none"),
        pytest.param("[commands]\nallowed = ['mcpctl']", True, id="some"),
        pytest.param("[commands]\nallowed = ['mcpctl', '*']", False, id="all"),
        pytest.param("[commands]\nforbidden = ['*']", False, id="forbidden"),
        pytest.param("[commands]\nallowed = []\n[sources]\nallowed = ['url:https://x.y/*']", False, id="by-source"),
        pytest.param("[commands]\nallowed = []\n[sources]\nallowed = ['*']", True, id="by-any-source"),
    ],
)
def test_a_URL_is_no_command_and_needs_a_source_that_allows_it(paths: Paths, rules: str, *, is_broken: bool) -> None:
    found = broken(paths, rules, payload(a={"type": "http", "url": "https://x.y/z"}))
    assert found == ([("commands.allowed", "a", "url:https://x.y/z")] if is_broken else [])


def test_a_users_sources_do_not_allow_a_URL_that_the_administrators_commands_do_not(paths: Paths) -> None:
    paths.system.policy.write_text("[commands]\nallowed = ['mcpctl']\n")
    paths.user.policy.write_text("[sources]\nallowed = ['url:*']\n")
    found = Policy.load(paths, Scope.USER).check(payload(a={"type": "http", "url": "https://x.y/z"}), {})
    assert [(each.rule, each.file) for each in found] == [("commands.allowed", str(paths.system.policy))]


@pytest.mark.parametrize("command", ["mcpctl", "/usr/bin/mcpctl"])
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"args": ["install", "npm:evil", "--yes"]}, id="install"),
        pytest.param({"args": ["client", "deploy", "cursor", "--yes"]}, id="deploy"),
        pytest.param({"args": ["run", "a", "b"]}, id="further-arguments"),
        pytest.param({"args": ["run", "--", "a"]}, id="dashes"),
        pytest.param({"args": ["--system", "run"]}, id="option"),
        pytest.param({"args": []}, id="nothing"),
        pytest.param({"args": None}, id="no-arguments"),
        pytest.param({"env": {"PATH": "/tmp/x"}}, id="path"),
        pytest.param({"env": {"LD_PRELOAD": "/tmp/x.so"}}, id="preload"),
        pytest.param({"env": {"OPENSSL_CONF": "/tmp/x.cnf"}}, id="openssl"),
        pytest.param({"env": {"GITHUB_TOKEN": "x"}}, id="literal"),
        pytest.param({"cwd": "/tmp"}, id="directory"),
        pytest.param({"type": "http"}, id="type"),
    ],
)
def test_an_allowed_mcpctl_may_run_an_installed_server_and_do_nothing_else(
    paths: Paths, command: str, more: dict[str, Any]
) -> None:
    entry = {"command": command, "args": ["run", "a"], "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}"}}
    text = "[commands]\nallowed = ['mcpctl', '/usr/bin/mcpctl']\n"
    assert broken(paths, text, payload(x=entry)) == []
    assert broken(paths, text, payload(x={**entry, **more})) == [("commands.allowed", "x", command)]
    assert broken(paths, "[commands]\nforbidden = ['npx']\n", payload(x={**entry, **more, "args": ["run", "a"]})) == []


@pytest.mark.parametrize("variable", ["PATH", "LD_PRELOAD", "GCONV_PATH", "GLIBC_TUNABLES"])
def test_an_allowed_command_is_no_other_program_by_its_environment(paths: Paths, variable: str) -> None:
    text = "[commands]\nallowed = ['npx', '/opt/*']\n"
    value = payload(x={**NPX, "env": {variable: "/tmp/x"}})
    assert broken(paths, text, value) == [("commands.allowed", "x", "npx")]
    assert broken(paths, text, payload(x={**NPX, "env": {variable: f"${{{variable}}}"}})) == []
    assert broken(paths, text, payload(x={"command": "/opt/x", "args": [], "env": {"PATH": "/tmp/x"}})) == []
    assert broken(paths, text, payload(x={**NPX, "env": {"PYTHONUNBUFFERED": "1"}})) == []


BRIDGE = "http://127.0.0.1:7412/mcp/bad"
SPELLINGS = [
    *("http://127.1:7412/mcp/bad", "http://2130706433:7412/mcp/bad", "http://0x7f.0.0.1:7412/mcp/bad"),
    *("http://0.0.0.0:7412/mcp/bad", "http://0:7412/mcp/bad", "http://0177.0.0.1:7412/mcp/bad"),
    *("http://localhost.:7412/mcp/bad", "http://LOCALHOST:7412/mcp/bad", "http://x.localhost/mcp/bad"),
    *("http://[::ffff:127.0.0.1]:7412/mcp/bad", "http://[::]:7412/mcp/bad", "http://[::1]/mcp/bad"),
    *("http://127.0.0.1:7412/x/../mcp/bad", "http://127.0.0.1:7412/mcp/./bad", "http://127.0.0.1:7412//mcp/bad"),
    *("http://127.0.0.1:7412/mcp/%2e/bad", "http://127.0.0.1:7412/x/%2E%2e/mcp/bad", "http://127.0.0.1/%6dcp/b%61d"),
    *("http://127.0.0.1:7412\\mcp\\bad", "http://127.0.0.1:7412/mcp/bad#x", "http://127.0.0.1:7412/mcp/bad?x"),
    *("http://127.0.0.1:7412/mcp/bad/..;", "http://127.0.0.1:7412/mcp/bad;x", "http://127.0.0.1:7412/mcp/bad/mcp"),
    *("http://me@127.0.0.1:7412/mcp/bad", "http://%31%32%37.0.0.1:7412/mcp/bad", "http://127\u30020.0.1/mcp/bad"),
    *("http:127.0.0.1:7412/mcp/bad", "http:/\\127.0.0.1:7412/mcp/bad", " http://127.0.0.1:7412/mcp/bad"),
    *("http://\uff11\uff12\uff17.0.0.1:7412/mcp/bad", "HTTP://127.0.0.1:7412/mcp/bad", "http://127.0.0.1/a/mcp/bad"),
    *("https://localhost.example/mcp/bad", "http://127.0.0.1.nip.io:7412/mcp/bad", "http://localhost/MCP/bad"),
]


@pytest.mark.parametrize("url", SPELLINGS, ids=ascii)
def test_a_forbidden_server_is_found_behind_every_spelling_of_the_bridge(paths: Paths, url: str) -> None:
    value = payload(x={"type": "http", "url": url})
    assert broken(paths, '[servers]\nforbidden = ["bad"]\n', value) == [("servers.forbidden", "x", "bad")]


def test_a_program_between_does_not_hide_the_bridge(paths: Paths) -> None:
    entry = {"command": "npx", "args": ["-y", "mcp-remote", "--url=http://127.1:7412/mcp/bad"]}
    assert broken(paths, '[servers]\nforbidden = ["bad"]\n', payload(x=entry)) == [("servers.forbidden", "x", "bad")]


DOUBTS: list[Any] = [
    pytest.param(run("${NOPE:-bad}"), id="argument"),
    pytest.param({"command": "${NOPE:-mcpctl}", "args": ["run", "bad"]}, id="command"),
    pytest.param({"command": "%NOPE%", "args": ["run", "bad"]}, id="command-windows"),
    pytest.param({"command": "{env:NOPE}", "args": []}, id="command-braces"),
    pytest.param({"command": "env", "args": ["mcpctl", "run", "bad"]}, id="env"),
    pytest.param({"command": "sh", "args": ["-c", "exec /usr/bin/mcpctl run bad"]}, id="shell"),
    pytest.param({"command": "python3", "args": ["-m", "mcpd.cli.main", "run", "bad"]}, id="module"),
    pytest.param({"command": "mcpctl run bad", "args": []}, id="line"),
    pytest.param({"command": "mcpctl", "args": "run bad"}, id="text"),
    pytest.param({"command": "npx", "args": [], "url": BRIDGE}, id="both"),
    *(
        pytest.param({"type": "http", "url": url}, id=ascii(url))
        for url in (
            *("http://127.0.0.1:7412/${NOPE:-mcp}/bad", "http://${NOPE:-127.0.0.1}:7412/mcp/bad", "${URL}"),
            *("http://127.0.0.1:${PORT:-7412/mcp/bad}", "http://127.0.0.1:7412/{env:X}", "http://x/%X%"),
            *("http://127.0.0.1:7412/mcp%2fbad", "http://127.0.0.1:7412/mcp/%2562ad", "http://a@b@x/", "http://x:1:2/"),
            *("http://b\u00e4d/", "http://[x]/", "http://[fe80::1%25lo]/", "http://1.2.3.4.5/", "http://256.1.1.1/"),
            *("http://x..y/", "http:///x", "http://x\\@y/", "http://999999999999/", "ftp://x/", "http://0x7g.1/"),
        )
    ),
    pytest.param({"type": "http", "url": ["x"]}, id="url-list"),
    pytest.param(1, id="number"),
]


@pytest.mark.parametrize("entry", DOUBTS)
def test_what_cannot_be_told_is_against_every_rule_on_servers_commands_and_sources(paths: Paths, entry: Any) -> None:
    value = payload(x=entry)
    for table in ("servers", "commands", "sources"):
        for rule, glob in (("forbidden", "other"), ("allowed", "x")):
            found = broken(paths, f"[{table}]\n{rule} = ['{glob}']\n", value)
            assert [(each[0], each[1]) for each in found] == [(f"{table}.{rule}", "x")]
        assert broken(paths, f"[{table}]\nallowed = ['*']\n", value) == []
    assert broken(paths, "[permissions]\nforbidden = ['network']\n", value) == []


def test_the_placeholder_of_the_client_alone_is_what_it_fills_in(paths: Paths) -> None:
    paths.system.policy.write_text("[sources]\nallowed = ['npm:*', 'url:*']\n")
    client = family(expansion={"prefix": "<(", "suffix": ")>", "fields": ["env", "url"]})
    policy, servers = Policy.load(paths, Scope.SYSTEM), by_id(server("a"))
    own, other = run("a", env={"A": "<(A)>"}), run("a", env={"A": "${A}"})
    assert policy.check(payload(x=own), servers, client) == []
    assert len(policy.check(payload(x=other), servers, client)) == 1
    assert policy.check(payload(x=other), servers) == []
    assert len(policy.check(payload(x=other), servers, family(expansion=None))) == 1
    assert len(policy.check(payload(x={"type": "http", "url": "https://<(A)>/"}), servers, client)) == 1


@pytest.mark.parametrize(
    ("url", "normal", "is_usual"),
    [
        pytest.param("https://x.y", "https://x.y/", True, id="bare"),
        pytest.param("https://X.y/A?b=/../c#d", "https://x.y/A?b=/../c", True, id="query"),
        pytest.param("http://127.1:80/a/b/../c/.", "http://127.0.0.1/a/c/", False, id="dots"),
        pytest.param("http://[0:0::1]:8080/a%2Db%20/", "http://[::1]:8080/a-b%20/", False, id="encoded"),
        pytest.param("http://a:b@x.y/", "http://x.y/", False, id="user"),
        pytest.param("http://x.y/../..//a", "http://x.y//a", False, id="above"),
    ],
)
def test_an_address_is_spelled_in_one_way(url: str, normal: str, *, is_usual: bool) -> None:
    found = read_address(url)
    assert (found.normal, found.is_usual, found.doubt) == (normal, is_usual, "")
    assert read_address(normal).normal == normal


@given(st.text() | st.text("htps:/\\.%@[]0x127?#{}$ \t", max_size=30).map("http:".__add__))
def test_whatever_is_no_address_is_a_doubt(url: str) -> None:
    found = read_address(url)
    assert found.doubt or found.normal.startswith(("http://", "https://"))
    assert found.doubt.isprintable()
    if not found.doubt:
        again = read_address(found.normal)
        assert (again.normal, again.is_local, again.segments) == (found.normal, found.is_local, found.segments)
        assert not again.doubt


@pytest.mark.parametrize("piece", ["../", "%2e", "a.", "@", ":", "\\", "0x", "[", "mcp/"])
def test_hostile_addresses_cost_no_more_than_their_length(piece: str) -> None:
    """A search that backtracks would not come to an end."""
    for start in ("http:", "http://", "http://x/"):
        read_address(start + piece * (500_000 // len(piece)))
