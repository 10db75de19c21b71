# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``update_ensemble`` may change."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from mcpd.servers.ensembles.format.models import MAX_AGENTS, AgentName

MAX_CHANGES: Final = MAX_AGENTS
_Name = Annotated[str, Field(min_length=1, max_length=128)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Dependencies(_Strict):
    """What an agent depends on from now on."""

    agent: _Name = Field(description="An agent that the ensemble has")
    depends_on: Annotated[tuple[AgentName, ...], Field(max_length=MAX_AGENTS)] = Field(
        description="All that it depends on; an empty list if it depends on nothing"
    )


class Changes(_Strict):
    """Changes that are made together or not at all."""

    add_agents: Annotated[tuple[dict[str, Any], ...], Field(max_length=MAX_CHANGES)] = Field(
        default=(), description="Agents to add at the end, each with the keys that it would have in the file"
    )
    remove_agents: Annotated[tuple[_Name, ...], Field(max_length=MAX_CHANGES)] = Field(
        default=(), description="Names of agents to remove"
    )
    modify_dependencies: Annotated[tuple[Dependencies, ...], Field(max_length=MAX_CHANGES)] = Field(
        default=(), description="Agents with what they depend on from now on"
    )
    update_model_profiles: Annotated[dict[_Name, _Name], Field(max_length=MAX_CHANGES)] = Field(
        default_factory=dict, description="The model profile from now on, by agent; it replaces model and provider"
    )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to change."""
        return not (self.add_agents or self.remove_agents or self.modify_dependencies or self.update_model_profiles)
