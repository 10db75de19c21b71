# SPDX-License-Identifier: LGPL-2.1-or-later
"""Does one change again and again, killed one step later each time.

``python -m tests.unit.killed MODULE SCENARIO WORK`` leaves ``WORK/<n>`` as SIGKILL before the n-th step of the disk
left it, and prints the number of the run that was not killed. ``SCENARIOS`` of MODULE has for each name a function that
prepares a directory, and one that does the change to what the first returned.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import ModuleType

STEPS: Final = frozenset(
    {
        "open",
        "os.rename",
        "os.remove",
        "os.mkdir",
        "os.rmdir",
        "os.link",
        "os.symlink",
        "os.chmod",
        "os.listxattr",
        "shutil.rmtree",
        "ctypes.dlsym",
    }
)
"""Names of audit events; ``ctypes.dlsym`` comes before an exchange."""


def kill_at_each_step(module: ModuleType, scenario: str, work: Path) -> int:
    """Run this program in the empty directory *work*, and return the number that it prints."""
    command = [sys.executable, "-W", "error", "-m", __name__, module.__name__, scenario, str(work)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return int(done.stdout)


def _run(module: ModuleType, scenario: str, root: Path, fatal: int) -> None:
    """Do the change in *root*, and kill this process before step *fatal*."""
    prepare, change = module.SCENARIOS[scenario]
    prepared = prepare(root)
    steps = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        if event not in STEPS:
            return
        name = str(arguments[0])
        # A name without a slash is that of a file in an open directory; what is imported is no step of the disk.
        if name.startswith(str(root)) or not name.startswith("/"):
            steps += 1
            if steps == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    change(prepared)
    os._exit(0)


def main(module: ModuleType, scenario: str, work: Path) -> None:
    number = 0
    ended = -signal.SIGKILL
    while ended == -signal.SIGKILL:
        number += 1
        process = os.fork()
        if process == 0:
            try:
                _run(module, scenario, work / str(number), number)
            finally:
                os._exit(1)
        ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if ended:
        raise SystemExit(f"step {number}: {ended}")
    sys.stdout.write(f"{number}\n")


if __name__ == "__main__":
    main(importlib.import_module(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
