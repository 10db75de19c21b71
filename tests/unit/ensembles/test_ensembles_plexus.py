# SPDX-License-Identifier: LGPL-2.1-or-later
"""The client of Plexus: what its server is told, and that whatever that does is an answer or a fault."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import mcp
import pytest

from mcpd.errors import InvalidConfig, LimitExceeded, McpdError, NotFound, NotSupported, TimedOut
from mcpd.servers.commands import system
from mcpd.servers.ensembles.plexus_client import SECONDS, PlexusClient
from tests.unit.ensembles.confined_parts import Den, without_landlock

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

SDK = str(Path(mcp.__file__).parents[1])

FAKE = """
import sys
sys.path.insert(0, "packages")
import anyio, json, os, signal
from mcp.server import Server
from mcp.server.stdio import stdio_server
import mcp_types as types

async def list_tools(ctx, params):
    return types.ListToolsResult(tools=[types.Tool(name="analyze_ensemble", input_schema={"type": "object"})])

async def call_tool(ctx, params):
    with open("asked.jsonl", "a") as file:
        file.write(json.dumps([params.name, params.arguments, dict(os.environ)]) + "\\n")
    answer = sys.argv[1]
    if answer == "crash":
        sys.stderr.write("out of edges\\n")
        sys.stderr.flush()
        os._exit(7)
    if answer == "hang":
        await anyio.sleep_forever()
    if answer == "structured":
        return types.CallToolResult(content=[], structured_content={"reinforced": 3})
    return types.CallToolResult(content=[types.TextContent(type="text", text=answer)], is_error=answer == "no graph")

async def main():
    if sys.argv[1] == "greets":
        print("welcome to plexus", flush=True)
    server = Server("plexus", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
    open("ended", "w").close()

anyio.run(main)
"""


@pytest.fixture
def den(tmp_path: Path) -> Iterator[Den]:
    with Den(tmp_path) as made:
        yield made


def client(den: Den, command: str, seconds: float = 60) -> PlexusClient:
    return PlexusClient(command, den.origin(), den.agents.confinement, seconds=seconds)


def fake(den: Den, answer: str, seconds: float = 60) -> PlexusClient:
    """A client of a server made with the SDK that answers so."""
    (den.project / "plexus.py").write_text(FAKE.replace('"packages"', repr(SDK)))
    return client(den, shlex.join(["python3", "plexus.py", answer]), seconds)


def written(den: Den, text: str, seconds: float = 60) -> PlexusClient:
    """A client of a server that is the shell script *text*."""
    (den.project / "plexus.sh").write_text(text)
    return client(den, "sh plexus.sh", seconds)


async def told(plexus: PlexusClient) -> dict[str, object]:
    return await plexus.analyze_ensemble("my-project", {"name": "e"}, {"status": "completed"})


@pytest.fixture
def _sdk(den: Den, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs of the project read the SDK of these tests, and the Python that it is for."""
    real = Path(sys.executable).resolve()
    monkeypatch.setattr(system, "READABLE", (*system.READABLE, sys.prefix, str(real.parents[1])))
    monkeypatch.setattr(system, "PROGRAMS", f"{Path(sys.executable).parent}:{system.PROGRAMS}")


@pytest.mark.usefixtures("_sdk")
async def test_the_server_is_told_once_with_the_three_arguments(den: Den, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "s3cret")
    assert await told(fake(den, "structured")) == {"reinforced": 3}
    (line,) = (den.project / "asked.jsonl").read_text().splitlines()
    name, arguments, environ = json.loads(line)
    assert name == "analyze_ensemble"
    assert arguments == {
        "context_id": "my-project", "ensemble_config": {"name": "e"}, "execution_metadata": {"status": "completed"},
    }  # fmt: skip
    assert "API_KEY" not in environ
    # It ended by itself, when its stdin did.
    assert (den.project / "ended").exists()
    assert not den.processes()


@pytest.mark.usefixtures("_sdk")
@pytest.mark.parametrize(
    ("answer", "found"), [('{"edges": 2}', {"edges": 2}), ("words", {"text": "words"}), ("greets", {"text": "greets"})]
)
async def test_a_text_is_an_answer(den: Den, answer: str, found: object) -> None:
    assert await told(fake(den, answer)) == found


@pytest.mark.usefixtures("_sdk")
async def test_a_server_that_fails_says_why(den: Den) -> None:
    with pytest.raises(McpdError, match=r"the Plexus server python3: tool analyze_ensemble: no graph"):
        await told(fake(den, "no graph"))
    with pytest.raises(McpdError, match=r"ended with status 7 before it answered: out of edges"):
        await told(fake(den, "crash"))
    assert not den.processes()


async def test_one_that_hangs_is_ended(den: Den) -> None:
    with pytest.raises(TimedOut, match=r"the Plexus server sh did not answer within 0\.5 s"):
        await told(written(den, "trap '' TERM; sleep 600 & sleep 600", 0.5))
    assert not den.processes()
    assert SECONDS == 10


async def test_a_cancelled_call_ends_it(den: Den) -> None:
    task = asyncio.create_task(told(written(den, "echo x >begun; sleep 600")))
    async with asyncio.timeout(120):
        while not (den.project / "begun").exists():
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not den.processes()


@pytest.mark.parametrize("line", ["x", '{"jsonrpc": "2.0", "method": "notifications/x"}\\n', "words\\n"])
async def test_one_that_floods_is_ended(den: Den, line: str) -> None:
    with pytest.raises(
        LimitExceeded, match=r"the Plexus server sh: it(s stdout is not JSON-RPC| wrote (a line of )?more than 4 MiB)"
    ):
        await told(written(den, f"yes \"$(printf '{line}')\" | " + ("tr -d '\\n'" if line == "x" else "cat")))
    assert not den.processes()


async def test_one_that_ends_at_once(den: Den) -> None:
    with pytest.raises(McpdError, match=r"ended with status 0 before it answered: no word"):
        await told(written(den, "exit 0"))
    with pytest.raises(McpdError, match=r"closed its stdout before it answered"):
        await told(written(den, "exec <&- >&-; sleep 600"))
    assert not den.processes()


async def test_one_that_answers_nonsense(den: Den) -> None:
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 7}})
    for each in (answer, answer.replace('"protocolVersion": 7', "")):
        with pytest.raises(McpdError, match="the Plexus server sh: "):
            await told(
                written(den, f"read line; for id in 1 2; do echo '{each}' | sed s/:\\ 1/:\\ $id/; done; sleep 600")
            )
    assert not den.processes()


async def test_a_command_that_is_none(den: Den) -> None:
    with pytest.raises(NotFound, match="no-such-plexus is not there"):
        await told(client(den, "no-such-plexus --stdio"))
    with pytest.raises(InvalidConfig, match=r"plexus\.server_command is empty"):
        await told(client(den, "  "))
    with pytest.raises(InvalidConfig, match="No closing quotation"):
        await told(client(den, "plexus 'x"))


async def test_it_touches_what_scripts_do(den: Den) -> None:
    (den.directory / "secret").write_text("s3cret")
    with pytest.raises(McpdError, match=r"status 1 .*ermission denied"):
        await told(written(den, f"cat {den.directory}/secret"))
    assert not (den.directory / "new").exists()


async def test_nothing_is_left_of_its_files(den: Den) -> None:
    with pytest.raises(McpdError):
        await told(written(den, "echo x >$TMPDIR/file"))
    assert [*(den.settings.state / "tmp").iterdir()] == []


LISTENER = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as error:
    sys.exit(type(error).__name__)
"""


@pytest.mark.skipif(os.uname().machine not in {"x86_64", "aarch64"}, reason="system calls are not known")
async def test_it_has_no_unix_sockets_either(den: Den) -> None:
    (den.project / "plexus.py").write_text(LISTENER)
    with Den(den.directory, script_network=True) as made, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(den.project / "s"))
        server.listen()
        with pytest.raises(McpdError, match=r"status 1 .*PermissionError"):
            await told(client(made, f"python3 plexus.py {den.project}/s"))


async def test_where_the_kernel_cannot_hold_it_it_does_not_run(den: Den, monkeypatch: pytest.MonkeyPatch) -> None:
    without_landlock(den.directory, monkeypatch)
    with pytest.raises(NotSupported, match="Landlock"):
        await told(written(den, "echo x >new"))
    assert not (den.project / "new").exists()
