# SPDX-License-Identifier: LGPL-2.1-or-later
"""From what a failed command wrote to the few lines that say what went wrong."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

MAX_LINES: Final = 4
MAX_LINE: Final = 300
"""Characters."""

_NPM: Final = re.compile(r"npm err(?:or|!) ?(.*)", re.IGNORECASE)
_NPM_NOISE: Final = re.compile(
    # its log, its stack, the fields of its error object, general advice, and words without a text after them
    r"A complete log|\s+at |\s+\w+: |[{}\s]*$|If you are behind a proxy|\w+$|(code|errno|syscall|path|dest) "
    r"|command (?!/bin/false )|(notarget|404)\s+(In most cases|a package version that|Note that|tarball,|\*)"
)
_FAULT: Final = re.compile(r"(error|fatal|cause)\b|[\w.]*(Error|Exception)\b|.*: (fatal )?error: ", re.IGNORECASE)
_WRAPPER: Final = re.compile(r"error: (subprocess-exited-with-error|metadata-generation-failed)|ERROR: Failed ")
_NOISE: Final = re.compile(r"note: |hint: |\[notice\]|\[end of output\]|╰─>|× |│ |[\s^~]*$")

_ABSENT: Final = (
    re.compile(r"Because (?P<name>\S+) was not found in the package registry"),
    re.compile(
        r"npm err(?:or|!) 404\s+(?:The requested resource )?"
        r"'(?P<name>@?[^'@]+)@[^']*' (?:is not in|could not be found)",
        re.IGNORECASE,
    ),
)
"""The words of uv and npm for a package that no registry has."""
_NO_WHEEL: Final = re.compile(r"requirement (?P<name>[\w.-]+)\S* \(from versions: none\)")
"""The words of pip for that, for a package without a suitable wheel, and for a registry that cannot be reached."""
_UNREACHED: Final = re.compile(r"WARNING: (?:Retrying|Could not fetch) ")


def absence(stderr: str) -> str:
    """Return a sentence that names the package which no registry has, according to *stderr*; empty if there is none."""
    for pattern in _ABSENT:
        if found := pattern.search(stderr):
            return f"there is no package {found['name']} in the configured registries"
    found = _NO_WHEEL.search(stderr)
    if found is None or _UNREACHED.search(stderr):
        return ""
    return f"there is no package {found['name']} in the configured registries, or it has no wheel for this system"


def condense(stderr: str, root: Path, *, last: bool) -> str:
    """At most :data:`MAX_LINES` lines of *stderr*, without the paths below *root*, the build directory.

    *last*: of many, the last ones, where a build tool says why it gave up; else the first. Credentials are the
    caller's to take out.
    """
    text = re.sub(re.escape(str(root)) + r"(?:/\.mcpd-build)?(/|\b)", lambda end: "" if end[1] else ".", stderr)
    lines = [line for line in text.splitlines() if not _NOISE.match(line.strip())]
    npm = [match[1] for line in lines if (match := _NPM.match(line))]
    if npm:
        codes = [line for line in npm if line.startswith("code ")]
        found = [line for line in npm if not _NPM_NOISE.match(line)] or codes
        last = False
    else:
        stripped = [line.strip() for line in lines]
        faults = [line for line in stripped if _FAULT.match(line)]
        found = [line for line in faults if not _WRAPPER.match(line)] or faults
        if not found:
            found, last = stripped, True
    chosen = found[-MAX_LINES:] if last else found[:MAX_LINES]
    return "\n".join(line.strip()[:MAX_LINE] for line in chosen)
