# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.paths import Layout, Paths, Scope

if TYPE_CHECKING:
    from pathlib import Path


def paths_below(root: Path) -> Paths:
    def layout(scope: Scope) -> Layout:
        base = root / scope
        return Layout(
            scope=scope,
            sources_list=base / "etc/sources.list",
            settings=base / "etc/mcpd.toml",
            installed=base / "share/installed",
            secrets=base / "share/secrets",
            state=base / "state",
            cache=base / "cache",
            runtime=base / "run",
            overlay=base / "share/overlay",
            scripts=base / "share/scripts",
            contents=base / "share/cas",
            orchestration=base / "orchestration",
            deployments=base / "share/deployments",
        )

    return Paths(layout(Scope.USER), layout(Scope.SYSTEM), root / "vendor", root / "home")
