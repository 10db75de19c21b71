# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bundled servers as processes in which a constant of the program has another value."""

from __future__ import annotations

CODE = """\
import importlib, runpy
setattr(importlib.import_module({place!r}), {constant!r}, {value!r})
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def with_constant(module: str, place: str, constant: str, value: float) -> tuple[str, ...]:
    """The arguments with which Python runs *module*, where the *constant* of the module *place* is *value*."""
    return ("-I", "-c", CODE.format(module=module, place=place, constant=constant, value=value))


def impatient(module: str) -> tuple[str, ...]:
    """The same, where a call that is silent is soon said to be running."""
    return with_constant(module, "mcpd.servers.notices", "SILENCE", 0.02)
