# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bridges that are measured: ours, and others that can be installed, each in a place of its own in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcpd" / "bench"
HERE: Final = Path(__file__).parent
TOKEN: Final = "bench-token"


@dataclass(frozen=True, slots=True)
class Peer:
    """A bridge. In *argv*, ``{port}`` and ``{server}`` are filled in, and ``{server...}`` with the command's words."""

    name: str
    argv: tuple[str, ...]
    path: str = "/mcp"
    headers: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def echo_server() -> str:
    """The server behind every bridge, built if need be: one that costs next to nothing."""
    program = CACHE / "echo_server"
    source = HERE / "echo_server.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
    return str(program)


def ours(*options: str) -> Peer:
    """mcpd-bridge with everything switched on."""
    token = CACHE / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN, encoding="ascii")
    argv = (
        *(sys.executable, "-m", "mcpd.bridge.main", "--listen", "127.0.0.1:{port}"),
        *("--token-file", str(token), "--server", "echo={server}", "--audit", str(CACHE / "calls.jsonl"), *options),
    )
    return Peer("mcpd-bridge", argv, "/mcp/echo", (f"Authorization: Bearer {TOKEN}",))


def others() -> list[Peer]:
    """Those that could be installed; what is missing is said and left out."""
    found = []
    for install in (_mcp_proxy, _supergateway, _contextforge):
        try:
            found.append(install())
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"not measured: {install.__name__.strip('_')}: {error}")
    return found


def _mcp_proxy() -> Peer:
    program = _from_pypi("mcp-proxy==0.13.0") / "mcp-proxy"
    options = ("--port", "{port}", "--host", "127.0.0.1", "--log-level", "ERROR", "--", "{server...}")
    return Peer("mcp-proxy (PyPI)", (str(program), *options))


def _contextforge() -> Peer:
    # Later ones need a newer Python.
    python = _from_pypi("mcp-contextforge-gateway==1.0.7") / "python"
    options = ("--stdio", "{server}", "--expose-streamable-http", "--host", "127.0.0.1", "--port", "{port}")
    argv = (str(python), "-m", "mcpgateway.translate", *options, "--logLevel", "error")
    secrets = {
        name: os.urandom(24).hex() for name in ("JWT_SECRET_KEY", "AUTH_ENCRYPTION_SECRET", "BASIC_AUTH_PASSWORD")
    }
    return Peer("ContextForge translate", argv, env=tuple(secrets.items()))


def _supergateway() -> Peer:
    place = CACHE / "supergateway-4.0.0"
    program = place / "node_modules" / ".bin" / "supergateway"
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise OSError("there is no node and npm")
    if not program.exists():
        argv = [
            npm,
            "install",
            "--prefix",
            str(place),
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "supergateway@4.0.0",
        ]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    options = ("--stdio", "{server}", "--outputTransport", "streamableHttp", "--stateful", "--port", "{port}")
    return Peer("supergateway", (node, str(program), *options, "--logLevel", "none"))


def _from_pypi(requirement: str) -> Path:
    place = CACHE / requirement.replace("==", "-")
    if not (place / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([str(place / "bin" / "pip"), "install", "--quiet", "--quiet", requirement], check=True)
        (place / "done").touch()
    return place / "bin"
