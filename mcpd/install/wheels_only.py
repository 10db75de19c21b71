# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a Python program, pip, that cannot start programs: ``wheels_only.py PROGRAM…``, while there is a network.

pip's ``--only-binary`` does not apply to a dependency that a package names by its URL: pip would clone it with git, or
build it, which runs its code.
"""

import runpy
import sys

STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


def hook(event: str, _: object) -> None:
    """Refuse *event*, an audit event, if it starts a program; names the requirement that pip is working on."""
    if event not in STARTS:
        return
    frame = sys._getframe()  # noqa: SLF001 - documented, though not for all interpreters
    while frame.f_back and "req" not in frame.f_locals:
        frame = frame.f_back
    wanted = frame.f_locals.get("req", "")
    raise PermissionError(f"packages are installed from wheels only, nothing is cloned or built: {wanted}")


del sys.argv[0]
sys.addaudithook(hook)
runpy.run_path(sys.argv[0], run_name="__main__")
