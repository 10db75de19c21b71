# SPDX-License-Identifier: LGPL-2.1-or-later
"""Installing a server, side by side with uvx and npx, which do not pin, confine or check it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from bench.mirror import Mirror
from tests.rig import BIN, Rig

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.figures import Report

ROUNDS: Final = 5
PYPI: Final = "mcp-server-time"
NPM: Final = "@modelcontextprotocol/server-everything"
HELLO: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}
WITHOUT_UV: Final = (
    "import mcpd.install.sources.pypi as p; p.find_uv = lambda: None; from mcpd.daemon import main; main()"
)


def measure(report: Report) -> None:
    """Install with empty caches, and with full ones."""
    with TemporaryDirectory() as directory, Mirror(Path(directory)) as mirror:
        cold, warm = _python(mirror)
        report.add("PyPI with uv, empty caches", _ratio(cold, "uv", "uvx"), 1.3, "× uvx", _how(cold))
        report.add("PyPI with pip, empty caches", median(cold["pip"]), 5, "s", _how(cold))
        report.add("PyPI with uv, the same packages again", _ratio(warm, "uv", "uvx"), 1.0, "× uvx", _how(warm))
        cold = _node(mirror)
        report.add("npm, empty caches", _ratio(cold, "npm", "npx"), 1.1, "× npx", _how(cold))


def _python(mirror: Mirror) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    cold: dict[str, list[float]] = {"uvx": [], "uv": [], "pip": []}
    warm: dict[str, list[float]] = {"uvx": [], "uv": []}
    with Rig() as uv, Rig() as pip:
        for rig, daemon in ((uv, [str(BIN / "mcpd")]), (pip, [sys.executable, "-c", WITHOUT_UV])):
            rig.environ |= mirror.environ
            rig.start(*daemon, "--user", ready=partial(_answering, rig))
        uvx = [str(BIN / "uvx"), PYPI]
        _answers(uvx, uv.environ)  # the mirror has everything from now on
        _install(pip, f"pypi:{PYPI}")
        for number in range(ROUNDS):
            for rig in (uv, pip):
                shutil.rmtree(rig.home / ".cache", ignore_errors=True)
            uncached = uv.environ | {"UV_CACHE_DIR": str(uv.home / f"uv-{number}")}
            cold["uvx"].append(_timed(_answers, uvx, uncached))
            cold["uv"].append(_timed(_install, uv, f"pypi:{PYPI}"))
            cold["pip"].append(_timed(_install, pip, f"pypi:{PYPI}"))
            # A tool environment of its own, of packages that are there.
            shutil.rmtree(Path(uncached["UV_CACHE_DIR"]) / "environments-v2", ignore_errors=True)
            warm["uvx"].append(_timed(_answers, uvx, uncached))
            warm["uv"].append(_timed(_install, uv, f"pypi:{PYPI}"))
    return cold, warm


def _node(mirror: Mirror) -> dict[str, list[float]]:
    cold: dict[str, list[float]] = {"npx": [], "npm": []}
    with Rig() as rig:
        rig.environ |= mirror.environ
        rig.start_daemon()
        npx = ["npx", "-y", NPM]
        _answers(npx, rig.environ)
        for number in range(ROUNDS):
            shutil.rmtree(rig.home / ".cache", ignore_errors=True)
            uncached = rig.environ | {"NPM_CONFIG_CACHE": str(rig.home / f"npm-{number}")}
            cold["npx"].append(_timed(_answers, npx, uncached))
            cold["npm"].append(_timed(_install, rig, f"npm:{NPM}"))
    return cold


def _answering(rig: Rig) -> bool:
    return rig.mcpctl("list").returncode == 0


def _timed(action: Callable[..., None], *args: object) -> float:
    begun = time.perf_counter()
    action(*args)
    return time.perf_counter() - begun


def _install(rig: Rig, target: str) -> None:
    done = rig.mcpctl("install", "--yes", "--reinstall", "--id", "org.bench.server", target)
    if done.returncode:
        raise RuntimeError(done.stderr)


def _answers(argv: list[str], environ: dict[str, str]) -> None:
    """Start a server and wait until it has answered ``initialize``."""
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=environ, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(HELLO).encode() + b"\n")
        process.stdin.flush()
        if not process.stdout.readline():
            raise RuntimeError(f"{argv} did not answer")
        process.kill()


def _ratio(times: dict[str, list[float]], ours: str, theirs: str) -> float:
    return median(times[ours]) / median(times[theirs])


def _how(times: dict[str, list[float]]) -> str:
    said = ", ".join(f"{name} {median(each):.2f} s" for name, each in times.items())
    return f"{ROUNDS} rounds side by side, from a mirror on the loopback: {said}"
