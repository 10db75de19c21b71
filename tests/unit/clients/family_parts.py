# SPDX-License-Identifier: LGPL-2.1-or-later
"""Descriptions of clients as the tests of client families need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.clients.families import Families, Family, packaged
from mcpd.paths import Layout, Paths, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MINIMAL = """
name = "Some client"
platform = "linux"
profiles = ["default"]
[file]
format = "json"
key = ["mcpServers"]
linux = ["{home}/.some.json"]
"""


def shipped() -> Families:
    return Families([packaged("clients")])


SHIPPED = {family.id: family for family in shipped().all()}


def description(**more: Any) -> dict[str, Any]:
    """The smallest description; *more* changes its tables and keys, None takes one away."""
    data: dict[str, Any] = {
        "name": "Some client",
        "platform": "linux",
        "profiles": ["default"],
        "file": {"format": "json", "key": ["mcpServers"], "linux": ["{home}/.some.json"]},
    }
    data |= more
    return {key: value for key, value in data.items() if value is not None}


def file(**more: Any) -> dict[str, Any]:
    """The table ``file`` of :func:`description`, with *more*."""
    return {**description()["file"], **more}


def some(**more: Any) -> Family:
    return Family.parse("some", description(**more), "some.toml")


def write(directory: Path, **files: str) -> None:
    """Write NAME.toml for each of *files*; ``_`` in a name stands for ``-``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / f"{name.replace('_', '-')}.toml").write_text(text, encoding="utf-8")


def machine(root: Path) -> Paths:
    """A machine below *root*."""

    def layout(scope: Scope) -> Layout:
        base = root / scope.value
        places: Mapping[str, Path] = {
            name: base / name
            for name in (
                "installed", "secrets", "state", "cache", "runtime", "overlay", "scripts", "contents", "orchestration",
                "deployments",
            )
        }  # fmt: skip
        return Layout(scope=scope, sources_list=base / "etc/sources.list", settings=base / "etc/mcpd.toml", **places)

    return Paths(layout(Scope.USER), layout(Scope.SYSTEM), root / "vendor/servers", root / "home")
