# SPDX-License-Identifier: LGPL-2.1-or-later
"""What systemd knows of units."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BOOTED: Final = Path("/run/systemd/system")
"""There while systemd manages the machine (sd_booted(3))."""
UNKNOWN: Final = frozenset({"", "[not set]", "[no data]", "18446744073709551615"})
"""What systemctl says for a figure that the kernel does not keep."""
_TIMEOUT: Final = 20.0


def show(units: Sequence[str], properties: Iterable[str], *, system: bool) -> list[dict[str, str]]:
    """The *properties* of each of the *units*, in their order, as systemctl writes them.

    Empty where no service manager answers. A property that this systemd does not know is absent.
    """
    argv = ["systemctl", "--system" if system else "--user", "show", f"--property={','.join(properties)}", "--", *units]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    blocks = done.stdout.strip("\n").split("\n\n") if units else []
    return [_read(block) for block in blocks]


def _read(block: str) -> dict[str, str]:
    """Return the properties of one unit; what has several lines, as Listen= of a socket, has its values in lines."""
    found: dict[str, str] = {}
    for line in block.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            found[key] = f"{found[key]}\n{value}" if key in found else value
    return found


def figures(sessions: Sequence[Mapping[str, object]], *, system: bool) -> list[dict[str, int | float]]:
    """For each session what its unit uses: ``memory`` (bytes), ``cpu`` (seconds) and ``tasks``, as far as known."""
    units = sorted({str(session["unit"]) for session in sessions if session.get("unit")})
    if not units:
        return [{} for _ in sessions]
    found = {
        block.get("Id", ""): _figures(block)
        for block in show(units, ["Id", "MemoryCurrent", "CPUUsageNSec", "TasksCurrent"], system=system)
    }
    return [found.get(str(session.get("unit") or ""), {}) for session in sessions]


def _figures(block: Mapping[str, str]) -> dict[str, int | float]:
    known = {key: int(value) for key, value in block.items() if key != "Id" and value not in UNKNOWN}
    result: dict[str, int | float] = {}
    if "MemoryCurrent" in known:
        result["memory"] = known["MemoryCurrent"]
    if "CPUUsageNSec" in known:
        result["cpu"] = round(known["CPUUsageNSec"] / 1e9, 3)
    if "TasksCurrent" in known:
        result["tasks"] = known["TasksCurrent"]
    return result
