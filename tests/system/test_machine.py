# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machines of these tests keep to themselves and leave nothing behind; the end of the session checks the rest."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.cgroup import hierarchy, owned
from tests.system.image import PROJECT
from tests.system.machine import BootFailed, Machine, Overlay, clean_up_after_others, remains

KILLED = """
import subprocess, sys
from tests.system.cgroup import ControlGroup
from tests.system.machine import Overlay
with Overlay([sys.argv[1]]) as overlay, ControlGroup() as group:
    sleeping = subprocess.Popen(group.entering(["sleep", "1000"]), stdout=subprocess.PIPE)
    while not open(f"/proc/{sleeping.pid}/cmdline").read().startswith("sleep"):
        pass  # It is a shell until it is in the group.
    print(group.name, overlay.root.parent, flush=True)
    print(sleeping.communicate())
"""
"""Has what a process has that runs a machine, and waits to be killed."""


def test_the_units_of_a_machine_are_in_a_group_of_its_own(machine: Machine) -> None:
    groups = list(owned(hierarchy().iterdir()))
    assert [group for group in groups if (group / "payload/system.slice/dbus.service").is_dir()]
    assert machine.property("dbus.service", "ControlGroup") == "/system.slice/dbus.service"


def test_a_machine_that_does_not_come_up_leaves_nothing(layers: list[Path]) -> None:
    before = remains()
    with Overlay(layers) as overlay:
        (overlay.root / "usr/lib/systemd/systemd").unlink()
        machine = Machine(overlay)
        with pytest.raises(BootFailed, match="did not come up"):
            machine.boot()
        assert len(remains()) > len(before)
        machine.shut()
    assert remains() == before


def test_machines_of_a_killed_process_end_with_it_and_the_next_one_clears_up(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(argv, cwd=PROJECT, stdout=pipe, stderr=pipe, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stderr is not None
        name, directory = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
        # What was started in the group holds the pipe as well.
        owner.stderr.read()
    clean_up_after_others()
    assert not (hierarchy() / name).exists()
    assert not Path(directory).exists()
    assert directory not in Path("/proc/self/mountinfo").read_text()
