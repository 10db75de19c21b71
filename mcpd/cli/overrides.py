# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether the units of mcpd confine what they run as they were shipped to, whatever drop-ins say.

The unit file of the package says what is wanted, systemd what is in force. Only what is weaker counts: an
administrator may confine a unit further, or change limits and dependencies.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.cli.checks import Check
from mcpd.cli.units import show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

SYSTEM_UNITS: Final = ("mcpd.service", "mcpd-spawn@.service", "mcpd-build@.service", "mcpd-bridge.service")
USER_UNITS: Final = ("mcpd.service", "mcpd-bridge.service", "mcpd-bridge-lost.service")
VENDOR: Final = (Path("/usr/lib/systemd"), Path("/lib/systemd"), Path("/usr/local/lib/systemd"))
"""Where packages put units."""
_INSTANCE: Final = "doctor"
"""Instance of a template that is looked at, and never started."""
_SHOWN: Final = 60
"""Characters of a value."""
_NAMESPACES: Final = frozenset({"cgroup", "ipc", "net", "mnt", "pid", "user", "uts"})
_SWITCHES: Final = {"1": "yes", "true": "yes", "on": "yes", "0": "no", "false": "no", "off": "no"}


def _same(wanted: str, found: str) -> bool:
    wanted = _SWITCHES.get(wanted, wanted)
    return wanted in {"no", found}


def _at_most(wanted: str, found: str) -> bool:
    return not found.startswith("~") and set(found.split()) <= set(wanted.split())


def _families(wanted: str, found: str) -> bool:
    return _at_most("" if wanted == "none" else wanted, "" if found == "none" else found)


def _at_least(wanted: str, found: str) -> bool:
    return {path.lstrip("-+") for path in wanted.split()} <= {path.lstrip("-+") for path in found.split()}


def _namespaces(wanted: str, found: str) -> bool:
    return _allowed(found) <= _allowed(wanted)


def _allowed(text: str) -> frozenset[str]:
    text = _SWITCHES.get(text, text)
    return {"yes": frozenset[str](), "no": _NAMESPACES}.get(text, frozenset(text.split()))


def _filtered(wanted: str, found: str) -> bool:
    """Whether there is a list of what is allowed; systemd shows groups as their members, so it is not compared."""
    return wanted.startswith("~") or bool(found.strip("~ "))


def _command(wanted: str, found: str) -> bool:
    """Whether it is the same program; a flag would run it beside the confinement ("+") or as root ("!")."""
    running = re.search(r"argv\[\]=(.*?) ; flags= ; ", found)
    return running is not None and running[1].split() == wanted.split()


_COMPARISONS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    **dict.fromkeys(
        (
            "User", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset", "PrivateTmp",
            "PrivateDevices", "PrivateNetwork", "PrivateIPC", "PrivateUsers", "DevicePolicy", "ProtectHostname",
            "ProtectClock", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
            "ProtectControlGroups", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality",
            "MemoryDenyWriteExecute", "RemoveIPC", "KeyringMode", "UMask", "StandardInput",
        ),
        _same,
    ),
    **dict.fromkeys(
        ("CapabilityBoundingSet", "AmbientCapabilities", "ReadWritePaths", "SystemCallArchitectures"), _at_most
    ),
    "RestrictAddressFamilies": _families,
    "RestrictNamespaces": _namespaces,
    "InaccessiblePaths": _at_least,
    "SystemCallFilter": _filtered,
    "ExecStart": _command,
}  # fmt: skip
_PROGRAMS: Final = ("ExecCondition", "ExecStartPre", "ExecStartPost", "ExecReload", "ExecStop", "ExecStopPost")
_ADDED: Final = (
    *_PROGRAMS, "Group", "SupplementaryGroups", "AmbientCapabilities", "ReadWritePaths", "RootDirectory", "RootImage",
    "BindPaths", "BindReadOnlyPaths",
)  # fmt: skip
"""What a drop-in may bring in that the package's unit does not have."""
_PROPERTIES: Final = {"ExecStart": "ExecStartEx"}
"""Where systemd tells all of a directive under another name."""
_ALWAYS: Final = ("LoadState", "FragmentPath", "DropInPaths", "NeedDaemonReload", "Environment")
_SANDBOX_OFF: Final = re.compile(r"(?:^|\s)\"?MCPD_RUNTIME_SANDBOX=\S*")


def unit_checks(*, system: bool, vendor: tuple[Path, ...] = VENDOR) -> Iterator[Check]:
    """One finding for each unit that the package brought; none if it brought none."""
    kind = "system" if system else "user"
    for name in SYSTEM_UNITS if system else USER_UNITS:
        shipped = next((file for place in vendor if (file := place / kind / name).is_file()), None)
        if shipped is not None:
            yield _check(name, shipped, system=system)


def _check(name: str, shipped: Path, *, system: bool) -> Check:
    wanted = directives(shipped)
    instance = name.replace("@.", f"@{_INSTANCE}.")
    properties = [*_ALWAYS, *_ADDED, *(_PROPERTIES.get(key, key) for key in wanted if key in _COMPARISONS)]
    shown = show([instance], dict.fromkeys(properties), system=system)
    if not shown:
        return Check(name, "warn", "systemd does not answer, so nobody knows how it is confined", "see 'systemctl'")
    found = shown[0]
    revert = f"systemctl{'' if system else ' --user'} revert {name}"
    if found.get("LoadState") != "loaded":
        state = found.get("LoadState") or "not known to systemd"
        return Check(name, "fail", state, f"'{revert}' undoes what was changed; else reinstall mcpd")
    fragment = found.get("FragmentPath", "")
    drop_ins = [Path(path) for path in found.get("DropInPaths", "").split()]
    replaced = bool(fragment) and Path(fragment).resolve() != shipped.resolve()
    sources = [Path(fragment), *drop_ins] if replaced else drop_ins
    in_force = Path(fragment) if replaced else shipped
    weaker = dict.fromkeys([*_weaker(wanted, found), *_more_calls(shipped, in_force, drop_ins)])
    weakened = [_describe(key, wanted.get(key, ""), found, sources) for key in weaker]
    if weakened:
        return Check(
            name, "fail", f"confined less than as shipped: {'; '.join(weakened)}",
            f"'{revert}' undoes what was changed, 'systemctl edit' can keep the rest; then restart it",
        )  # fmt: skip
    if found.get("NeedDaemonReload") == "yes":
        return Check(name, "warn", "its file changed since systemd read it", "run 'systemctl daemon-reload'")
    if sources:
        changed = f"changed by {', '.join(map(str, sources))}, and confined as shipped"
        return Check(name, "ok", changed)
    return Check(name, "ok", "confined as shipped")


def _weaker(wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for key, text in wanted.items():
        compare = _COMPARISONS.get(key)
        now = found.get(_PROPERTIES.get(key, key))
        if compare is not None and now is not None and not compare(text, now):
            yield key
    yield from (key for key in _ADDED if key not in wanted and found.get(key, "").strip())
    if _SANDBOX_OFF.search(found.get("Environment", "")):
        yield "Environment"


def _more_calls(shipped: Path, fragment: Path, drop_ins: Iterable[Path]) -> Iterator[str]:
    """systemd shows system calls one by one, so what is added to them is read from the files."""
    key = "SystemCallFilter"
    allowed = _values(shipped, key)
    added = (value for path in drop_ins for value in _values(path, key) if not value.startswith("~"))
    if allowed and (_values(fragment, key) != allowed or any(True for _ in added)):
        yield key


def _values(file: Path, wanted: str) -> list[str]:
    return [value for key, value in _lines(file) if key == wanted]


def _describe(key: str, wanted: str, found: Mapping[str, str], sources: list[Path]) -> str:
    culprit = next((path for path in reversed(sources) if key in directives(path)), None)
    where = f" ({culprit})" if culprit else ""
    if key in {"ExecStart", "SystemCallFilter", *_PROGRAMS}:
        return f"{key} is not what was shipped{where}"
    instead = f" instead of {wanted or 'nothing'}" if key != "Environment" else ""
    value = found.get(key, "")
    return f"{key}={value if len(value) < _SHOWN else value[:_SHOWN] + '…'}{instead}{where}"


def directives(file: Path) -> dict[str, str]:
    """What the unit file or drop-in *file* says: lists in one, an empty value for one that it clears.

    Empty if it cannot be read.
    """
    found: dict[str, str] = {}
    for key, value in _lines(file):
        found[key] = f"{found[key]} {value}" if value and found.get(key) else value
    return found


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.replace("\\\n", " ").splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", ";", "[")):
            yield key.strip(), value.strip()
