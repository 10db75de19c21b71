# SPDX-License-Identifier: LGPL-2.1-or-later
"""All faults of an ensemble, whether its file can be loaded or not."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mcpd.model.base import first_fault
from mcpd.servers.ensembles.format import validation
from mcpd.servers.ensembles.format.models import PROVIDERS
from mcpd.servers.ensembles.format.validation import Finding
from mcpd.servers.ensembles.providers.mock import Options

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mcpd.errors import InvalidConfig
    from mcpd.servers.ensembles.engine.types import Found
    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.library.library import Library
    from mcpd.servers.ensembles.providers.keys import Access


def check(
    library: Library,
    found: Found,
    loaded: Loaded,
    servers: Collection[str] | None,
    access: Access | None = None,
    tools: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[Finding]:
    """Return the faults of *found*, which refers to entries of *library* and to *servers*, if these are known.

    *access* determines which models can be used, if known; *tools* has the tools of the servers that were queried.
    """
    return validation.validate(
        found,
        library,
        loaded,
        script_exists=library.script_problem,
        servers=servers,
        options_fault=_options_fault,
        model_fault=lambda profile, trusted: None if access is None else access.fault(profile, trusted=trusted),
        tools=tools,
    )


def _options_fault(provider: str, options: Mapping[str, Any]) -> str | None:
    """Return the fault in *options*, or None; only the mock's are checked, as those of others belong to their APIs."""
    if PROVIDERS[provider] != "mock":
        return None
    try:
        Options.model_validate(options)
    except ValidationError as error:
        return f"options of a model of provider mock: {first_fault(error)}"
    return None


def own_base_urls(library: Library) -> list[str]:
    """Return the base URLs that the user has configured: those in profiles outside projects."""
    entries = (each for each in library.profiles() if each.origin.tier != "project")
    return [each.profile.base_url for each in entries if each.profile is not None and each.profile.base_url]


def faults(fault: InvalidConfig) -> list[Finding]:
    """Return each reason why a file could not be loaded."""
    data = fault.data or {}
    file, line, listed = str(data.get("file", "")), data.get("line"), data.get("problems")
    problems = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if not problems:
        return [_finding(fault.message, None, line, file)]
    return [_finding(str(each.get("message")), each.get("agent"), each.get("line"), file) for each in problems]


def _finding(message: str, agent: object, line: object, file: str) -> Finding:
    return Finding(
        severity="error",
        message=message,
        agent=None if agent is None else str(agent),
        line=line if isinstance(line, int) else None,
        file=file,
    )
