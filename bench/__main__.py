# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run every measurement on a private machine and write ``bench/results.md``.

``python -m bench bridge`` compares the bridge only; ``catalogue``, ``scripts``, ``orchestration``, ``workstation``,
``ensembles`` and ``installing`` measure those only. None of them writes.
"""

from __future__ import annotations

import asyncio
import os
import sys

from bench import bridge, catalogue, daemon, ensembles, installing, orchestration, scripts, system, workstation
from bench.figures import Report
from bench.load import compare
from bench.servers import put_many
from tests.rig import Rig
from tests.system.machine import unable


def main() -> int:
    """Measure; 0 if every figure is within its limit."""
    report = Report()
    if sys.argv[1:] == ["bridge"]:
        compare.measure(report)
        return report.exit_code
    parts = {
        "catalogue": catalogue,
        "scripts": scripts,
        "orchestration": orchestration,
        "workstation": workstation,
        "ensembles": ensembles,
        "installing": installing,
    }
    for name, part in parts.items():
        if sys.argv[1:] == [name]:
            part.measure(report)
            return report.exit_code
    with Rig() as rig:
        os.environ.update(rig.environ)
        daemon.starts(rig, report)
        put_many(rig.installed, 1000)
        pid = rig.start_daemon().pid
        asyncio.run(daemon.calls(report))
        asyncio.run(daemon.wrong_fds(pid, report))
        asyncio.run(daemon.spawns(pid, report))
        rig.start_bridge()
        asyncio.run(bridge.same_ids(rig, report))
    for part in parts.values():
        part.measure(report)
    compare.measure(report)
    if why := unable():
        print(f"The service on a booted machine is not measured: {why}")
    else:
        system.measure(report)
    report.write()
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
