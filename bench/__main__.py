# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measure on private machines; of all parts, write ``bench/results.md``.

``python -m bench bridge installing`` measures these parts only, and prints.
"""

from __future__ import annotations

import argparse
import sys

from bench import bridge, catalog, daemon, ensembles, installing, orchestration, scripts, system, workstation
from bench.figures import Report, commit

PARTS = {
    "daemon": daemon.measure,
    "bridge": bridge.measure,
    "catalog": catalog.measure,
    "scripts": scripts.measure,
    "orchestration": orchestration.measure,
    "workstation": workstation.measure,
    "ensembles": ensembles.measure,
    "installing": installing.measure,
    "system": system.measure,
}


def main() -> int:
    """Measure; 0 if every figure is within its limit."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure mcpd beside what it is compared with.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    wanted = parser.parse_args().parts
    for name in wanted:
        if name not in PARTS:
            parser.error(f"unknown part {name!r}; choose from {', '.join(PARTS)}")
    report = Report(commit())
    for name in wanted or PARTS:
        with report.part(name):
            PARTS[name](report)
    if not wanted:
        report.write()
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
