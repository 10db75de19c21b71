# SPDX-License-Identifier: LGPL-2.1-or-later
"""The policy, also for entries that are disguised as others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.addresses import read_address
from mcpd.clients.payload import generate
from mcpd.clients.policy import MAX_POLICY, Policy
from mcpd.errors import InvalidConfig
from mcpd.paths import Paths, Scope
from tests.unit.clients.payload_parts import NPX, by_id, family, paths_below, payload, profile, run, server

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.store.index import InstalledServer

STEERING = """OPENSSL_CONF OPENSSL_MODULES GCONV_PATH SSLKEYLOGFILE SSL_CERT_FILE GLIBC_TUNABLES LOCPATH TMPDIR
PYTHONPATH SUDO_UID https_proxy HTTPS_PROXY all_proxy BROWSER NODE_OPTIONS MCPCTL_CLIENT_RUNTIME SYSTEMD_PAGER
MALLOC_PERTURB_ path DBUS_SESSION_BUS_ADDRESS XDG_RUNTIME_DIR"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = paths_below(tmp_path)
    found.system.policy.parent.mkdir(parents=True)
    found.user.policy.parent.mkdir(parents=True)
    return found


def broken(
    paths: Paths, text: str, value: dict[str, Any], servers: Mapping[str, InstalledServer] | None = None
) -> list[tuple[str, str, str]]:
    """Rule, server and value of the violations of *value* where the administrator's policy is *text*."""
    paths.system.policy.write_text(text)
    found = Policy.load(paths, Scope.SYSTEM).check(value, servers or {})
    return [(each.rule, each.server_id, each.value) for each in found]


@pytest.mark.parametrize("text", [None, "", "# nothing\n", "[servers]\n"], ids=["missing", "empty", "comment", "table"])
def test_without_rules_everything_is_allowed(paths: Paths, text: str | None) -> None:
    if text is not None:
        paths.system.policy.write_text(text)
    assert Policy.load(paths, Scope.USER).check(payload(a=NPX, b={"url": "x"}, c=1), {}) == []


def test_a_violation_names_everything_one_has_to_know(paths: Paths) -> None:
    paths.system.policy.write_text('[servers]\nforbidden = ["evil*"]\n')
    (found,) = Policy.load(paths, Scope.SYSTEM).check(payload(evil1=NPX, good=NPX), {})
    assert found.to_json() == {
        "rule": "servers.forbidden",
        "server_id": "evil1",
        "value": "evil1",
        "message": f"server 'evil1': a server of this name is forbidden by 'evil*' (servers.forbidden in"
        f" {paths.system.policy}); remove the server or change the policy",
        "file": str(paths.system.policy),
    }


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param("forbidden = ['b*']", [("servers.forbidden", "bad", "bad")], id="forbidden"),
        pytest.param("allowed = ['good']", [("servers.allowed", "bad", "bad")], id="allowed"),
        pytest.param("allowed = ['*']\nforbidden = ['good']", [("servers.forbidden", "good", "good")], id="both"),
        pytest.param(
            "allowed = []", [("servers.allowed", "bad", "bad"), ("servers.allowed", "good", "good")], id="nothing"
        ),
        pytest.param(
            "allowed = ['GOOD', 'BAD']",
            [("servers.allowed", "bad", "bad"), ("servers.allowed", "good", "good")],
            id="case",
        ),
        pytest.param("forbidden = ['oo']", [], id="whole"),
    ],
)
def test_forbidden_beats_allowed_and_absent_allows_all(
    paths: Paths, rules: str, expected: list[tuple[str, str, str]]
) -> None:
    assert broken(paths, f"[servers]\n{rules}\n", payload(good=NPX, bad=NPX)) == expected


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(run("evil"), id="usual"),
        pytest.param({"command": "/usr/bin/mcpctl", "args": ["run", "evil"]}, id="absolute"),
        pytest.param({"command": "mcpctl", "args": ["--system", "run", "evil"]}, id="option"),
        pytest.param({"command": "mcpctl", "args": ["spawn", "evil"]}, id="alias"),
        pytest.param({"command": "mcpctl", "args": ["run", "--", "evil"]}, id="dashes"),
        pytest.param({"type": "http", "url": "http://127.0.0.1:7412/mcp/evil"}, id="bridge"),
        pytest.param({"type": "http", "url": "http://localhost:7412/mcp/%65vil/"}, id="bridge-escaped"),
        pytest.param({"type": "sse", "url": "http://[::1]:7412/mcp/evil/sse"}, id="bridge-sse"),
    ],
)
def test_another_name_for_a_forbidden_server_does_not_help(paths: Paths, entry: dict[str, Any]) -> None:
    text = '[servers]\nforbidden = ["evil"]\n'
    assert broken(paths, text, payload(nice=entry), by_id(server("evil"))) == [("servers.forbidden", "nice", "evil")]


def test_an_allowed_server_needs_an_allowed_name_and_the_other_way_round(paths: Paths) -> None:
    text = '[servers]\nallowed = ["good"]\n'
    value = payload(good=run("other"), other=run("good"))
    assert broken(paths, text, value) == [("servers.allowed", "good", "other"), ("servers.allowed", "other", "other")]


@pytest.mark.parametrize(
    ("rules", "command", "is_broken"),
    [
        pytest.param("forbidden = ['curl']", "curl", True, id="forbidden"),
        pytest.param("forbidden = ['curl']", "/usr/bin/curl", True, id="forbidden-anywhere"),
        pytest.param("forbidden = ['curl']", "C:\\bin\\curl", True, id="forbidden-windows"),
        pytest.param("forbidden = ['/tmp/*']", "/tmp/npx", True, id="forbidden-directory"),
        pytest.param("forbidden = ['curl']", "curly", False, id="another"),
        pytest.param("allowed = ['node', '/opt/*']", "node", False, id="allowed"),
        pytest.param("allowed = ['mcpctl', '/opt/*']", "/opt/a/b", False, id="allowed-directory"),
        pytest.param("allowed = ['mcpctl']", "/tmp/mcpctl", True, id="allowed-name-elsewhere"),
        pytest.param("allowed = ['*']", "/tmp/x", False, id="allowed-all"),
        pytest.param("allowed = ['npx']", "", True, id="empty"),
    ],
)
def test_commands(paths: Paths, rules: str, command: str, *, is_broken: bool) -> None:
    found = broken(paths, f"[commands]\n{rules}\n", payload(a={"command": command, "args": []}))
    assert bool(found) is is_broken


SOURCES = [
    pytest.param(server("a"), ["npm:@example/one"], id="npm"),
    pytest.param(server("a", source={"type": "pypi", "package": "My_Pkg"}), ["pypi:My_Pkg", "pypi:my-pkg"], id="pypi"),
    pytest.param(
        server("a", source={"type": "git", "url": "https://Example.com/a.git"}),
        ["git:https://Example.com/a.git", "git:https://example.com/a.git"],
        id="git",
    ),
    pytest.param(server("a", source={"type": "local", "path": "/srv/a"}), ["local:/srv/a"], id="local"),
    pytest.param(
        server("a", source={"type": "archive", "url": "https://x.y/a.tgz"}), ["archive:https://x.y/a.tgz"], id="archive"
    ),
    pytest.param(
        server("a", source={"type": "mcpb", "url": "https://x.y/a.mcpb"}), ["mcpb:https://x.y/a.mcpb"], id="mcpb"
    ),
    pytest.param(server("a", source={"type": "npm:@example", "package": "one"}), ["unknown"], id="unknown-type"),
    pytest.param(server("a", source=None), ["unknown"], id="no-source"),
    pytest.param(server("a", layer="vendor"), ["vendor:a"], id="vendor"),
    pytest.param(server("a", script=True, source=None), ["script:a"], id="script"),
    pytest.param(server("a", script=True, layer="vendor"), ["script:a", "vendor:a"], id="vendor-script"),
    pytest.param(
        server("a", source=None, transports=[{"type": "streamable-http", "url": "https://x.y/mcp"}]),
        ["url:https://x.y/mcp"],
        id="remote",
    ),
    pytest.param(server("a", broken=True), ["unknown"], id="broken"),
    pytest.param(server("b"), ["unknown"], id="not-installed"),
]


@pytest.mark.parametrize(("installed", "names"), SOURCES)
def test_where_a_server_comes_from(paths: Paths, installed: InstalledServer, names: list[str]) -> None:
    value, servers = payload(nice=run("a")), by_id(installed)
    for name in names:
        assert broken(paths, f"[sources]\nforbidden = ['{name}']\n", value, servers) == [
            ("sources.forbidden", "nice", name)
        ]
        assert broken(paths, f"[sources]\nallowed = ['{name}']\n", value, servers) == []
        kind = name.partition(":")[0]
        assert broken(paths, f"[sources]\nallowed = ['{kind}*']\n", value, servers) == []
    assert broken(paths, "[sources]\nallowed = ['other:*']\n", value, servers) == [
        ("sources.allowed", "nice", names[0])
    ]


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(NPX, id="another-command"),
        pytest.param({"command": "/tmp/mcpctl", "args": ["run", "a"]}, id="another-mcpctl"),
        pytest.param({"command": "mcpctl", "args": ["--system", "run", "a"]}, id="option"),
        pytest.param({"command": "mcpctl", "args": ["run", "a", "b"]}, id="more"),
        pytest.param({"command": "mcpctl", "args": "run a"}, id="text"),
        pytest.param(run("a", env={"LD_PRELOAD": "/tmp/x.so"}), id="preload"),
        pytest.param(run("a", env={"MCP_USER_INSTALL_DIR": "/tmp/x"}), id="elsewhere"),
        *(
            pytest.param(run("a", env={name: value}), id=f"{name}-{number}")
            for name in STEERING.split()
            for number, value in enumerate(("/tmp/x", f"${{{name}}}"))
        ),
        pytest.param(run("a", env={"GITHUB_TOKEN": "x"}), id="literal"),
        pytest.param(run("a", env={"GITHUB_TOKEN": ""}), id="empty"),
        pytest.param(run("a", env={"GITHUB_TOKEN": "${OTHER}"}), id="another-variable"),
        pytest.param(run("a", env={"GITHUB_TOKEN": "${GITHUB_TOKEN:-x}"}), id="default"),
        pytest.param(run("a", env={"GITHUB_TOKEN": "${GITHUB_TOKEN}\n"}), id="line"),
        pytest.param(run("a", env={"GITHUB_TOKEN": 1}), id="variable-number"),
        pytest.param(run("a", env=None), id="env-null"),
        pytest.param(run("a", cwd="/tmp"), id="directory"),
        pytest.param(run("a", x=1), id="further-field"),
        pytest.param(run("a", env=["PATH=/tmp"]), id="no-object"),
        pytest.param("mcpctl run a", id="no-entry"),
        pytest.param({}, id="nothing"),
    ],
)
def test_what_is_not_plainly_run_by_mcpctl_comes_from_nowhere(paths: Paths, entry: Any) -> None:
    text = "[sources]\nallowed = ['npm:*']\n"
    assert broken(paths, text, payload(x=entry), by_id(server("a"))) == [("sources.allowed", "x", "unknown")]


def test_variables_that_are_passed_on_do_not_hide_where_a_server_comes_from(paths: Paths) -> None:
    made = generate([server("a")], family(), profile(variables={"*": ["GITHUB_TOKEN"]}))
    assert broken(paths, "[sources]\nallowed = ['npm:*']\n", made.payload, by_id(server("a"))) == []


def test_a_URL_is_its_own_source(paths: Paths) -> None:
    value = payload(x={"type": "http", "url": "https://Example.com/mcp"})
    assert broken(paths, "[sources]\nallowed = ['url:https://example.com/*']\n", value) == []
    assert broken(paths, "[sources]\nforbidden = ['url:*']\n", value) == [
        ("sources.forbidden", "x", "url:https://Example.com/mcp")
    ]


@pytest.mark.parametrize(
    "url",
    [
        *("https://x.y/bad", "https://X.Y:443/bad", "https://me@x.y/bad", "https://x.y./bad", "https://x.y/a/../bad"),
        *("https://x.y/%62ad", "https://x.y:0443/./bad"),
    ],
)
def test_another_spelling_of_a_URL_is_no_other_source(paths: Paths, url: str) -> None:
    value = payload(x={"type": "http", "url": url})
    assert broken(paths, "[sources]\nforbidden = ['url:https://x.y/bad*']\n", value)[0][0] == "sources.forbidden"
    assert broken(paths, "[sources]\nallowed = ['url:https://x.y/bad']\n", value) == []
    assert broken(paths, "[sources]\nallowed = ['url:https://x.y/a/*']\n", value) == [
        ("sources.allowed", "x", f"url:{url}")
    ]


PERMISSIONS = ["filesystem:rw:~/x", "network?ALLOW", "Reads your calendar"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param("forbidden = ['network']", [("permissions.forbidden", "network")], id="conditional"),
        pytest.param("forbidden = ['filesystem:rw:*']", [("permissions.forbidden", "filesystem:rw:~/x")], id="glob"),
        pytest.param("forbidden = ['devices']", [], id="not-asked"),
        pytest.param(
            "allowed = ['network', 'filesystem:ro:*']",
            [("permissions.allowed", "filesystem:rw:~/x"), ("permissions.allowed", "Reads your calendar")],
            id="allowed",
        ),
        pytest.param("allowed = ['*']", [], id="all"),
    ],
)
def test_permissions(paths: Paths, rules: str, expected: list[tuple[str, str]]) -> None:
    servers = by_id(server("a", permissions=PERMISSIONS))
    found = broken(paths, f"[permissions]\n{rules}\n", payload(x=run("a")), servers)
    assert found == [(rule, "x", value) for rule, value in expected]


@pytest.mark.parametrize("rules", ["forbidden = ['filesystem:rw:*']", "allowed = ['filesystem:ro:*']"])
def test_what_a_server_may_make_it_may_write(paths: Paths, rules: str) -> None:
    servers = by_id(server("a", permissions=["filesystem:create:~/x?make"]))
    found = broken(paths, f"[permissions]\n{rules}\n", payload(x=run("a")), servers)
    assert [(rule, name) for rule, name, _ in found] == [(f"permissions.{rules.split(maxsplit=1)[0]}", "x")]
    assert broken(paths, "[permissions]\nallowed = ['filesystem:rw:~/x']\n", payload(x=run("a")), servers) == []


def test_a_remote_server_needs_the_network_without_saying_so(paths: Paths) -> None:
    remote = server("a", source=None, transports=[{"type": "streamable-http", "url": "https://x.y/mcp"}])
    assert broken(paths, "[permissions]\nforbidden = ['network']\n", payload(x=run("a")), by_id(remote)) == [
        ("permissions.forbidden", "x", "network")
    ]


def test_permissions_that_nobody_knows_are_not_among_the_allowed(paths: Paths) -> None:
    value = payload(x=NPX, y=run("gone"))
    assert broken(paths, "[permissions]\nallowed = ['network']\n", value) == [
        ("permissions.allowed", "x", "unknown"),
        ("permissions.allowed", "y", "unknown"),
    ]
    assert broken(paths, "[permissions]\nforbidden = ['network']\n", value) == []


def test_a_user_can_take_away_more_and_give_nothing_back(paths: Paths) -> None:
    paths.system.policy.write_text('[servers]\nforbidden = ["evil"]\n')
    paths.user.policy.write_text('[servers]\nallowed = ["evil", "mine"]\n')
    value = payload(evil=NPX, mine=NPX, other=NPX)
    users = Policy.load(paths, Scope.USER).check(value, {})
    assert [(each.rule, each.server_id, each.file) for each in users] == [
        ("servers.forbidden", "evil", str(paths.system.policy)),
        ("servers.allowed", "other", str(paths.user.policy)),
    ]
    systems = Policy.load(paths, Scope.SYSTEM).check(value, {})
    assert [each.server_id for each in systems] == ["evil"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        pytest.param(b"[servers", "", id="not-toml"),
        pytest.param(b"\xff", "", id="not-utf-8"),
        pytest.param(b"[server]\n", "server: unknown rule", id="unknown-table"),
        pytest.param(b"[servers]\nforbiden = ['x']\n", "servers.forbiden: unknown rule", id="unknown-key"),
        pytest.param(b"[servers]\nforbidden = 'x'\n", "servers.forbidden", id="text"),
        pytest.param(b"[servers]\nforbidden = [1]\n", "servers.forbidden.0", id="number"),
        pytest.param(b"[servers]\nforbidden = ['']\n", "servers.forbidden.0", id="empty-glob"),
        pytest.param(b"servers = []\n", "servers", id="list"),
        pytest.param(b"[audit]\n", "audit: unknown rule", id="audit"),
        pytest.param(b"x = " + b"[" * 10_000, "nested too deeply", id="deep"),
        pytest.param(b"x = " + b"9" * 5000, "a number with thousands of digits", id="digits"),
        pytest.param(b"x" + b".x" * 100_000 + b" = 1", "a key of more than 64 parts", id="long-key"),
        pytest.param(b"#" * (MAX_POLICY + 1), "larger than", id="large"),
    ],
)
@pytest.mark.parametrize("whose", ["system", "user"])
def test_a_broken_policy_allows_nothing(paths: Paths, content: bytes, fault: str, whose: str) -> None:
    path = paths.system.policy if whose == "system" else paths.user.policy
    path.write_bytes(content)
    with pytest.raises(InvalidConfig) as caught:
        Policy.load(paths, Scope.USER)
    assert caught.value.message.startswith(f"{path}: {fault}")
    assert caught.value.message.endswith("no configuration is published or deployed")


@pytest.mark.parametrize("kind", ["directory", "fifo", "dangling", "loop"])
def test_a_policy_that_cannot_be_read_allows_nothing(paths: Paths, kind: str) -> None:
    path = paths.system.policy
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "loop" else "nowhere")
    with pytest.raises(InvalidConfig, match=r"policy\.toml"):
        Policy.load(paths, Scope.SYSTEM)


def test_a_policy_that_is_a_link_to_a_file_counts(paths: Paths, tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text('[servers]\nforbidden = ["*"]\n')
    paths.system.policy.symlink_to(real)
    assert len(Policy.load(paths, Scope.SYSTEM).check(payload(a=NPX), {})) == 1


@given(st.text(min_size=1, max_size=30), st.text(max_size=30))
def test_any_glob_can_be_matched_with_any_name(tmp_path_factory: pytest.TempPathFactory, glob: str, name: str) -> None:
    found = paths_below(tmp_path_factory.mktemp("policy"))
    found.system.policy.parent.mkdir(parents=True)
    quoted = "".join(f"\\U{ord(character):08x}" for character in glob)
    found.system.policy.write_text(f'[servers]\nforbidden = ["{quoted}", "*"]\n')
    (violation,) = Policy.load(found, Scope.SYSTEM).check({"mcpServers": {name: NPX}}, {})
    assert violation.rule == "servers.forbidden"
    assert violation.message.isprintable()


def test_star_crosses_slashes_and_matching_hostile_names_comes_to_an_end(paths: Paths) -> None:
    glob = "*a" * 30
    assert broken(paths, f"[commands]\nforbidden = ['{glob}b']\n", payload(x={"command": "a/" * 20_000})) == []
    assert broken(paths, "[commands]\nforbidden = ['a*z']\n", payload(x={"command": "a/b/c/z"})) == [
        ("commands.forbidden", "x", "a/b/c/z")
    ]


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
