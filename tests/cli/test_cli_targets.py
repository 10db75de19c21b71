# SPDX-License-Identifier: LGPL-2.1-or-later
"""install of packages, repositories, directories and files: the manifest that is sent for them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.cli.fake import NETWORK, need

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("pypi:mcp-server-time==1.0", {"id": "mcp-server-time", "version": "1.0",
                                       "source": {"type": "pypi", "package": "mcp-server-time", "version": "1.0"}}),
        ("npm:@scope/server@2.1.0", {"id": "scope.server", "version": "2.1.0",
                                     "source": {"type": "npm", "package": "@scope/server", "version": "2.1.0"}}),
        ("git+https://example.com/a/b.git@v1#sub/dir", {"id": "dir", "version": "", "source": {
            "type": "git", "url": "https://example.com/a/b.git", "rev": "v1", "path": "sub/dir"}}),
        ("git+ssh://git@example.com/a/b.git", {"id": "b", "version": "", "source": {
            "type": "git", "url": "ssh://git@example.com/a/b.git"}}),
    ],
)  # fmt: skip
async def test_install_from_elsewhere_sends_a_manifest(
    mcpctl: Mcpctl, mcpd: FakeMcpd, target: str, expected: dict[str, object]
) -> None:
    mcpd.servers[str(expected["id"])] = {"id": expected["id"], "scope": "user", "version": "1"}
    ended = await mcpctl("install", target, "--command", "prog", "--arg=-x", "--arg", "y z")
    assert ended.code == 0
    sent = json.loads(mcpd.received[0])
    assert sent["transports"] == [{"type": "stdio", "command": "prog", "args": ["-x", "y z"]}]
    assert {key: sent[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("files", "server_id"),
    [
        ({"pyproject.toml": '[project]\nname = "srv"\nversion = "3"'}, "srv"),
        ({"package.json": '{"name": "@s/srv", "version": "3"}'}, "s.srv"),
        ({"manifest.json": '{"id": "m", "name": "M", "transports": [{"type": "stdio", "command": "x"}]}'}, "m"),
        ({"server.py": ""}, "project.dir"),
    ],
)
async def test_install_from_a_directory(
    mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path, files: dict[str, str], server_id: str
) -> None:
    project = tmp_path / "project dir"
    project.mkdir()
    for name, text in files.items():
        (project / name).write_text(text)
    mcpd.servers[server_id] = {"id": server_id, "scope": "user"}
    command = ["--command", "python3", "--arg", "server.py"] if "server.py" in files else []
    assert (await mcpctl("install", str(project), *command)).code == 0
    sent = json.loads(mcpd.received[0])
    assert sent["id"] == server_id
    assert sent["source"] == {"type": "local", "path": str(project)}
    assert ("transports" in sent) == ("pyproject.toml" not in files and "package.json" not in files)


@pytest.mark.parametrize(
    ("target", "runner"), [("pypi:srv", ["uvx", "srv", "-x"]), ("npm:@s/srv", ["npx", "@s/srv", "-x"])]
)
async def test_arguments_go_to_the_program_of_the_package(
    mcpctl: Mcpctl, mcpd: FakeMcpd, target: str, runner: list[str]
) -> None:
    await mcpctl("install", target, "--arg=-x")
    (transport,) = json.loads(mcpd.received[0])["transports"]
    assert [transport["command"], *transport["args"]] == runner
    await mcpctl("install", target)
    assert "transports" not in json.loads(mcpd.received[1])


async def test_a_package_is_given_what_it_needs(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    mcpd.servers["srv"] = {"id": "srv", "scope": "user"}
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[NETWORK])
    process = await mcpctl.start(
        "install", "npm:srv", "--permission", "network", "--permission", "network", "--secret", "API_KEY",
        "--env", "MODE=a=b", "--secret-file", f"API_KEY={tmp_path}/key",
    )  # fmt: skip
    async with asyncio.timeout(120):
        await mcpd.job_started.wait()
    job = mcpd.jobs[0]
    assert [call[0] for call in await job.wait_call()] == ["Proceed"]
    job.enter("needs-config", needs=[need("config", "API_KEY", label="API_KEY", sensitive=True, type="string")])
    assert [call[0] for call in await job.wait_call(2)] == ["Proceed", "SetSecret"]
    job.end()
    _, err = await process.communicate()
    assert process.returncode == 0, err
    manifest, secret = mcpd.received
    assert secret == b"s3cret"
    sent = json.loads(manifest)
    assert (sent["permissions"], sent["env"]) == (["network"], {"MODE": "a=b"})
    assert sent["configurableProperties"] == [
        {"key": "API_KEY", "label": "API_KEY", "type": "string", "sensitive": True, "required": True, "target": "env"}
    ]


async def test_naming_a_permission_consents_to_no_other(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[NETWORK, NETWORK | {"key": "devices"}])
    ended = await mcpctl("install", "npm:srv", "--permission", "network")
    assert ended.code == 3
    assert "  devices  (may use the devices of this machine)\n" in ended.err
    assert "  network" not in ended.err
    assert mcpd.calls[0][2]["consent"] is False


async def test_wishes_join_what_a_manifest_says(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    own = {"id": "calculator", "permissions": ["network"], "env": {"A": "1", "B": "2"},
           "configurableProperties": [{"key": "KEY"}, {"key": "other"}]}  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(own))
    argv = ["--permission", "devices", "--env", "B=3", "--secret", "KEY"]
    assert (await mcpctl("install", str(tmp_path), *argv)).code == 0
    sent = json.loads(mcpd.received[0])
    assert (sent["permissions"], sent["env"]) == (["network", "devices"], {"A": "1", "B": "3"})
    assert [(known["key"], known.get("target")) for known in sent["configurableProperties"]] == [
        ("other", None), ("KEY", "env")
    ]  # fmt: skip
    (tmp_path / "manifest.json").write_text('{"id": "x", "permissions": "network"}')
    wrong = await mcpctl("install", str(tmp_path), *argv)
    assert (wrong.code, wrong.err) == (1, "mcpctl: x: permissions is not a list\n")


@pytest.mark.parametrize("kind", ["pypi", "npm"])
async def test_what_a_package_says_of_itself_is_shown(mcpctl: Mcpctl, mcpd: FakeMcpd, kind: str) -> None:
    mcpd.on_job = lambda job: job.end()
    mcpd.servers["calculator"] |= {"name": "Calculator", "summary": "Adds and multiplies"}
    ended = await mcpctl("install", f"{kind}:calculator")
    assert ended.out.splitlines()[1:] == ["Calculator: Adds and multiplies"]


async def test_the_account_joins_what_a_manifest_says(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"id": "calculator", "runtime": {"idleTimeout": 5, "runAs": "user"}}')
    assert (await mcpctl("install", str(tmp_path), "--run-as", "system")).code == 0
    assert (await mcpctl("install", "pypi:calculator", "--run-as", "system")).code == 0
    sent = [json.loads(manifest)["runtime"] for manifest in mcpd.received]
    assert sent == [{"idleTimeout": 5, "runAs": "system"}, {"runAs": "system"}]
    refused = await mcpctl("install", "calculator", "--run-as", "system")
    assert refused.code == 2
    assert "--run-as" in refused.err


async def test_a_program_is_no_manifest(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("import sys\n")
    ended = await mcpctl("install", f"{tmp_path}/server.py")
    assert ended.code == 1
    assert f"{tmp_path}/server.py: not a manifest" in ended.err
    assert f"mcpctl install {tmp_path} --command PROGRAM --arg server.py" in ended.err


async def test_install_types_values_by_the_manifest(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    file = tmp_path / "entry.json"
    properties = [{"key": "pin", "type": "string"}, {"key": "digits", "type": "integer"}]
    file.write_text(json.dumps({"id": "calculator", "configurableProperties": properties}))
    assert (await mcpctl("install", str(file), "--set", "pin=0042", "--set", "digits=3")).code == 0
    assert mcpd.calls[0][2]["config"] == {"pin": "0042", "digits": 3}
    wrong = await mcpctl("install", str(file), "--set", "digits=many")
    assert (wrong.code, wrong.err) == (1, "mcpctl: digits is an integer, not 'many'; for example: digits=3\n")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["pypi:a;rm -rf ~"], "is not a package"),
        (["pypi:--index-url=http://x"], "is not a package"),
        (["npm:../../x"], "is not a package"),
        (["git+https://example.com/a.git", "--arg=-x"], "--command"),
        (["git+--upload-pack=x"], "is not a repository"),
        (["./no/such/dir"], "no such file or directory"),
        (["calculator", "--id", "other"], "omit --id"),
        (["calculator", "--permission", "network"], "omit --id"),
        (["calculator", "--secret", "API_KEY"], "--secret"),
        (["calculator", "--env", "A=b"], "--env"),
        (["calculator", "--set", "novalue"], "KEY=VALUE"),
        (["npm:srv", "--env", "novalue"], "KEY=VALUE"),
        (["npm:srv", "--env", "A-B=c"], "is not a valid name of an environment variable"),
        (["npm:srv", "--secret", "API KEY"], "is not a valid name of an environment variable"),
        (["npm:srv", "--permission", "the internet"], "filesystem:ro:PATH"),
        (["npm:srv", "--permission", "filesystem:/home"], "filesystem:ro:PATH"),
        (["https://example.com/a.git"], "git+https://example.com/a.git"),
        (["file:///srv/server"], "use the path of the directory, '/srv/server'"),
        (["mcp-server-time==1"], "for a package from PyPI, use pypi:mcp-server-time==1"),
        (["pip:mcp-server-time"], "'pip:mcp-server-time' is not an id; for a package, use "),
        (["git+file:///nope/nope"], "'/nope/nope' is not a directory with a git repository"),
    ],
)
async def test_targets_nobody_can_read(mcpctl: Mcpctl, mcpd: FakeMcpd, argv: list[str], text: str) -> None:
    ended = await mcpctl("install", *argv)
    assert ended.code == 2
    assert text in ended.err
    assert mcpd.calls == []


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"a": ' * 100_000, "\x00"])
async def test_a_broken_manifest_file_is_named(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    ended = await mcpctl("install", str(tmp_path))
    assert ended.code == 1
    assert f"mcpctl: {tmp_path}/manifest.json: " in ended.err
