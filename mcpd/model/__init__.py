# SPDX-License-Identifier: LGPL-2.1-or-later
"""File formats of registries and installed servers: models that keep unknown fields and read older forms."""

from pydantic import JsonValue

from mcpd.model.base import (
    ID_PATTERN,
    Problem,
    check_id,
    check_json,
    dump_json,
    id_from_name,
    load_json,
    printable,
)
from mcpd.model.entry import Entry
from mcpd.model.index import Index, Pointer, parse_index
from mcpd.model.manifest import Manifest, Runtime
from mcpd.model.property import ConfigProperty, Target, ValueType
from mcpd.model.source import Source, check_git_url, strip_credentials
from mcpd.model.transport import Transport, TransportType
from mcpd.package_sources import COMMIT, SourceType

__all__ = [
    "COMMIT",
    "ID_PATTERN",
    "ConfigProperty",
    "Entry",
    "Index",
    "JsonValue",
    "Manifest",
    "Pointer",
    "Problem",
    "Runtime",
    "Source",
    "SourceType",
    "Target",
    "Transport",
    "TransportType",
    "ValueType",
    "check_git_url",
    "check_id",
    "check_json",
    "dump_json",
    "id_from_name",
    "load_json",
    "parse_index",
    "printable",
    "strip_credentials",
]
