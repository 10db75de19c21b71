# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which servers there are: ``sources.list``, the registries it names, and looking things up in them."""

from mcpd.catalog.catalog import Catalog, CatalogEntry
from mcpd.catalog.sources import SourceLine, check_source_url

__all__ = ["Catalog", "CatalogEntry", "SourceLine", "check_source_url"]
