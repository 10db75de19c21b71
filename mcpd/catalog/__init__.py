# SPDX-License-Identifier: LGPL-2.1-or-later
"""Catalog of servers: ``sources.list``, the registries that it names, and the search in their entries."""

from mcpd.catalog.catalog import Catalog
from mcpd.catalog.registries import RegistryLine, check_url
from mcpd.catalog.results import CatalogEntry, Icon, Listing, Query

__all__ = ["Catalog", "CatalogEntry", "Icon", "Listing", "Query", "RegistryLine", "check_url"]
