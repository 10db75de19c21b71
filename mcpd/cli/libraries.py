# SPDX-License-Identifier: LGPL-2.1-or-later
"""Libraries of the bundled servers, which some commands of mcpctl need.

If they are not installed here, the command is executed in the environment of the package mcpd-servers.
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
"""Environment variable that is set in the environment of mcpd-servers, to prevent a loop."""
MAIN: Final = ("-I", "-m", "mcpd.cli.main")
"""Arguments of that environment's interpreter. ``-I`` keeps the current directory and variables from affecting
imports."""


def provide(libraries: Iterable[str], consumer: str) -> None:
    """Return if *libraries* are installed here, else execute this command in the environment of mcpd-servers.

    Raises :class:`~mcpd.errors.NotSupported`, naming *consumer*, if they are not installed there either.
    """
    python = interpreter(libraries, consumer)
    if python is None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    argv = [python, *MAIN, *sys.argv[1:]]
    os.execve(python, argv, os.environ | {GUARD: "1"})  # noqa: S606 - no shell is wanted


def interpreter(libraries: Iterable[str], consumer: str) -> str | None:
    """Return the interpreter that has *libraries*; ``None`` if it is this one.

    Raises :class:`~mcpd.errors.NotSupported`, naming *consumer*, if there is none.
    """
    is_again = os.environ.pop(GUARD, None) is not None
    missing = [name for name in libraries if not _is_there(name)]
    if not missing:
        return None
    what = f"{consumer} needs the Python package {missing[0]}, which"
    if sys.prefix != sys.base_prefix and not is_again:
        raise NotSupported(
            f"{what} is not in {sys.prefix}; install it with: {sys.executable} -m pip install 'mcpd-system[servers]'"
        )
    from mcpd.runtime import bundled  # only if a library is missing

    if is_again or not bundled.PYTHON.exists():
        raise NotSupported(f"{what} is not installed; install the package mcpd-servers")
    return str(bundled.PYTHON)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package
        return False
