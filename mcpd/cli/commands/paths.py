# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl paths``: files and directories of mcpd, for shells and scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.bridge.places import places
from mcpd.cli.output import details, write_json
from mcpd.paths import from_environment

if TYPE_CHECKING:
    import argparse


def paths(args: argparse.Namespace) -> int:
    """``mcpctl paths``. JSON: ``{"user-install-dir": …, "user-sources-path": …, "system-install-dir": …, …}``."""
    found = from_environment()
    names: dict[str, str] = {}
    for layout in (found.user, found.system):
        names |= {
            f"{layout.scope}-{name}": str(path)
            for name, path in (
                ("install-dir", layout.installed),
                ("sources-path", layout.sources_list),
                ("settings-path", layout.settings),
                ("secrets-dir", layout.secrets),
                ("state-dir", layout.state),
                ("cache-dir", layout.cache),
                ("runtime-dir", layout.runtime),
                ("mcps-path", layout.mcps),
                ("mcps-dir", layout.mcps_dir),
                ("scripts-dir", layout.scripts),
                ("contents-dir", layout.contents),
                ("clients-dir", layout.clients),
                ("client-profiles-dir", layout.client_profiles),
                ("policy-path", layout.policy),
                ("orchestration-dir", layout.orchestration),
            )
        }
    names["user-deployments-dir"] = str(found.user.deployments)
    bridge = places(found.user)
    names |= {
        "user-bridge-url": str(bridge.url),
        "user-bridge-socket": str(bridge.socket),
        "user-bridge-stdio": str(bridge.stdio),
        "user-bridge-token": str(bridge.token),
    }
    names |= {
        "vendor-dir": str(found.vendor),
        "vendor-mcps-path": str(found.vendor_mcps),
        "vendor-scripts-dir": str(found.vendor_scripts),
        "vendor-contents-dir": str(found.vendor_contents),
        "vendor-clients-dir": str(found.vendor_clients),
        "vendor-client-profiles-dir": str(found.vendor_profiles),
    }
    if args.json:
        write_json(names)
    else:
        details(names.items())
    return 0
