# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl import: servers of other programs' files, one job each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import AlreadyInstalled
from tests.cli.fake import need

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd, Job

TOKEN = "ghp_" + "a1B2" * 9
CLIENT = {
    "mcpServers": {
        "calculator": {"command": "uvx", "args": ["calculator"]},
        "github": {"command": "npx", "args": ["-y", "@x/github@1.2.3"], "env": {"GITHUB_TOKEN": TOKEN}},
        "containers": {"command": "docker", "args": ["run", "x"]},
    }
}
NEED = need("config", "GITHUB_TOKEN", sensitive=True)
SERVER_JSON = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "com.example/time",
    "description": "Tells the time",
    "version": "1.0.0",
    "packages": [{"registryType": "pypi", "identifier": "time", "version": "1.0.0", "transport": {"type": "stdio"}}],
}
ENTRY = {
    "id": "com.example.time",
    "name": "Time",
    "summary": "Tells the time",
    "version": "1.0",
    "transports": [{"type": "stdio", "command": "time"}],
    "source": {"type": "pypi", "package": "time", "version": "1.0"},
}
JSONC = '{ // servers\n "mcpServers": {"calculator": {"command": "uvx", "args": ["calculator"],},}, }'
TOML = '[mcp_servers.calculator]\ncommand = "uvx"\nargs = ["calculator"]\n'
YAML = "mcpServers:\n  - name: calculator\n    command: uvx\n    args: [calculator]\n"


@pytest.fixture
def client(tmp_path: Path) -> str:
    """The file of a client."""
    return written(tmp_path / "client.json", CLIENT)


def written(path: Path, document: object) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def named(job: Job, server_id: str) -> None:
    job.properties["ServerId"] = server_id
    job.end()


def installed(mcpd: FakeMcpd, *ids: str) -> None:
    """Have the jobs of *mcpd* install *ids*, one after another."""
    waiting = list(ids)
    for server_id in ids:
        mcpd.servers[server_id] = mcpd.servers["calculator"] | {"id": server_id}
    mcpd.on_job = lambda job: named(job, waiting.pop(0))


def received(mcpd: FakeMcpd) -> list[dict[str, Any]]:
    return [json.loads(data) for data in mcpd.received]


async def test_each_server_of_a_client_is_installed(mcpctl: Mcpctl, mcpd: FakeMcpd, client: str) -> None:
    def on_job(job: Job) -> None:
        job.properties["ServerId"] = "calculator" if len(mcpd.jobs) == 1 else "github"
        if len(mcpd.jobs) == 2:
            job.enter("needs-config", needs=[NEED])
        else:
            job.end()

    mcpd.servers["github"] = mcpd.servers["calculator"] | {"id": "github", "version": "1.2.3"}
    mcpd.on_job = on_job
    process = await mcpctl.start("import", client, "--yes")
    assert process.stderr is not None
    await process.stderr.readuntil(b"github")
    while len(mcpd.jobs) < 2:
        mcpd.job_started.clear()
        await mcpd.job_started.wait()
    await mcpd.jobs[1].called.wait()
    mcpd.jobs[1].end()
    out, err = await process.communicate()
    assert process.returncode == 0
    assert out.decode().splitlines() == ["Installed calculator 1.0 (user).", "Installed github 1.2.3 (user)."]
    calculator, github, secret = mcpd.received
    assert json.loads(calculator)["source"] == {"type": "pypi", "package": "calculator"}
    assert TOKEN not in github.decode()
    assert secret.decode() == TOKEN
    assert TOKEN not in err.decode()


async def test_servers_that_are_named_alone(mcpctl: Mcpctl, mcpd: FakeMcpd, client: str) -> None:
    installed(mcpd, "calculator")
    ended = await mcpctl("import", client, "calculator")
    assert (ended.code, ended.out) == (0, "Installed calculator 1.0 (user).\n")
    assert "containers" not in ended.err
    assert [call[0] for call in mcpd.calls] == ["InstallManifest", "GetServer"]
    assert mcpd.calls[0][2] == {"consent": False}


@pytest.mark.parametrize(("name", "message"), [("nobody", "it has calculator, github"), ("containers", "container")])
async def test_a_name_that_is_not_there(mcpctl: Mcpctl, client: str, name: str, message: str) -> None:
    ended = await mcpctl("import", client, name, "--dry-run")
    assert ended.code == 4
    assert message in ended.err


async def test_no_server_takes_the_name_of_another(mcpctl: Mcpctl, tmp_path: Path) -> None:
    thief = ENTRY | {"id": "thief", "name": "com.example.time"}
    twins = [ENTRY | {"id": name, "name": "Twin"} for name in ("one", "two")]
    name = written(tmp_path / "registry.json", {"servers": [thief, ENTRY, *twins]})
    result = await mcpctl("import", name, "com.example.time", "--dry-run", "--json")
    assert [server["id"] for server in json.loads(result.out)["servers"]] == ["com.example.time"]
    refused = await mcpctl("import", name, "Twin", "--dry-run")
    assert (refused.code, "one, two; specify the id" in refused.err) == (2, True)


async def test_an_item_of_a_page_of_the_official_registry(mcpctl: Mcpctl, tmp_path: Path) -> None:
    package = {"registryType": "npm", "identifier": "x", "version": "1.0.0", "transport": {"type": "stdio"}}
    server = {"name": "com.example/time", "description": "Tells it", "version": "1.0.0", "packages": [package]}
    name = written(tmp_path / "item.json", {"server": server, "_meta": {}})
    result = json.loads((await mcpctl("import", name, "--dry-run", "--json")).out)
    assert ([found["id"] for found in result["servers"]], result["problems"]) == (["com.example.time"], [])


async def test_a_dry_run_shows_no_secrets(mcpctl: Mcpctl, client: str) -> None:
    ended = await mcpctl("import", client, "--dry-run")
    assert (ended.code, ended.out.split("\n")[0]) == (0, "calculator:")
    assert "secrets from the file: GITHUB_TOKEN" in ended.out
    assert "mcpd does not run containers" in ended.err
    as_json = await mcpctl("import", client, "--dry-run", "--json")
    result = json.loads(as_json.out)
    assert [(server["id"], server["secrets"]) for server in result["servers"]] == [
        ("calculator", []),
        ("github", ["GITHUB_TOKEN"]),
    ]
    assert [problem["name"] for problem in result["problems"]] == ["containers"]
    assert TOKEN not in ended.out + ended.err + as_json.out + as_json.err


async def test_a_dry_run_shows_what_each_is_and_may_do(mcpctl: Mcpctl, tmp_path: Path) -> None:
    servers = {
        "files": {"command": "npx", "args": ["-y", "@x/files@1.2.3", str(tmp_path)]},
        "far": {"url": "https://x.example/mcp"},
    }
    ended = await mcpctl("import", written(tmp_path / "client.json", {"mcpServers": servers}), "--dry-run")
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    for line in (
        "from npm @x/files 1.2.3",
        f"starts npx @x/files {tmp_path}",
        f"filesystem:rw:{tmp_path} (may read and change {tmp_path})",
        "starts https://x.example/mcp (streamable-http)",
    ):
        assert line in lines
    assert lines.count("permissions network (may use the network)") == 2
    assert ended.err == "Nothing was installed. The packages are not known before the installation.\n"


async def test_a_dry_run_says_what_cannot_be_installed(mcpctl: Mcpctl, tmp_path: Path) -> None:
    image = {"registryType": "oci", "identifier": "x/y", "version": "1", "transport": {"type": "stdio"}}
    name = written(tmp_path / "oci.json", SERVER_JSON | {"packages": [image]})
    ended = await mcpctl("import", name, "--dry-run")
    assert (ended.code, ended.out) == (1, "")
    assert "com.example.time cannot be installed: " in ended.err
    assert "container" in ended.err
    as_json = await mcpctl("import", name, "--dry-run", "--json")
    (server,) = json.loads(as_json.out)["servers"]
    assert (as_json.code, server["error"], "container" in server["message"]) == (1, "InvalidManifest", True)


async def test_names_may_stand_behind_options(mcpctl: Mcpctl, client: str) -> None:
    for argv in (["--dry-run", "github"], ["calculator", "--dry-run", "github"]):
        ended = await mcpctl("import", client, *argv, "--json")
        assert [server["id"] for server in json.loads(ended.out)["servers"]][-1] == "github"
    ended = await mcpctl("import", client, "--dry-run", "github", "--bogus")
    assert (ended.code, "unrecognized arguments: --bogus\n" in ended.err) == (2, True)


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
async def test_a_file_of_which_nothing_can_be_imported(mcpctl: Mcpctl, tmp_path: Path, how: tuple[str, ...]) -> None:
    servers = {"box": {"command": "docker", "args": ["run", "x"]}, "off": {"command": "x", "disabled": True}}
    name = written(tmp_path / "client.json", {"mcpServers": servers})
    ended = await mcpctl("import", name, *how)
    assert (ended.code, ended.out) == (1, "")
    assert "Skipped: box, off.\n" in ended.err
    ended = await mcpctl("import", name, *how, "--json")
    result = json.loads(ended.out)
    assert (ended.code, result["servers"], result["left-out"]) == (1, [], ["box", "off"])


async def test_those_that_are_left_out_are_told_from_the_others(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    installed(mcpd, "bad.name.")
    servers = {"bad name!": {"command": "uvx", "args": ["x"]}, "box": {"command": "docker", "args": ["run", "x"]}}
    name = written(tmp_path / "client.json", {"mcpServers": servers})
    ended = await mcpctl("import", name)
    assert (ended.code, ended.out) == (0, "Installed bad.name. 1.0 (user).\n")
    assert "bad name!: is named bad.name. here" in ended.err
    assert "Skipped: box.\n" in ended.err
    result = json.loads((await mcpctl("import", name, "--dry-run", "--json")).out)
    assert [problem["name"] for problem in result["problems"]] == ["bad name!", "box"]
    assert result["left-out"] == ["box"]


async def test_a_bundle_that_was_installed_from_a_file(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    installed(mcpd, "com.example.time")
    brought = ENTRY | {"id": "brought", "source": {"type": "mcpb", "sha256": "a" * 64}}
    name = written(tmp_path / "registry.json", {"servers": [brought, ENTRY]})
    ended = await mcpctl("import", name)
    assert (ended.code, ended.out) == (0, "Installed com.example.time 1.0 (user).\n")
    assert f"install that .mcpb file (sha256 {'a' * 64}) with: mcpctl install" in ended.err
    assert "Skipped: brought.\n" in ended.err
    alone = await mcpctl("import", name, "brought")
    assert (alone.code, "it was installed from a file" in alone.err) == (4, True)


async def test_one_that_fails_stops_no_other(mcpctl: Mcpctl, mcpd: FakeMcpd, client: str) -> None:
    def on_job(job: Job) -> None:
        if len(mcpd.jobs) == 1:
            job.end("failed", "org.mcpd.Mcp1.Error.BuildFailed", "calculator: no wheel")
        else:
            named(job, "github")

    mcpd.servers["github"] = mcpd.servers["calculator"] | {"id": "github"}
    mcpd.on_job = on_job
    ended = await mcpctl("import", client, "--json")
    assert ended.code == 1
    calculator, github = json.loads(ended.out)["servers"]
    assert calculator == {"id": "calculator", "error": "BuildFailed", "message": "calculator: no wheel"}
    assert github["installed"]["id"] == "github"


async def test_what_is_there_already_is_left_alone(mcpctl: Mcpctl, mcpd: FakeMcpd, client: str) -> None:
    mcpd.errors["InstallManifest"] = AlreadyInstalled("calculator is installed")
    ended = await mcpctl("import", client, "calculator")
    assert (ended.code, ended.out) == (0, "")
    assert "calculator was not installed: calculator is installed" in ended.err


@pytest.mark.parametrize(
    ("name", "document", "ids"),
    [
        ("server.json", SERVER_JSON, ["com.example.time"]),
        ("registry.json", {"version": "1.0", "servers": [ENTRY, {"id": "x"}]}, ["com.example.time"]),
        ("map.json", {"version": "1.0", "servers": {"com.example.time": ENTRY}}, ["com.example.time"]),
        ("page.json", {"servers": [{"server": SERVER_JSON}], "metadata": {"count": 1}}, ["com.example.time"]),
        ("settings.json", JSONC, ["calculator"]),
        ("config.toml", TOML, ["calculator"]),
        ("config.yaml", YAML, ["calculator"]),
    ],
)
async def test_all_that_can_be_imported(
    mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path, name: str, document: object, ids: list[str]
) -> None:
    installed(mcpd, *ids)
    ended = await mcpctl("import", written(tmp_path / name, document), "--json")
    assert ended.code == 0, ended.err
    assert [server["id"] for server in json.loads(ended.out)["servers"]] == ids
    assert [entry["id"] for entry in received(mcpd)] == ids


async def test_paths_that_are_not_there_are_not_granted(mcpctl: Mcpctl, tmp_path: Path) -> None:
    entry = {"command": "uvx", "args": ["files", str(tmp_path)], "env": {"API_PREFIX": "/v1/api"}}
    name = written(tmp_path / "client.json", {"mcpServers": {"files": entry}})
    result = json.loads((await mcpctl("import", name, "--dry-run", "--json")).out)
    [server] = result["servers"]
    assert server["entry"]["permissions"] == ["network", f"filesystem:rw:{tmp_path}"]
    [problem] = result["problems"]
    assert (problem["name"], "/v1/api does not exist" in problem["message"]) == ("files", True)


async def test_standard_input(mcpctl: Mcpctl) -> None:
    ended = await mcpctl("import", "-", "--dry-run", stdin=json.dumps(CLIENT).encode())
    assert ended.code == 0
    assert "standard input: containers: " in ended.err


@pytest.mark.parametrize(
    ("name", "document", "code", "message"),
    [
        ("x.json", {"a": 1}, 1, "not the configuration of an MCP client"),
        ("x.json", "{", 1, "x.json:1: not JSON"),
        ("x.toml", "[", 1, "not TOML"),
        ("x.toml", "mcpServers" + ".a" * 100_000 + " = 1", 1, "x.toml: not TOML: a key of more than 64 parts"),
        ("x.mcpb", "x", 2, "mcpctl install"),
        ("x.nix", "{ }", 2, "~/.config/mcp/mcp.json"),
        ("x.json", {"programs": {"mcp": {"servers": {"a": {"command": "x"}}}}}, 1, "~/.config/mcp/mcp.json"),
        ("x.json", {"mcpServers": {}}, 1, "no servers under"),
        ("x.json", {"servers": [ENTRY | {"id": f"s{n}"} for n in range(51)]}, 2, "mcpctl source add file:///"),
    ],
)  # fmt: skip
async def test_what_cannot_be_imported(
    mcpctl: Mcpctl, tmp_path: Path, name: str, document: object, code: int, message: str
) -> None:
    ended = await mcpctl("import", written(tmp_path / name, document))
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err


async def test_a_file_that_is_not_there(mcpctl: Mcpctl, tmp_path: Path) -> None:
    ended = await mcpctl("import", str(tmp_path / "nothing.json"))
    assert ended.code == 4
