# SPDX-License-Identifier: LGPL-2.1-or-later
"""Properties and resource usage of systemd units."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BOOTED: Final = Path("/run/systemd/system")
"""The directory that exists if systemd is the init system (sd_booted(3))."""
UNKNOWN: Final = frozenset({"", "[not set]", "[no data]", "18446744073709551615"})
"""Values that systemctl prints for a figure that is not accounted."""
_TIMEOUT: Final = 20.0


def show(units: Sequence[str], properties: Iterable[str], *, system: bool) -> list[dict[str, str]]:
    """Return the *properties* of each of *units*, in their order, as printed by ``systemctl show``.

    Empty if no service manager answers. Properties that this systemd does not know are missing.
    """
    argv = ["systemctl", "--system" if system else "--user", "show", f"--property={','.join(properties)}", "--", *units]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    blocks = done.stdout.strip("\n").split("\n\n") if units else []
    return [_read(block) for block in blocks]


def _read(block: str) -> dict[str, str]:
    """Parse the properties of one unit; repeated properties, such as ``Listen``, are joined with line breaks."""
    found: dict[str, str] = {}
    for line in block.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            found[key] = f"{found[key]}\n{value}" if key in found else value
    return found


def figures(sessions: Sequence[Mapping[str, object]], *, system: bool) -> list[dict[str, int | float]]:
    """Return the usage of each session's unit: ``memory`` (bytes), ``cpu`` (seconds) and ``tasks``, as far as known."""
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
