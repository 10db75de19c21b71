# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run an installation and die by SIGKILL the moment it reaches a state: ``kill_me.py ENTRY STATE PROGRESS``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from mcpd.install import InstallOptions, JobEvent
from tests.install.install_parts import make_world


async def main() -> None:
    document, state, progress = Path(sys.argv[1]).read_bytes(), sys.argv[2], int(sys.argv[3])

    def die(event: JobEvent) -> None:
        if event.job.state == state and (not progress or event.job.progress == progress):
            os.kill(os.getpid(), signal.SIGKILL)

    async with make_world() as world:
        world.installer.jobs.subscribe(die)
        job = world.installer.install_manifest(document, InstallOptions(consent=True, reinstall=True), os.getuid())
        await job.wait()
        sys.exit(f"not killed: {job.state} {job.error}")


asyncio.run(main())
