# SPDX-License-Identifier: LGPL-2.1-or-later
"""The filter of every sandbox, for machines that are not at hand, too."""

from __future__ import annotations

import errno
import os

import pytest

from mcpd.runtime.exec.seccomp import DENIED, MACHINES, MISSING, MODES, OPENS, program
from tests.unit.seccomp_verdicts import verdict

machines = pytest.mark.parametrize("machine", MACHINES)


def judge(machine: str, name: str, *arguments: int, openat2: bool = False) -> int:
    architecture, calls = MACHINES[machine]
    return verdict(program(machine, openat2=openat2), architecture, calls[name], *arguments)


@machines
def test_a_mode_with_a_set_id_bit_is_refused_and_others_are_not(machine: str) -> None:
    for name in MODES.keys() & MACHINES[machine][1].keys():
        for mode, expected in ((0o755, 0), (0o1777, 0), (0o4755, errno.EPERM), (0o2755, errno.EPERM)):
            arguments = [0o6000] * MODES[name] + [mode, 0]
            assert judge(machine, name, *arguments) == expected, (name, oct(mode))


@machines
def test_a_mode_counts_only_where_open_creates(machine: str) -> None:
    for name in OPENS.keys() & MACHINES[machine][1].keys():
        before = [0] * OPENS[name]
        for flags in (os.O_CREAT, os.O_TMPFILE | os.O_RDWR):
            assert judge(machine, name, *before, flags, 0o4755) == errno.EPERM
            assert judge(machine, name, *before, flags, 0o755) == 0
        assert judge(machine, name, *before, os.O_RDONLY | os.O_DIRECTORY, 0o6755) == 0


@machines
def test_calls_around_the_sandbox_are_refused(machine: str) -> None:
    assert {judge(machine, name) for name in DENIED} == {errno.EPERM}
    assert {judge(machine, name) for name in MISSING} == {errno.ENOSYS}
    assert judge(machine, "openat2") == errno.ENOSYS
    assert judge(machine, "openat2", openat2=True) == 0


@machines
def test_calls_of_another_architecture_are_refused(machine: str) -> None:
    code = program(machine, openat2=True)
    assert verdict(code, 0x40000003, 0) == errno.EPERM
    if machine == "x86_64":
        assert verdict(code, MACHINES[machine][0], 0x40000000) == errno.EPERM


def test_a_machine_that_is_not_known_has_no_filter() -> None:
    assert program("s390x", openat2=False) == b""
