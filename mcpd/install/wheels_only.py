# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run pip so that it cannot start other programs: ``wheels_only.py PROGRAM…``; used with network access.

pip's ``--only-binary`` does not apply to a dependency given as a URL: pip would clone it with git or build it, which
runs its code.
"""

import runpy
import sys

STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


def hook(event: str, _: object) -> None:
    """Audit hook: raise PermissionError that names the current requirement if *event* starts a program."""
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
