# SPDX-License-Identifier: LGPL-2.1-or-later
"""Error messages about commands that failed, from what they wrote to stderr."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import BuildFailed, IntegrityMismatch, McpdError, NoSpace, SourceUnavailable
from mcpd.model import strip_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MAX_LINES: Final = 4
MAX_LINE: Final = 300
"""Characters."""

_FAULT: Final = re.compile(r"(error|fatal|cause)\b|[\w.]*(Error|Exception)\b|.*: (fatal )?error: ", re.IGNORECASE)
_WRAPPER: Final = re.compile(r"error: (subprocess-exited-with-error|metadata-generation-failed)|ERROR: Failed ")
_NOISE: Final = re.compile(r"note: |hint: |\[notice\]|\[end of output\]|╰─>|× |│ |[\s^~]*$")
_FULL: Final = ("No space left on device", "ENOSPC", "Disk quota exceeded", "EDQUOT")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs during an installation, and how its messages are understood."""

    configured_by: str = ""
    """The package manager whose configuration names the registries that it uses."""
    mismatch: tuple[str, ...] = ()
    """Texts in the message about a file with a wrong hash."""
    absence: Callable[[str], str] = field(default=lambda _stderr: "")
    """A function of stderr: a sentence about the package that no registry has, or an empty string."""
    reasons: Callable[[Sequence[str]], list[str]] = field(default=lambda _lines: [])
    """A function of the lines of stderr: those with the reason, best first. If it finds none, general patterns do."""

    def refusal(self, doing: str, refused: Sequence[str]) -> str:
        """Return the message for a command that tried to connect to *refused* while *doing*."""
        places = ", ".join(place[:200] for place in list(dict.fromkeys(refused))[:3])
        return (
            f"{doing} failed: it, or a dependency, comes from {places}, but packages are installed from the configured"
            " registries only; if a registry keeps its files there, add that host to the configuration of"
            f" {self.configured_by}"
        )

    def explain(self, doing: str, root: Path, *, network: bool, code: int, stderr: str) -> McpdError:
        """Return the error for a command that failed with *code* while *doing*; *root* is the build directory."""
        said = self.absence(stderr) or self._condense(strip_credentials(stderr), root, last=not network)
        text = f"{doing} failed: {said or f'the command exited with status {code}'}"
        if any(mark in stderr for mark in _FULL):
            return NoSpace(f"{doing} failed: the disk is full. Free some space and try again.")
        if any(mark in stderr for mark in self.mismatch):
            return IntegrityMismatch(text)
        return SourceUnavailable(text) if network else BuildFailed(text)

    def _condense(self, stderr: str, root: Path, *, last: bool) -> str:
        """Return at most :data:`MAX_LINES` lines of *stderr*, without paths below *root*.

        *last* selects the last lines, where build tools give the reason; otherwise the first.
        """
        text = re.sub(re.escape(str(root)) + r"(?:/\.mcpd-build)?(/|\b)", lambda end: "" if end[1] else ".", stderr)
        lines = [line for line in text.splitlines() if not _NOISE.match(line.strip())]
        found = self.reasons(lines)
        if found:
            last = False
        else:
            stripped = [line.strip() for line in lines]
            faults = [line for line in stripped if _FAULT.match(line)]
            found = [line for line in faults if not _WRAPPER.match(line)] or faults
            if not found:
                found, last = stripped, True
        chosen = found[-MAX_LINES:] if last else found[:MAX_LINES]
        return "\n".join(line.strip()[:MAX_LINE] for line in chosen)


ANY: Final = Program()
"""A program without messages of its own."""


def no_package(name: str) -> str:
    """Return the sentence about the package *name* that no registry has."""
    return f"there is no package {name} in the configured package indexes"
