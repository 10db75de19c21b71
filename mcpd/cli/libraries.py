# SPDX-License-Identifier: LGPL-2.1-or-later
"""The libraries of the bundled servers, for commands that take them: from the environment of mcpd-servers, if need be.

mcpctl itself gets by without them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Final

from mcpd.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Iterable

GUARD: Final = "MCPCTL_LIBRARIES"
"""Set for the environment of mcpd-servers alone, so that it does not look for another one."""
MAIN: Final = ("-I", "-m", "mcpd.cli.main")
"""What starts mcpctl there. Isolated: neither the directory it is started in nor a variable adds to what it imports."""


def provide(libraries: Iterable[str], whom: str) -> None:
    """Have *libraries* for *whom*, if need be by running this command anew in the environment of mcpd-servers.

    Raises :class:`~mcpd.errors.NotSupported` if they are nowhere.
    """
    python = interpreter(libraries, whom)
    if python is None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    argv = [python, *MAIN, *sys.argv[1:]]
    os.execve(python, argv, os.environ | {GUARD: "1"})  # noqa: S606 - in place of this process, without a shell


def interpreter(libraries: Iterable[str], whom: str) -> str | None:
    """The interpreter that has *libraries*; None if it is this one.

    Raises :class:`~mcpd.errors.NotSupported` if they are nowhere, which names *whom* they are for.
    """
    is_again = os.environ.pop(GUARD, None) is not None
    missing = [name for name in libraries if not _is_there(name)]
    if not missing:
        return None
    what = f"{whom} needs the Python package {missing[0]}, which"
    if sys.prefix != sys.base_prefix and not is_again:
        raise NotSupported(
            f"{what} is not in {sys.prefix}; install it with: {sys.executable} -m pip install 'mcpd-system[servers]'"
        )
    from mcpd.runtime import bundled  # noqa: PLC0415 - not where everything is there

    if is_again or not bundled.PYTHON.exists():
        raise NotSupported(f"{what} is not installed; install the package mcpd-servers")
    return str(bundled.PYTHON)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False
