# SPDX-License-Identifier: LGPL-2.1-or-later
"""The installed tree: layers, manifests, generations, configuration and secrets."""

from mcpd.store.config import Configuration
from mcpd.store.generations import Generation
from mcpd.store.index import InstalledServer
from mcpd.store.store import LaunchManifest, Store

__all__ = ["Configuration", "Generation", "InstalledServer", "LaunchManifest", "Store"]
