# SPDX-License-Identifier: LGPL-2.1-or-later
"""The packages on a booted Debian: how long a confined server takes to start, and how exposed the units are."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from tests.system.image import base, furnish, packages_under_test
from tests.system.machine import Machine, Overlay, unable

if TYPE_CHECKING:
    from bench.figures import Report

SPAWNS = 50
EXPOSURE = {"mcpd.service": 1.5, "mcpd-bridge.service": 1.5, "mcpd-spawn@.service": 3.1}
"""What ``systemd-analyze security`` may say at most."""


def measure(report: Report) -> None:
    """Boot, install a server, and measure; without root or systemd-nspawn, say that it cannot be."""
    if why := unable():
        print(f"not measured: {why}")
        return
    packages = packages_under_test()
    with base(packages) as debian, Overlay([debian]) as overlay:
        furnish(overlay.root, packages)
        machine = Machine(overlay)
        try:
            machine.boot()
            machine.mcpctl("install", "git+file:///srv/git/echo", "--id", "echo", "--yes", timeout=120)
            _spawns(machine, report)
            _units(machine, report)
        finally:
            machine.shut()


def _spawns(machine: Machine, report: Report) -> None:
    machine.write("/root/inside.py", Path(__file__).with_name("inside.py").read_text())
    taken = json.loads(machine.run("/usr/bin/python3", "/root/inside.py", "echo", str(SPAWNS), timeout=180).stdout)
    whole, alone = (statistics.median(taken[name]) * 1000 for name in ("whole", "alone"))
    report.add(
        "first reply of a confined server",
        whole,
        120,
        "ms",
        f"booted Debian 13; D-Bus `Spawn` to the answer to `initialize` of a Python server, {SPAWNS} times",
    )
    report.add("of which mcpd", whole - alone, 10, "ms", "less the same launch line straight at the spawn socket")
    report.add("mcpd's own time in it", taken["processor"] * 1000, 10, "ms", "its CPU time")


def _units(machine: Machine, report: Report) -> None:
    for unit, limit in EXPOSURE.items():
        said = machine.run("systemd-analyze", "security", "--no-pager", unit).stdout
        level = re.search(r"Overall exposure level for .*: ([0-9.]+)", said)
        assert level, said
        report.add(f"exposure of {unit}", float(level[1]), limit, "", "`systemd-analyze security`")
