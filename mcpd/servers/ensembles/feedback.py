# SPDX-License-Identifier: LGPL-2.1-or-later
"""Notifies Plexus of runs if a context is configured; a failure never makes a run fail."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from mcpd.errors import McpdError
from mcpd.servers.ensembles.directories import SERVER
from mcpd.servers.ensembles.plexus_client import PlexusClient
from mcpd.servers.ensembles.schemas import Feedback
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    from mcpd.servers.ensembles.agents.confinement import Confinement
    from mcpd.servers.ensembles.engine.types import Found

log = logging.getLogger(SERVER)


def client(found: Found, confinement: Confinement, context: str | None) -> tuple[PlexusClient | None, str]:
    """Return the client of the Plexus for *found*, or None, and the context: *context*, or the configured one."""
    plexus = found.plexus
    if plexus is None or not plexus.enabled or not plexus.server_command:
        return None, ""
    return PlexusClient(plexus.server_command, found.origin, confinement), context or plexus.context_id


def unwanted(context: str | None) -> Feedback | None:
    """Return the feedback for a caller that names a *context* though no Plexus is configured, or None without one."""
    if context is None:
        return None
    return Feedback(sent=False, error="no Plexus is configured: set plexus.enabled and server_command in config.yaml")


async def send(plexus: PlexusClient, context: str, document: dict[str, Any], run: dict[str, Any]) -> Feedback:
    """Notify *plexus* of *run* of the ensemble *document*. Errors are returned and logged."""
    try:
        answer = await plexus.analyze_ensemble(context, document, run)
    except McpdError as fault:
        log.warning("plexus: %s", in_one_line(fault.message))
        return Feedback(sent=False, error=fault.message)
    return Feedback(sent=True, answer=answer or None)
