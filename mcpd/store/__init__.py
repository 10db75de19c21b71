# SPDX-License-Identifier: LGPL-2.1-or-later
"""The installed tree: layers, manifests, generations, configuration and secrets."""

from mcpd.store.records import Configuration, Generation, InstalledServer, LaunchManifest
from mcpd.store.store import Store

__all__ = ["Configuration", "Generation", "InstalledServer", "LaunchManifest", "Store"]
