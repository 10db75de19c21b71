# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configuration files of MCP clients as entries to install."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.secret_values import literal_secrets
from mcpd.errors import InvalidManifest
from mcpd.formats.mcp_servers import is_client_file, servers_of
from mcpd.model import Manifest

if TYPE_CHECKING:
    from mcpd.formats.mcp_servers import Imported, ImportResult

ORIGIN = "client.json"
TOKEN = "ghp_" + "a1B2" * 9


def read(document: object) -> ImportResult:
    return servers_of(document, ORIGIN, literal_secrets)


def one(entry: dict[str, Any], **more: Any) -> Imported:
    result = read({"mcpServers": {"x": entry}} | more)
    assert not result.problems
    [server] = result.servers
    return server


def refused(entry: Any, **more: Any) -> str:
    result = read({"mcpServers": {"x": entry}} | more)
    assert not result.servers
    [problem] = result.problems
    assert problem.message.startswith(f"{ORIGIN}: x: ")
    return problem.message


def words(server: Imported) -> list[str]:
    [transport] = server.entry["transports"]
    return [transport["command"], *transport.get("args", [])]


@pytest.mark.parametrize(
    "document",
    [
        {"mcpServers": {"x": {"command": "uvx", "args": ["time"]}}},
        {"mcpServers": [{"name": "x", "command": "uvx", "args": ["time"]}]},
        {"servers": {"x": {"type": "stdio", "command": "uvx", "args": ["time"]}}},
        {"mcp": {"servers": {"x": {"command": "uvx", "args": ["time"]}}}},
        {"mcp": {"x": {"type": "local", "command": ["uvx", "time"], "enabled": True}}},
        {"context_servers": {"x": {"source": "custom", "command": {"path": "uvx", "args": ["time"]}}}},
        {"mcp_servers": {"x": {"command": "uvx", "args": ["time"], "startup_timeout_sec": 10}}},
        {"extensions": {"x": {"type": "stdio", "cmd": "uvx", "args": ["time"]}}},
        {"mcpServers": {"x": {"command": "uvx time"}}},
        {"mcpServers": {"x": {"command": "cmd", "args": ["/c", "uvx.exe", "time"]}}},
    ],
)
def test_all_kinds_of_files(document: dict[str, Any]) -> None:
    assert is_client_file(document)
    [server] = read(document).servers
    assert (server.entry["id"], words(server)) == ("x", ["uvx", "time"])


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"servers": []},
        {"servers": {"x": {"transports": [{"type": "stdio", "command": "x"}]}}},
        {"servers": {"x": {"type": "sse", "transport": {"url": "https://x.example/"}, "url": "https://x.example/"}}},
        {"servers": {"x": {"manifest": "https://x.example/m.json", "url": "https://x.example/"}}},
        {"servers": [{"server": {"name": "a/b"}}]},
        {"mcp": {}},
    ],
)
def test_registries_and_others_are_no_files_of_clients(document: object) -> None:
    assert not is_client_file(document)
    with pytest.raises(InvalidManifest, match="not a client's file"):
        read(document)


@pytest.mark.parametrize(
    ("command", "source", "started"),
    [
        ("npx -y @x/y@1.2.3 a", {"type": "npm", "package": "@x/y", "version": "1.2.3"}, ["npx", "@x/y", "a"]),
        ("npx y@latest", {"type": "npm", "package": "y"}, ["npx", "y"]),
        ("npx --package=@x/y z a", {"type": "npm", "package": "@x/y"}, ["z", "a"]),
        ("/usr/bin/npx -y y", {"type": "npm", "package": "y"}, ["npx", "y"]),
        ("bunx y", {"type": "npm", "package": "y"}, ["npx", "y"]),
        ("pnpm dlx y a", {"type": "npm", "package": "y"}, ["npx", "y", "a"]),
        ("yarn dlx y", {"type": "npm", "package": "y"}, ["npx", "y"]),
        ("npm exec -- y a", {"type": "npm", "package": "y"}, ["npx", "y", "a"]),
        ("uvx a==1.0 b", {"type": "pypi", "package": "a", "version": "1.0"}, ["uvx", "a", "b"]),
        ("uvx a@1.0", {"type": "pypi", "package": "a", "version": "1.0"}, ["uvx", "a"]),
        ("uvx --python 3.12 --from a[cli] c d", {"type": "pypi", "package": "a[cli]"}, ["c", "d"]),
        ("uv tool run a", {"type": "pypi", "package": "a"}, ["uvx", "a"]),
        ("pipx run a b", {"type": "pypi", "package": "a"}, ["uvx", "a", "b"]),
        (
            "uvx --from git+https://example.com/x/y@v1#subdirectory=z s",
            {"type": "git", "url": "https://example.com/x/y", "rev": "v1", "path": "z"},
            ["s"],
        ),
    ],
)
def test_packages(command: str, source: dict[str, str], started: list[str]) -> None:
    program, *args = command.split()
    server = one({"command": program, "args": args})
    assert server.entry["source"] == source
    assert server.entry["version"] == source.get("version", "")
    assert server.entry["permissions"] == ["network"]
    assert words(server) == started


@pytest.mark.parametrize(
    ("entry", "path", "started"),
    [
        ({"command": "node", "args": ["/srv/p/dist/i.js", "-x=/srv/p/y"]}, "/srv/p", ["node", "./dist/i.js", "-x=./y"]),
        ({"command": "python", "args": ["/srv/p/s.py"]}, "/srv/p", ["python3", "./s.py"]),
        ({"command": "/home/u/p/.venv/bin/python", "args": ["-m", "s"]}, "/home/u/p", ["python3", "-m", "s"]),
        ({"command": "/home/u/p/.venv/bin/s"}, "/home/u/p", ["s"]),
        ({"command": "/home/u/p/s"}, "/home/u/p", ["./s"]),
        ({"command": "uv", "args": ["--directory", "/home/u/p", "run", "s.py"]}, "/home/u/p", ["python3", "s.py"]),
        ({"command": "node", "args": ["i.js"], "cwd": "/home/u/p"}, "/home/u/p", ["node", "i.js"]),
        ({"command": "/home/u/.nvm/v20/bin/node", "args": ["/home/u/p/i.js"]}, "/home/u/p", ["node", "./i.js"]),
    ],
)  # fmt: skip
def test_programs_in_one_directory(entry: dict[str, Any], path: str, started: list[str]) -> None:
    server = one(entry)
    assert server.entry["source"] == {"type": "local", "path": path}
    assert words(server) == started


@pytest.mark.parametrize(
    ("command", "permissions"),
    [
        ("/usr/bin/x y", []),
        ("/usr/bin/x /etc/x.conf /dev/null", ["filesystem:ro:/etc/x.conf"]),
        ("/opt/x/bin/x --data=/opt/y", ["filesystem:ro:/opt/y"]),
        ("python3 /usr/share/x/x.py", []),
        # What home-manager writes.
        ("/nix/store/0-x/bin/x y", ["filesystem:ro:/nix/store"]),
        ("/nix/store/0-py/bin/python3 /nix/store/1-x/x.py", ["filesystem:ro:/nix/store"]),
    ],
)
def test_a_program_of_the_system_has_no_source(command: str, permissions: list[str]) -> None:
    program, *args = command.split()
    server = one({"command": program, "args": args})
    assert "source" not in server.entry
    assert words(server) == [program, *args]
    assert server.entry["permissions"] == ["network", *permissions]


def test_nothing_is_copied_for_a_program_of_the_system() -> None:
    result = read({"mcpServers": {"x": {"command": "/usr/bin/x", "cwd": "/home/u/project"}}})
    assert "source" not in result.servers[0].entry
    assert "working directory is ignored" in result.problems[0].message


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"command": "docker", "args": ["run", "x"]}, "mcpd does not run containers"),
        ({"command": "x"}, "depends on the client's PATH; install it by its directory"),
        ({"command": "node", "args": ["i.js"]}, "contain the directory of its program"),
        ({"command": "node", "args": ["/home/u/a/i.js"], "cwd": "/home/u/b"}, "are not in one directory"),
        ({"command": "node", "args": ["/home/u/i.js"]}, "'/home/u' contains more than the server"),
        ({"command": "node", "args": ["/home/u/.ssh/i.js"]}, "'/home/u/.ssh' contains more than the server"),
        ({"command": "node", "args": ["/root/.config/i.js"]}, "'/root/.config' contains more than the server"),
        ({"command": "node", "args": ["/home/u/Documents/i.js"]}, "contains more than the server"),
        ({"command": "node", "args": ["/home/u/.local/share/i.js"]}, "contains more than the server"),
        ({"command": "node", "args": ["/var/lib/i.js"]}, "contains more than the server"),
        ({"command": "npx", "args": ["x", "{config.KEY}"]}, "args[1]: {config.…}"),
        ({"command": "npx", "args": ["x"], "env": {"A": "{config.KEY}"}}, "env.A: {config.…}"),
        ({"command": "/home/u/.local/bin/x"}, "contains unrelated programs"),
        ({"command": "node", "args": ["i.js"], "cwd": "rel"}, "not an absolute path"),
        ({"command": "sh", "args": ["-c", "x | y"]}, "runs a shell command line"),
        ({"command": "npx", "args": ["-c", "x"]}, "'-c'"),
        ({"command": "npx", "args": ["github:x/y"]}, "mcpctl install git"),
        ({"command": "uvx", "args": ["--with", "a", "b"]}, "'--with'"),
        ({"command": "uvx", "args": []}, "does not specify a package"),
        ({"command": "mcpctl", "args": ["run", "x"]}, "mcpd itself"),
        ({"command": ""}, "command is empty"),
        ({"command": 3}, "command is neither a string nor a list"),
        ({"command": "npx", "args": "x"}, "args is not a list"),
        ({"command": "npx", "args": ["x"], "env": ["y"]}, "env is not a map"),
        ({"command": "npx", "args": ["x"], "env": {"A B": "y"}}, "'A B' cannot be the name of a variable"),
        ({"url": "https://x.example/mcp", "headers": {"A B": "y"}}, "'A B' cannot be the name of a header"),
        ({"url": "unix:///run/x.sock"}, "does not begin with http://"),
        ({"type": "http"}, "neither a command nor a url"),
        ("x", "not an object"),
    ],
)
def test_what_mcpd_cannot_keep_to_is_said(entry: Any, message: str) -> None:
    assert message in refused(entry)


def test_what_is_switched_off_is_left_out() -> None:
    for off in ({"disabled": True}, {"enabled": False}, {"active": False}):
        assert "disabled in the file" in refused({"command": "uvx", "args": ["x"]} | off)


def test_one_that_cannot_be_read_does_not_keep_the_others() -> None:
    document = {"mcpServers": {"a": {"command": "uvx", "args": ["x"]}, "b": 3, "!": {"command": "uvx", "args": ["x"]}}}
    result = read(document)
    assert [server.entry["id"] for server in result.servers] == ["a"]
    assert [problem.server_id for problem in result.problems] == ["b", "!"]


def test_names_become_ids() -> None:
    entry = {"command": "uvx", "args": ["x"]}
    names = ["my server", "my.server", "@scope/x", "sse"]
    servers = read({"mcpServers": dict.fromkeys(names, entry)}).servers
    assert [server.entry["name"] for server in servers][:3] == names[:3]
    assert [server.entry["id"] for server in servers][:3] == ["my.server", "my.server-2", "scope.x"]


def test_paths_become_permissions() -> None:
    args = ["-y", "files", "/home/u/Documents", "--log=/home/u/log", "/usr/share/x", "https://x.example/"]
    server = one({"command": "npx", "args": args, "env": {"DB": "/home/u/x.db"}})
    granted = ["/home/u/Documents", "/home/u/log", "/home/u/x.db"]
    assert server.entry["permissions"] == ["network", *(f"filesystem:rw:{path}" for path in granted)]


def test_credentials_are_taken_out_of_the_entry() -> None:
    server = one({"command": "npx", "args": ["x"], "env": {"API_KEY": "some value", "OTHER": TOKEN, "LOG": "debug"}})
    assert server.secrets == {"API_KEY": "some value", "OTHER": TOKEN}
    assert server.entry["env"] == {"LOG": "debug"}
    for item in server.entry["configurableProperties"]:
        assert (item["sensitive"], item["required"], item["target"]) == (True, True, "env")
    assert "some value" not in repr(server)


def test_credentials_of_servers_elsewhere() -> None:
    url = "https://x.example/mcp?api_key=a1b2c3d4e5f6"
    server = one({"type": "http", "url": url, "headers": {"Authorization": f"Bearer {TOKEN}", "X-Team": "a"}})
    assert server.secrets == {"URL": url, "Authorization": f"Bearer {TOKEN}"}
    headers = {"Authorization": "{config.Authorization}", "X-Team": "a"}
    assert server.entry["transports"] == [{"type": "streamable-http", "url": "{config.URL}", "headers": headers}]
    assert "permissions" not in server.entry


def test_a_credential_in_an_argument_is_refused_without_showing_it() -> None:
    for args in (["x", "--api-key", TOKEN], ["x", f"--token={TOKEN}"]):
        message = refused({"command": "npx", "args": args})
        assert "contains a secret" in message
        assert TOKEN not in message
    address = f"https://me:{TOKEN}@example.com/x"
    for command in (["uvx", "--from", f"git+{address}", "x"], ["npx", "-y", address], ["uvx", f"{address}.whl"]):
        assert TOKEN not in refused({"command": command})
    assert "contains a secret" in refused({"command": ["uvx", "--from", f"git+{address}"]})
    assert TOKEN not in refused({"command": "npx", "args": ["x"], "env": {"A_TOKEN": TOKEN + "\0"}})
    assert "'GITHUB_TOKEN' is a secret" in refused({"command": "npx", "args": ["x", "${env:GITHUB_TOKEN}"]})


@pytest.mark.parametrize(
    ("entry", "kind", "address"),
    [
        ({"url": "https://x.example/mcp"}, "streamable-http", "url"),
        ({"url": "https://x.example/sse"}, "sse", "url"),
        ({"type": "sse", "url": "https://x.example/mcp"}, "sse", "url"),
        ({"httpUrl": "https://x.example/sse"}, "streamable-http", "url"),
        ({"serverUrl": "https://x.example/mcp"}, "streamable-http", "url"),
        ({"type": "streamableHttp", "url": "https://x.example/sse"}, "streamable-http", "url"),
        ({"type": "remote", "url": "https://x.example/mcp"}, "streamable-http", "url"),
        ({"type": "ws", "url": "wss://x.example/mcp"}, "websocket", "wsUrl"),
        ({"command": "npx", "args": ["-y", "mcp-remote@latest", "https://x.example/mcp"]}, "streamable-http", "url"),
        ({"command": "npx", "args": ["mcp-remote", "https://x.example/sse", "--debug"]}, "sse", "url"),
        (
            {"command": "npx", "args": ["mcp-remote", "https://x.example/sse", "--transport", "http-only"]},
            "streamable-http",
            "url",
        ),
    ],
)
def test_servers_elsewhere(entry: dict[str, Any], kind: str, address: str) -> None:
    [transport] = one(entry).entry["transports"]
    assert transport["type"] == kind
    assert transport[address].split("://")[1].startswith("x.example/")


def test_headers_of_mcp_remote() -> None:
    args = ["mcp-remote", "https://x.example/mcp", "--header", "Authorization:${AUTH}", "--header", "X-A: b"]
    server = one({"command": "npx", "args": args, "env": {"AUTH": f"Bearer {TOKEN}"}})
    assert server.secrets == {"Authorization": f"Bearer {TOKEN}"}
    assert server.entry["transports"][0]["headers"] == {"Authorization": "{config.Authorization}", "X-A": "b"}


def test_variables_keep_their_names_whatever_else_is_called_so() -> None:
    server = one({"command": "npx", "args": ["x"], "env": {"A": "x-${env:KEY}", "KEY": TOKEN}})
    assert server.entry["env"] == {"A": "x-{config.KEY}", "KEY": "{config.KEY_2}"}
    assert server.secrets == {"KEY_2": TOKEN}
    assert all(item["target"] == "manifest" for item in server.entry["configurableProperties"])


def test_what_of_mcp_remote_is_not_kept_is_noted() -> None:
    args = ["mcp-remote", "https://x.example/mcp", "--ignore-tool", "delete*"]
    result = read({"mcpServers": {"x": {"command": "npx", "args": args}}})
    assert len(result.servers) == 1
    assert "--ignore-tool" in result.problems[0].message


def test_what_a_client_fills_in_is_asked_for() -> None:
    inputs = [
        {"id": "key", "type": "promptString", "description": "API key", "password": True},
        {"id": "team", "type": "pickString", "description": "Team", "options": ["a", "b"], "default": "a"},
    ]
    env = {"KEY": "${input:key}", "TEAM": "${input:team}", "BOTH": "x-${env:OTHER}", "LEVEL": "${LEVEL:-info}"}
    server = one({"command": "npx", "args": ["x", "--team", "${input:team}"], "env": env}, inputs=inputs)
    found = {item["key"]: item for item in server.entry["configurableProperties"]}
    assert found["KEY"] == {"key": "KEY", "label": "API key", "target": "env", "required": True, "sensitive": True}
    assert (found["TEAM"]["choices"], found["TEAM"]["default"], "sensitive" in found["TEAM"]) == (
        ["a", "b"],
        "a",
        False,
    )
    assert found["OTHER"]["sensitive"]
    assert server.entry["env"] == {"BOTH": "x-{config.OTHER}"}
    assert words(server) == ["npx", "x", "--team", "{config.TEAM}"]
    assert not server.secrets


def test_variables_by_their_names() -> None:
    server = one(
        {"url": "https://x.example/mcp", "bearer_token_env_var": "TOK", "env_http_headers": {"X-Team": "TEAM"}}
    )
    headers = {"X-Team": "{config.TEAM}", "Authorization": "Bearer {config.TOK}"}
    assert server.entry["transports"][0]["headers"] == headers
    passed = one({"command": "uvx", "args": ["x"], "env_vars": [{"name": "TOK", "source": "local"}]})
    assert passed == one({"command": "uvx", "args": ["x"], "env_vars": ["TOK"]})
    assert [(item["key"], item["target"]) for item in passed.entry["configurableProperties"]] == [("TOK", "env")]


def test_the_directory_of_a_project_is_asked_for() -> None:
    server = one({"command": "uvx", "args": ["x", "${workspaceFolder}/data"]})
    assert words(server) == ["uvx", "x", "{config.workspaceFolder}/data"]
    assert server.entry["permissions"] == ["network", "filesystem:rw:{config.workspaceFolder}"]


def test_inputs_beside_the_servers_of_settings() -> None:
    inputs = [{"id": "team", "type": "promptString", "description": "Team"}]
    entry = {"command": "npx", "args": ["x"], "env": {"TEAM": "${input:team}"}}
    [server] = read({"mcp": {"inputs": inputs, "servers": {"x": entry}}}).servers
    assert server.entry["configurableProperties"] == [
        {"key": "TEAM", "label": "Team", "target": "env", "required": True}
    ]


@pytest.mark.parametrize("field", ["disabled_tools", "excludeTools", "oauth", "headersHelper"])
def test_what_a_client_would_not_let_it_do_is_noted(field: str) -> None:
    result = read({"mcpServers": {"x": {"url": "https://x.example/mcp", field: ["delete"]}}})
    assert len(result.servers) == 1
    assert field in result.problems[0].message


def test_what_is_not_kept_is_noted() -> None:
    entry = {"command": "uvx", "args": ["x"], "cwd": "/home/u", "envFile": ".env", "env": {"PATH": "/x", "A": "b"}}
    result = read({"mcpServers": {"x": entry}})
    assert len(result.servers) == 1
    assert result.servers[0].entry["env"] == {"A": "b"}
    assert len(result.problems) == 3


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)
    | st.sampled_from(["npx", "uvx", "-y", "/home/u/p/x.py", "${input:a}", "${B}", "http://x.example", "node", TOKEN]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
FIELDS = ["command", "args", "env", "cwd", "url", "type", "headers", "env_vars", "disabled", "bearer_token_env_var"]


@given(st.dictionaries(st.text(max_size=6), st.dictionaries(st.sampled_from(FIELDS), VALUES), min_size=1, max_size=3))
def test_any_entry_is_a_server_or_a_problem(servers: dict[str, Any]) -> None:
    result = read({"mcpServers": servers})
    assert len(result.servers) <= len(servers)
    assert len(result.servers) + len({problem.server_id for problem in result.problems}) > 0
    for server in result.servers:
        assert TOKEN not in json.dumps(server.entry)
        assert server.secrets.keys() <= {item["key"] for item in server.entry.get("configurableProperties", [])}
        Manifest.parse(server.entry, ORIGIN)


@given(VALUES)
def test_anything_else_is_refused(document: object) -> None:
    with pytest.raises(InvalidManifest):
        read(document)
