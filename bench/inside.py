# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs as root on a booted machine: how long a confined server takes to its first reply, and mcpd's part in it.

``python3 inside.py ID COUNT`` prints JSON. It starts the server through mcpd and, as user mcpd, by the same launch line
straight at the spawn socket, in turn, so that both see the same machine. The difference is mcpd itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

from mcpd import paths as locations
from mcpd import settings as configuration
from mcpd.bus.client import connect
from mcpd.paths import Scope
from mcpd.runtime.launchers import launchers_for
from mcpd.runtime.sandbox import server_spec
from mcpd.store import Store

PAUSE = 0.15
"""Seconds in which what was started is cleared away."""
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}


def talk(stdin: int, stdout: int) -> None:
    """One ``initialize`` and its answer; the pipes are closed afterwards."""
    os.write(stdin, json.dumps(_INITIALIZE).encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        chunk = os.read(stdout, 65536)
        if not chunk:
            raise SystemExit("the server ended without an answer")
        answer += chunk
    os.close(stdin)
    os.close(stdout)


async def straight(server_id: str) -> None:
    """Start the server without mcpd once for each line on stdin, and print the seconds it took."""
    user = pwd.getpwnam("mcpd")
    os.initgroups("mcpd", user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    paths, settings = locations.from_environment(), configuration.Settings()
    store = Store(paths, Scope.SYSTEM, keep_generations=3)
    launcher = launchers_for(settings, Scope.SYSTEM, paths, None).servers
    spec = server_spec(
        store.get(server_id), store.launch_manifest(server_id), paths=paths, scope=Scope.SYSTEM, settings=settings
    )
    while await asyncio.to_thread(sys.stdin.readline):
        server_in, ours_in = os.pipe()
        ours_out, server_out = os.pipe()
        began = time.perf_counter()
        leash = await launcher.launch(spec, {0: server_in, 1: server_out})
        os.close(server_in)
        os.close(server_out)
        talk(ours_in, ours_out)
        print(time.perf_counter() - began, flush=True)
        await leash.wait()


def processor() -> float:
    """Seconds of processor time of mcpd so far."""
    pid = subprocess.check_output(["systemctl", "show", "-P", "MainPID", "mcpd.service"], text=True).strip()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(server_id: str, count: int) -> None:
    """Print what *count* starts of each kind took."""
    child = subprocess.Popen(
        [sys.executable, __file__, server_id, "straight"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin
    assert child.stdout
    alone: list[float] = []
    whole: list[float] = []
    async with connect(system=True) as client:
        for number in range(count + 1):
            child.stdin.write("\n")
            child.stdin.flush()
            alone.append(float(child.stdout.readline()))
            time.sleep(PAUSE)
            began = time.perf_counter()
            _, pipes = await client.spawn(server_id)
            talk(pipes[0], pipes[1])
            whole.append(time.perf_counter() - began)
            time.sleep(PAUSE)
            if number == 0:
                before = processor()
        used = (processor() - before) / count
    child.stdin.close()
    child.wait()
    print(json.dumps({"alone": alone[1:], "whole": whole[1:], "processor": used}))


if __name__ == "__main__":
    if sys.argv[2] == "straight":
        asyncio.run(straight(sys.argv[1]))
    else:
        asyncio.run(measure(sys.argv[1], int(sys.argv[2])))
