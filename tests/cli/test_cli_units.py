# SPDX-License-Identifier: LGPL-2.1-or-later
"""What mcpctl makes of systemd's answers and of the journal's files, with a systemctl that says what the test says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.cli import agent, checks, overrides
from mcpd.cli.overrides import directives, unit_checks
from mcpd.cli.units import figures, show

if TYPE_CHECKING:
    from collections.abc import Callable

SHIPPED = """\
# a comment=no
[Service]
ExecStart=/usr/libexec/mcpd --system
User=mcpd
NoNewPrivileges=true
ProtectSystem=strict
CapabilityBoundingSet=
RestrictNamespaces=user \\
    mnt
RestrictAddressFamilies=AF_UNIX AF_INET
InaccessiblePaths=-/var/lib/mcp/secrets
SystemCallFilter=@system-service
"""
IN_FORCE = {
    "LoadState": "loaded",
    "DropInPaths": "",
    "NeedDaemonReload": "no",
    "Environment": "",
    "ExecStartEx": "{ path=/usr/libexec/mcpd ; argv[]=/usr/libexec/mcpd --system ; flags= ; pid=0 }",
    "User": "mcpd",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "CapabilityBoundingSet": "",
    "RestrictNamespaces": "mnt user",
    "RestrictAddressFamilies": "AF_INET AF_UNIX",
    "InaccessiblePaths": "-/var/lib/mcp/secrets",
    "SystemCallFilter": "accept bind",
}


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what ``systemctl`` prints."""
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def write(text: str) -> None:
        (tmp_path / "said").write_text(text)
        program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nexec cat {tmp_path}/said\n')
        program.chmod(0o755)

    return write


@pytest.fixture
def checked(tmp_path: Path, says: Callable[[str], None]) -> Callable[..., tuple[str, str]]:
    """The finding about mcpd.service when systemd says what it should, but for the given properties."""
    vendor = tmp_path / "vendor"
    (vendor / "system").mkdir(parents=True)
    (vendor / "system/mcpd.service").write_text(SHIPPED)

    def check(**changed: str) -> tuple[str, str]:
        block = IN_FORCE | {"FragmentPath": str(vendor / "system/mcpd.service")} | changed
        says("".join(f"{key}={value}\n" for key, value in block.items()))
        (found,) = unit_checks(system=True, vendor=(vendor,))
        return found.result, found.message

    return check


def test_a_unit_as_shipped_is_fine(checked: Callable[..., tuple[str, str]]) -> None:
    assert checked() == ("ok", "confined as shipped")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("User", "root"),
        ("User", ""),
        ("NoNewPrivileges", "no"),
        ("ProtectSystem", "full"),
        ("CapabilityBoundingSet", "cap_chown"),
        ("RestrictNamespaces", "no"),
        ("RestrictNamespaces", "mnt net user"),
        ("RestrictAddressFamilies", "~"),
        ("RestrictAddressFamilies", "~AF_PACKET"),
        ("RestrictAddressFamilies", "AF_INET AF_PACKET AF_UNIX"),
        ("InaccessiblePaths", ""),
        ("SystemCallFilter", "~"),
        ("ExecStartPre", "{ path=/bin/sh ; argv[]=/bin/sh ; ignore_errors=no ; pid=0 }"),
        ("ExecStopPost", "{ path=/bin/sh ; argv[]=/bin/sh ; ignore_errors=no ; pid=0 }"),
        ("ReadWritePaths", "/etc"),
        ("SupplementaryGroups", "shadow"),
        ("AmbientCapabilities", "cap_sys_admin"),
        ("Environment", "A=b MCPD_RUNTIME_SANDBOX=off"),
    ],
)
def test_less_than_shipped_fails(checked: Callable[..., tuple[str, str]], tmp_path: Path, key: str, value: str) -> None:
    drop_in = tmp_path / "weaker.conf"
    drop_in.write_text(f"[Service]\n{key}={value}\n")
    result, message = checked(**{key: value}, DropInPaths=f"/nonexistent.conf {drop_in}")
    assert result == "fail"
    assert message.startswith("confined less than as shipped: ")
    assert key in message
    assert f"({drop_in})" in message


@pytest.mark.parametrize(
    "command",
    [
        "{ path=/bin/sh ; argv[]=/bin/sh ; flags= ; pid=0 }",
        "{ path=/usr/libexec/mcpd ; argv[]=/usr/libexec/mcpd --system ; flags=privileged ; pid=0 }",
        "",
    ],
)
def test_another_program_or_one_beside_the_confinement_fails(
    checked: Callable[..., tuple[str, str]], tmp_path: Path, command: str
) -> None:
    drop_in = tmp_path / "weaker.conf"
    drop_in.write_text("[Service]\nExecStart=\nExecStart=+/usr/libexec/mcpd --system\n")
    message = f"confined less than as shipped: ExecStart is not what was shipped ({drop_in})"
    assert checked(ExecStartEx=command, DropInPaths=str(drop_in)) == ("fail", message)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("RestrictNamespaces", "yes"),
        ("RestrictNamespaces", "mnt"),
        ("RestrictAddressFamilies", "none"),
        ("RestrictAddressFamilies", "AF_UNIX"),
        ("InaccessiblePaths", "/etc/shadow /var/lib/mcp/secrets"),
        ("Environment", "MCPD_INSTALL_KEEP_GENERATIONS=5"),
    ],
)
def test_more_than_shipped_is_fine(
    checked: Callable[..., tuple[str, str]], tmp_path: Path, key: str, value: str
) -> None:
    drop_in = tmp_path / "stricter.conf"
    drop_in.write_text(f"[Service]\n{key}={value}\n")
    result, message = checked(**{key: value}, DropInPaths=str(drop_in))
    assert (result, message) == ("ok", f"changed by {drop_in}, and confined as shipped")


def test_system_calls_that_a_drop_in_adds(checked: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    drop_in = tmp_path / "calls.conf"
    drop_in.write_text("[Service]\nSystemCallFilter=@raw-io\n")
    assert checked(DropInPaths=str(drop_in))[0] == "fail"
    drop_in.write_text("[Service]\nSystemCallFilter=~@resources\nSystemCallFilter=@mount\n")
    assert checked(DropInPaths=str(drop_in))[0] == "fail"
    drop_in.write_text("[Service]\nSystemCallFilter=~@resources\n")
    assert checked(DropInPaths=str(drop_in))[0] == "ok"


def test_a_unit_that_was_replaced_or_masked(checked: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    other = tmp_path / "mcpd.service"
    other.write_text("[Service]\nUser=root\n")
    result, message = checked(FragmentPath=str(other), User="root")
    assert (result, f"({other})" in message) == ("fail", True)
    other.write_text(SHIPPED)
    assert checked(FragmentPath=str(other)) == ("ok", f"changed by {other}, and confined as shipped")
    other.write_text(SHIPPED.replace("@system-service", "@system-service @mount"))
    assert "SystemCallFilter" in checked(FragmentPath=str(other))[1]
    assert checked(LoadState="masked") == ("fail", "masked")
    assert checked(NeedDaemonReload="yes")[0] == "warn"


def test_without_systemd_or_units_nothing_is_claimed(
    checked: Callable[..., tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked()[0] == "ok"
    monkeypatch.setenv("PATH", "/nonexistent")
    (found,) = unit_checks(system=True, vendor=(tmp_path / "vendor",))
    assert found.result == "warn"
    assert list(unit_checks(system=True, vendor=(tmp_path,))) == []
    assert show(["a.service"], ["Id"], system=True) == []


def test_every_unit_that_is_shipped_is_understood() -> None:
    """Each unit with a program confines it with directives that doctor compares."""
    source = Path(__file__).parents[2] / "systemd"
    names = {"system": overrides.SYSTEM_UNITS, "user": overrides.USER_UNITS}
    for scope, units in names.items():
        shipped = {path.name.removesuffix(".in") for path in (source / scope).glob("*.service*")}
        assert shipped == set(units)
        for unit in units:
            (file,) = (source / scope).glob(f"{unit}*")
            compared = set(directives(file)) & set(overrides._COMPARISONS)
            assert {"ExecStart", "NoNewPrivileges", "SystemCallFilter"} <= compared


def test_directives_add_up_and_can_be_cleared(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("[Service]\n;User=x\nReadWritePaths=/a\nReadWritePaths=/b\nUser=\nNice = 3\n")
    assert directives(file) == {"ReadWritePaths": "/a /b", "User": "", "Nice": "3"}
    file.write_text("[Service]\nReadWritePaths=/a\nReadWritePaths=\n")
    assert directives(file) == {"ReadWritePaths": ""}
    assert directives(tmp_path / "none") == {}


def test_figures_of_units(says: Callable[[str], None], tmp_path: Path) -> None:
    says(
        "Id=a.service\nMemoryCurrent=2097152\nCPUUsageNSec=1500000000\nTasksCurrent=3\n\n"
        "Id=b.service\nMemoryCurrent=[not set]\nCPUUsageNSec=18446744073709551615\nTasksCurrent=[not set]\n"
    )
    sessions = [{"unit": "b.service"}, {"unit": "a.service"}, {"unit": ""}, {"unit": "c.service"}]
    assert figures(sessions, system=False) == [{}, {"memory": 2097152, "cpu": 1.5, "tasks": 3}, {}, {}]
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("--user show ")
    assert asked.endswith("-- a.service b.service c.service\n")
    assert figures([{"unit": ""}], system=True) == [{}]
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


def test_shipped_actions_are_read_from_the_policy(tmp_path: Path) -> None:
    policy = tmp_path / checks.POLICY
    policy.parent.mkdir(parents=True)
    policy.write_text((Path(__file__).parents[2] / "dbus/org.mcpd.mcp1.policy").read_text())
    found = checks.shipped_actions(tmp_path)
    assert "org.mcpd.mcp1.install-untrusted" in found
    assert len(found) == len(set(found)) >= 11
    assert checks.shipped_actions(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("cgroup", "user", "expected"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n", "NAME=a\nDISPLAY=3\n", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n", "NAME=a\n", False),
        ("0::/system.slice/cron.service\n", "NAME=a\nDISPLAY=3\n", False),
    ],
)
def test_the_agent_stands_back_in_a_session_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, user: str, expected: bool
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    (tmp_path / str(os.getuid())).write_text(user)
    monkeypatch.setattr(agent, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(agent, "_USERS", tmp_path)
    assert agent._in_session() is expected
    monkeypatch.setattr(agent, "_USERS", tmp_path / "none")
    assert agent._in_session() is (expected and not user)


def test_figures_are_json(says: Callable[[str], None]) -> None:
    says("Id=a.service\nCPUUsageNSec=1234567\n")
    assert json.dumps(figures([{"unit": "a.service"}], system=True)) == '[{"cpu": 0.001}]'
