# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an installation comes to is shown before anything is asked, and alone with --dry-run; updates one by one."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import codec
from mcpd.cli.plan_output import plan_lines
from mcpd.errors import AlreadyInstalled
from tests.cli.fake import NETWORK, need

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Ended, Mcpctl
    from tests.cli.fake import FakeMcpd, Job

UNVERIFIED = need("unverified", "npm some-server", label="no trusted key vouches for it")
PLAN: list[dict[str, Any]] = [
    {"kind": "source", "key": "some-server", "label": "npm", "version": "1.0"},
    {"kind": "size", "key": "3250586"},
    {
        "kind": "package",
        "key": "some-server",
        "label": "some-server-1.0.tgz",
        "version": "1.0",
        "integrity": "sha512-AA",
    },
    {"kind": "package", "key": "zod\x1b[2J", "version": "3.2", "integrity": "sha512-BB"},
    {"kind": "command", "key": "npx some-server", "label": "stdio"},
    {"kind": "command", "key": "https://example.com/mcp", "label": "sse"},
    {"kind": "permission", "key": "network"},
    {"kind": "permission", "key": "filesystem:ro:/srv"},
    {"kind": "run-as", "key": "system"},
    {"kind": "setting", "key": "API_KEY", "label": "Key of the API"},
    {"kind": "setting", "key": "region"},
    {"kind": "verified", "key": "example"},
]
EACH = [
    "  packages     some-server  1.0  sha512-AA",
    "               zod\ufffd[2J  3.2  sha512-BB",
]
SHOWN = [
    "  from         npm  some-server  1.0",
    "  size         3.1 MiB",
    "  packages     2  (--verbose lists them with their hashes)",
    "  starts       npx some-server",
    "               https://example.com/mcp  (sse)",
    "  permissions  network  (may use the network)",
    "               filesystem:ro:/srv  (may read /srv)",
    "  network      yes",
    "  runs as      system",
    "  to be set    API_KEY  (Key of the API)",
    "               region",
    "  verified by  the key example",
]


def test_a_plan_says_everything() -> None:
    assert plan_lines(PLAN) == SHOWN
    assert plan_lines(PLAN, verbose=True) == [*SHOWN[:2], *EACH, *SHOWN[3:]]


@pytest.mark.parametrize("command", ["install", "update"])
async def test_a_plan_is_a_screenful_unless_all_packages_are_asked_for(
    mcpctl: Mcpctl, mcpd: FakeMcpd, command: str
) -> None:
    packages = [{"kind": "package", "key": f"p{at}", "integrity": f"sha256:{at}"} for at in range(45)]

    def planned(job: Job) -> None:
        job.enter("planning", plan=[*PLAN, *packages])
        job.end("cancelled", "org.mcpd.Mcp1.Error.Cancelled", "only the plan was requested")

    mcpd.on_job = planned
    lines = (await mcpctl(command, "calculator")).err.splitlines()
    assert len(lines) < 24
    assert "  packages     47  (--verbose lists them with their hashes)" in lines
    lines = (await mcpctl(command, "calculator", "--verbose")).err.splitlines()
    at = lines.index(EACH[-1]) + 1
    assert [line.split() for line in lines[at : at + 45]] == [[item["key"], item["integrity"]] for item in packages]
    if command == "install":
        assert len((await mcpctl("install", "calculator", "--dry-run")).out.splitlines()) < 24
        verbose = (await mcpctl("install", "calculator", "--dry-run", "-v")).out.splitlines()
        assert [item["key"] for item in packages] == [line.split()[0] for line in verbose[5:50]]
        as_json = json.loads((await mcpctl("install", "calculator", "--dry-run", "--json")).out)
        assert as_json["plan"] == [*PLAN, *packages]


@pytest.mark.parametrize("verbose", [False, True])
async def test_verbose_says_how_long_each_step_took(mcpctl: Mcpctl, mcpd: FakeMcpd, *, verbose: bool) -> None:
    def done(job: Job) -> None:
        job.enter("building", durations={"planning": 0.25, "fetching": 1.75})
        job.enter("activating", durations={"planning": 0.25, "fetching": 1.75, "building": 2.0})
        job.end()

    mcpd.on_job = done
    lines = (await mcpctl("install", "calculator", *(["--verbose"] if verbose else []))).err.splitlines()
    assert ("took 0.2 s planning, 1.8 s fetching, 2.0 s building" in lines) is verbose


async def test_a_plan_names_the_file_that_was_given(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    bundle = tmp_path / "weather.mcpb"
    bundle.write_bytes(b"PK")
    copy = {"label": "b8d293.mcpb", "version": "1.0", "integrity": "sha256:ab"}
    plan = [
        {"kind": "source", "key": "", "label": "mcpb", "version": "1.0", "integrity": "sha256:ab"},
        {"kind": "package", "key": "b8d293.mcpb", **copy},
        {"kind": "package", "key": "anyio", "version": "4.0", "integrity": "sha256:cd"},
    ]

    def planned(job: Job) -> None:
        job.enter("planning", plan=plan)
        job.end("cancelled", "org.mcpd.Mcp1.Error.Cancelled", "only the plan was requested")

    mcpd.on_job = planned
    lines = (await mcpctl("install", str(bundle), "--dry-run", "--verbose")).out.splitlines()
    assert [" ".join(line.split()) for line in lines[1:4]] == [
        "from mcpb weather.mcpb 1.0 sha256:ab", "packages weather.mcpb 1.0 sha256:ab", "anyio 4.0 sha256:cd",
    ]  # fmt: skip
    assert "from         mcpb  weather.mcpb" in (await mcpctl("install", str(bundle))).err
    items = json.loads((await mcpctl("install", str(bundle), "--dry-run", "--json")).out)["plan"]
    assert [item["key"] for item in items] == ["weather.mcpb", "weather.mcpb", "anyio"]
    assert "b8d293" not in json.dumps(items)


@pytest.mark.parametrize(
    ("permissions", "network"), [([], "no"), (["devices"], "no"), (["network?online"], "while online is true")]
)
def test_a_plan_says_whether_the_network_is_used(permissions: list[str], network: str) -> None:
    lines = plan_lines([{"kind": "permission", "key": permission} for permission in permissions])
    assert f"  network      {network}" in lines
    assert "  verified by  nobody: no trusted key signed it" in lines
    assert ("  permissions  none beyond the sandbox" in lines) == (not permissions)


@pytest.mark.parametrize(
    ("key", "label", "line"),
    [
        ("network", "network", "network  (may use the network)"),
        (
            "filesystem:ro:{config.directories}", "filesystem:ro:/a, filesystem:ro:/b",
            "filesystem:ro:/a  (may read /a); filesystem:ro:/b  (may read /b)  (from property directories)",
        ),
        (
            "filesystem:ro:{config.a}/{config.b}", "filesystem:ro:/x/y",
            "filesystem:ro:/x/y  (may read /x/y)  (from property a, b)",
        ),
        ("filesystem:ro:{config.a}", "filesystem:ro:{config.a}", "filesystem:ro:{config.a}  (may read {config.a})"),
    ],
)  # fmt: skip
async def test_a_permission_is_shown_with_the_values_that_it_has(
    mcpctl: Mcpctl, mcpd: FakeMcpd, key: str, label: str, line: str
) -> None:
    item = {"kind": "permission", "key": key, "label": label}
    assert f"  permissions  {line}" in plan_lines([item])
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[NETWORK | item])
    assert f"  {line}\n" in (await mcpctl("install", "calculator")).err


async def test_variables_are_shown(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    item = {"kind": "variable", "key": "LD_PRELOAD=/x.so"}
    assert plan_lines([item])[0] == "  sets         LD_PRELOAD=/x.so"
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[NETWORK | item])
    assert "  sets LD_PRELOAD=/x.so, which decides what code runs\n" in (await mcpctl("install", "calculator")).err


async def test_a_dry_run_says_that_a_program_may_have_to_be_named(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    def only_planned(job: Job) -> None:
        job.enter("planning", plan=[{"kind": "source", "key": "x.tar.gz"}])
        job.end("cancelled", "org.mcpd.Mcp1.Error.Cancelled", "only the plan was requested")

    mcpd.on_job = only_planned
    assert "use --command if that fails.\n" in (await mcpctl("install", "npm:x", "--dry-run")).err
    assert "--command" not in (await mcpctl("install", "x", "--dry-run")).err


async def test_the_plan_stands_before_the_question(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-consent", plan=PLAN, needs=[NETWORK, UNVERIFIED])
    ended = await mcpctl("install", "calculator")
    lines = ended.err.splitlines()
    at = lines.index("calculator:")
    assert lines[at + 1 : at + 1 + len(SHOWN)] == SHOWN
    asked = lines.index("calculator asks for your consent:")
    assert at < asked
    assert lines[asked + 1 : asked + 3] == [
        "  network  (may use the network)", "  npm some-server  (no trusted key vouches for it)",
    ]  # fmt: skip
    assert (ended.code, ended.err.count("verified by")) == (3, 1)


async def test_what_was_shown_before_a_value_was_asked_for_is_not_shown_again(
    mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("s3cret")
    key = need("config", "API_KEY", label="Key of the API", sensitive=True)
    early = [item for item in PLAN if item["kind"] != "package"]
    later = [item for item in PLAN if item["kind"] != "setting"]
    mcpd.on_job = lambda job: job.enter("needs-config", plan=early, needs=[key])
    process = await mcpctl.start("install", "calculator", "--yes", "--secret-file", f"API_KEY={tmp_path}/key")
    await asyncio.wait_for(mcpd.job_started.wait(), 30)
    (job,) = mcpd.jobs
    await job.wait_call()
    job.enter("fetching", plan=later)
    job.end()
    _, err = await process.communicate()
    shown = [line for line in err.decode().splitlines() if line.startswith("  ")]
    assert shown == [*SHOWN[:2], *SHOWN[3:], SHOWN[2]]


async def test_a_dry_run_ends_once_the_plan_is_known(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    def only_planned(job: Job) -> None:
        job.enter("planning", plan=PLAN)
        job.end("cancelled", "org.mcpd.Mcp1.Error.Cancelled", "only the plan was requested")

    mcpd.on_job = only_planned
    ended = await mcpctl("install", "calculator", "--dry-run", "--yes")
    assert (ended.code, ended.out.splitlines()) == (0, ["calculator:", *SHOWN])
    assert ended.err.endswith("Nothing was installed.\n")
    assert "cancelled" not in ended.err
    (call,) = [call for call in mcpd.calls if call[0] == "Install"]
    assert (call[2]["dry-run"], call[2]["consent"]) == (True, False)
    as_json = await mcpctl("install", "calculator", "--dry-run", "--json")
    assert json.loads(as_json.out) == {"id": "calculator", "plan": PLAN}


async def test_a_dry_run_of_what_fails_fails(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.end("failed", "org.mcpd.Mcp1.Error.SourceUnavailable", "npm does not answer")
    ended = await mcpctl("install", "calculator", "--dry-run")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith("mcpctl: npm does not answer\n")
    mcpd.errors["Install"] = AlreadyInstalled("calculator is installed")
    assert (await mcpctl("install", "calculator", "--dry-run")).err == "mcpctl: calculator is installed\n"


async def test_install_as_json_is_the_server(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("install", "calculator", "--json", "--source", "https://r.example/r.json")
    assert json.loads(ended.out) == mcpd.servers["calculator"]
    assert mcpd.calls[0][2]["source"] == "https://r.example/r.json"


async def test_a_server_of_the_catalog_is_installed_in_the_version_that_is_named(
    mcpctl: Mcpctl, mcpd: FakeMcpd
) -> None:
    assert (await mcpctl("install", "calculator", "--version", "1.0")).code == 0
    assert mcpd.calls[-2][:2] == ("Install", "calculator")
    assert mcpd.calls[-2][2]["version"] == "1.0"
    refused = await mcpctl("install", "pypi:calculator", "--version", "1.0")
    assert (refused.code, "omit --version" in refused.err) == (2, True)


@pytest.fixture
def updatable(mcpd: FakeMcpd) -> FakeMcpd:
    """An mcpd with three servers that have an update, of which one has new tools."""
    for server_id in ("a", "b", "c"):
        mcpd.servers[server_id] = mcpd.servers["calculator"] | {
            "id": server_id, "state": "updatable", "available-version": "2.0"
        }  # fmt: skip

    def work(job: Job) -> None:
        if job.properties["ServerId"] == "b":
            mcpd.servers["b"]["pending-version"] = "2.0"
            job.end("failed", "org.mcpd.Mcp1.Error.NeedsApproval", "b: its tools change; see 'mcpctl approve b'")
        else:
            job.end()

    mcpd.on_job = work
    return mcpd


async def test_an_update_that_waits_or_fails_stops_no_other(mcpctl: Mcpctl, updatable: FakeMcpd) -> None:
    ended = await mcpctl("update")
    assert (ended.code, ended.out) == (1, "Updated a from 1.0 to 2.0.\nUpdated c from 1.0 to 2.0.\n")
    assert ended.err.endswith("mcpctl: b: its tools change; see 'mcpctl approve b'\n")
    assert ended.err.count("mcpctl approve b") == 1
    assert [call[1] for call in updatable.calls if call[0] == "Update"] == [["a"], ["b"], ["c"]]
    as_json = await mcpctl("update", "a", "b", "--json")
    assert [server["id"] for server in json.loads(as_json.out)["updates"]] == ["a"]
    assert as_json.code == 1


async def test_an_update_as_json_tells_the_state_of_each_server(mcpctl: Mcpctl, updatable: FakeMcpd) -> None:
    origin = "https://r.example/r.json"
    own = updatable.servers["calculator"]
    updatable.servers |= {"broken": updatable.servers["c"] | {"id": "broken"}}
    updatable.servers |= {
        "pinned": own | {"id": "pinned", "pinned": True}, "still": own | {"id": "still", "pinned": True},
        "held": own | {"id": "held", "pending-version": "3.0"}, "dead": own | {"id": "dead", "state": "broken"},
    }  # fmt: skip
    updatable.sources = [{"url": origin, "state": "ready"}]
    updatable.generations = [{"generation": codec.Variant("u", 1), "state": "active", "registry": origin}]
    updatable.pages = [[{"id": "pinned", "version": "1.0", "available-version": "2.0", "origin": origin}]]
    work = updatable.on_job

    def told(ended: Ended) -> dict[str, str]:
        return {server["id"]: server["state"] for server in json.loads(ended.out)["servers"]}

    def fail(job: Job) -> None:
        if job.properties["ServerId"] == "broken":
            job.end("failed", "org.mcpd.Mcp1.Error.Unhealthy", "broken does not answer")
        else:
            work(job)

    updatable.on_job = fail
    checked = await mcpctl("update", "--check", "--json")
    states = {"a": "available", "b": "available", "c": "available", "broken": "available"}
    assert (checked.code, told(checked)) == (0, states | {"pinned": "pinned", "held": "held"})
    done = await mcpctl("update", "--json")
    states = {"a": "updated", "b": "held", "c": "updated", "broken": "failed", "pinned": "pinned", "held": "held"}
    assert (done.code, told(done)) == (1, states)
    servers = {server["id"]: server for server in json.loads(done.out)["servers"]}
    assert servers["broken"]["problem"] == "broken does not answer"
    assert [servers[server_id]["pending-version"] for server_id in ("a", "b", "held")] == ["", "2.0", "3.0"]
    assert servers["a"] == {
        "id": "a", "version": "1.0", "available-version": "2.0", "pending-version": "",
        "state": "updated", "problem": "",
    }  # fmt: skip
    named = await mcpctl("update", "still", "calculator", "held", "dead", "--check", "--json")
    states = {"calculator": "up-to-date", "still": "pinned", "held": "held", "dead": "broken"}
    assert (named.code, told(named)) == (0, states)


async def test_an_update_of_an_unknown_server_updates_no_other(mcpctl: Mcpctl, updatable: FakeMcpd) -> None:
    assert (await mcpctl("update", "a", "nope")).code == 4
    assert updatable.jobs == []


async def test_each_updated_server_is_asked_about(mcpctl: Mcpctl, updatable: FakeMcpd) -> None:
    updatable.on_job = lambda job: job.enter("needs-consent", plan=PLAN, needs=[NETWORK])
    process = await mcpctl.start("update", "a", "c", "--yes")
    async with asyncio.timeout(120):
        for at in range(2):
            while len(updatable.jobs) <= at:
                await updatable.job_started.wait()
                updatable.job_started.clear()
            assert [call[0] for call in await updatable.jobs[at].wait_call()] == ["Proceed"]
            updatable.jobs[at].end()
    _, err = await process.communicate()
    assert process.returncode == 0
    assert [line for line in err.decode().splitlines() if line in {"a:", "c:"}] == ["a:", "c:"]
