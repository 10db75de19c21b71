# SPDX-License-Identifier: LGPL-2.1-or-later
"""A machine with the bundled server ``llm-orc``, a project for it, and a script server that its ensembles may call."""

from __future__ import annotations

import json
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.script_parts import HELLO, ScriptRig
from tests.servers.ensembles_harness import CONFIG, PAIR, REPOSITORY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVER = "llm-orc"
PROBE = """\
import json, os, pathlib, socket, sys

given = json.load(sys.stdin)
found = {}
for name, path in given["parameters"]["reads"].items():
    try:
        found[name] = pathlib.Path(path).read_text()
    except OSError as error:
        found[name] = type(error).__name__
for name, path in given["parameters"]["writes"].items():
    try:
        pathlib.Path(path).write_text("here I was")
        found[name] = "written"
    except OSError as error:
        found[name] = type(error).__name__
try:
    socket.create_connection(("127.0.0.1", given["parameters"]["port"]), 5).close()
    found["network"] = "reached"
except OSError as error:
    found["network"] = type(error).__name__
found["environment"] = sorted(os.environ)
found["secrets"] = [name for name, value in os.environ.items() if "sk-secret" in value]
print(json.dumps({"success": True, "data": found}))
"""


class EnsemblesRig(ScriptRig):
    """``~/src`` is its only project; ``~/other`` is somebody else's business."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.other = self.home / "src", self.home / "other"
        self.base = self.project / ".llm-orc"

    def boot(self) -> None:
        """Start mcpd and the bridge."""
        shutil.copytree(REPOSITORY / "data/share/servers" / SERVER, self.vendor / "servers" / SERVER)
        for directory in (self.base / "ensembles", self.base / "scripts", self.other):
            directory.mkdir(parents=True)
        (self.other / "secret").write_text("nobody's business\n")
        (self.base / "config.yaml").write_text(CONFIG)
        (self.base / "scripts/probe.py").write_text(PROBE)
        self.put_ensemble(PAIR)
        self.scripts.joinpath("hello.py").write_text(HELLO)
        super().boot()
        self.done("config", "set", SERVER, 'projects=["~/src"]')
        self.done("secret", "set", SERVER, "OPENAI_API_KEY", stdin="sk-secret")

    def put_ensemble(self, text: str) -> None:
        """Write an ensemble of the project, under the name that it has in *text*."""
        name = next(line for line in text.splitlines() if line.startswith("name:")).split()[1]
        (self.base / "ensembles" / f"{name}.yaml").write_text(text)

    def probe(self, port: int) -> None:
        """Have an ensemble whose script says what it can reach, *port* of this machine among it."""
        parameters = {
            "reads": {"own": str(self.base / "config.yaml"), "other": str(self.other / "secret")},
            "writes": {
                "project": str(self.project / "made"),
                "hook": str(self.project / ".git/hooks/made"),
                "elsewhere": str(self.other / "made"),
                "user": str(self.home / ".config/llm-orc/made"),
            },
            "port": port,
        }
        agent = {"name": "probe", "script": "scripts/probe.py", "parameters": parameters}
        self.put_ensemble(f"name: probe\nagents: {json.dumps([agent])}\n")

    @asynccontextmanager
    async def connect(self, way: str, mode: str, **options: Any) -> AsyncIterator[Client]:
        """The SDK's client: by ``mcpctl run`` if *way* is "stdio", through the bridge if it is "http"."""
        if way == "stdio":
            program, *words = self.command("run", SERVER)
            command = StdioServerParameters(command=program, args=words, env=self.environ)
            with self.log("mcpctl").open("a") as log:
                async with Client(stdio_client(command, errlog=log), mode=mode, **options) as client:
                    yield client
        else:
            headers = {"Authorization": f"Bearer {self.token}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
                Client(
                    streamable_http_client(f"{self.url}/mcp/{SERVER}", http_client=http), mode=mode, **options
                ) as client,
            ):
                yield client
