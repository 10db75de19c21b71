# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an agent is, as a hash: an earlier response counts while neither that nor what it depends on has changed."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from mcpd.errors import McpdError
from mcpd.servers.ensembles.engine.types import MAX_DEPTH
from mcpd.servers.ensembles.format.graph import levels
from mcpd.servers.ensembles.format.models import EnsembleAgent, LoopAgent, ModelAgent

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Found, Source
    from mcpd.servers.ensembles.format.models import Agent


def definitions(found: Found, source: Source, depth: int = 0) -> dict[str, str]:
    """By agent of *found*. What a script's file holds is no part of it."""
    agents = {agent.name: agent for agent in found.ensemble.agents}
    made: dict[str, str] = {}
    for level in levels(found.ensemble.agents):
        for name in level:
            agent = agents[name]
            behind = [made[each] for each in agent.depends_on if each in made]
            said = [agent.model_dump(mode="json"), behind, _beyond(agent, found, source, depth)]
            text = json.dumps(said, sort_keys=True, ensure_ascii=False)
            made[name] = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return made


def _beyond(agent: Agent, found: Found, source: Source, depth: int) -> Any:
    """What *agent* names elsewhere."""
    try:
        if isinstance(agent, ModelAgent):
            names = [each for each in (agent.model_profile, agent.fallback_model_profile) if each is not None]
            return [source.profile(name, found.origin).model_dump(mode="json") for name in names]
        if isinstance(agent, (EnsembleAgent, LoopAgent)) and depth < MAX_DEPTH:
            other = source.find(agent.ensemble if isinstance(agent, EnsembleAgent) else agent.loop.body, found.origin)
            return definitions(other, source, depth + 1)
    except McpdError:
        # Its run says what is wrong.
        return None
    return None
