# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_* where something is mounted below a root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

READ_ONLY = """
import asyncio, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from mcpd.errors import ReadOnly
from mcpd.servers.workstation.filesystem.moving import DELETE
from mcpd.servers.workstation.filesystem.writing import EDIT
from mcpd.servers.workstation.filesystem.moving import MOVE
from mcpd.servers.workstation.filesystem.writing import WRITE
from tests.unit.workstation.bench import Workbench

async def main() -> None:
    with Workbench(Path(sys.argv[1])) as bench:
        for name in ("file", "other"):
            (bench.root / name).write_text("x")
        (bench.root / "directory").mkdir()
        for name in ("file", "directory"):
            subprocess.run(["mount", "--bind", bench.root / name, bench.root / name], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", bench.root / name], check=True)
        for tool, arguments in (
            (DELETE, {"path": "file"}),
            (DELETE, {"path": "file", "permanent": True}),
            (DELETE, {"path": "directory"}),
            (DELETE, {"path": "directory", "permanent": True}),
            (EDIT, {"path": "file", "edits": [{"old_text": "x", "new_text": "y"}]}),
            (WRITE, {"path": "file", "content": "y"}),
            (WRITE, {"path": "file", "content": "y", "append": True}),
            (MOVE, {"source": "file", "destination": "new"}),
            (MOVE, {"source": "other", "destination": "file", "overwrite": True}),
        ):
            try:
                await bench.call(tool, **arguments)
                print("changed", tool.name)
            except ReadOnly as error:
                print("refused", tool.name, error)
        print(sorted(each.name for each in bench.root.iterdir()), (bench.root / "file").read_text())

asyncio.run(main())
"""


MOUNTED = """
import asyncio, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from mcpd.errors import InvalidArgument
from mcpd.servers.workstation.filesystem.moving import DELETE
from tests.unit.workstation.bench import Workbench

async def main() -> None:
    with Workbench(Path(sys.argv[1])) as bench:
        (bench.root / "a/m ount").mkdir(parents=True)
        (bench.root / "a/file").touch()
        subprocess.run(["mount", "--bind", bench.outside, bench.root / "a/m ount"], check=True)
        for path, permanent in (("a", True), ("a/m ount", True), ("a/m ount", False)):
            try:
                await bench.call(DELETE, path=path, permanent=permanent, recursive=True)
                print("deleted", path)
            except InvalidArgument as error:
                print("refused", path, error)
        print(sorted(each.name for each in (bench.root / "a").iterdir()))
        print(sorted(each.name for each in bench.outside.iterdir()))

asyncio.run(main())
"""


def run_with_mounts(program: str, directory: Path) -> list[str]:
    """What *program*, given *directory*, prints where it may mount."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces for mounts here")
    top = Path(__file__).parents[3]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", program, str(directory), str(top)],
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    return done.stdout.splitlines()


async def test_what_is_mounted_read_only_is_said_to_be_so(tmp_path: Path) -> None:
    *lines, last = run_with_mounts(READ_ONLY, tmp_path)
    assert len(lines) == 9
    assert all(line.startswith("refused") and "is mounted read-only" in line for line in lines), lines
    assert last == "['directory', 'file', 'other'] x"


async def test_where_something_is_mounted_nothing_is_deleted_for_good(tmp_path: Path) -> None:
    lines = run_with_mounts(MOUNTED, tmp_path)
    assert all(line.startswith("refused") for line in lines[:3]), lines
    assert all("is mounted at" in line and "m ount" in line for line in lines[:2]), lines
    assert lines[-2:] == ["['file', 'm ount']", "['secret']"]
