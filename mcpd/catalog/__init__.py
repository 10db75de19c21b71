# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which servers there are: ``sources.list``, the registries it names, and looking things up in them."""

from mcpd.catalog.catalog import Catalog
from mcpd.catalog.registries import SourceLine, check_source_url
from mcpd.catalog.results import CatalogEntry, Icon, Listing, Query

__all__ = ["Catalog", "CatalogEntry", "Icon", "Listing", "Query", "SourceLine", "check_source_url"]
