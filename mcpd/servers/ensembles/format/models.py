# SPDX-License-Identifier: LGPL-2.1-or-later
"""Models of ensembles, profiles and a project's ``config.yaml``; unknown keys are refused in the first two.

The format is that of llm-orc, extended by ``mcp``, ``retries``, ``budget``, ``on_failure`` and ``max_concurrent``.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_AGENTS: Final = 1000
MAX_SECONDS: Final = 7200.0
MAX_ITERATIONS: Final = 100
PROVIDERS: Final = {
    "openai-compatible": "openai-compatible",
    "openai": "openai-compatible",
    "ollama": "openai-compatible",
    "anthropic": "anthropic",
    "anthropic-api": "anthropic",
    "google-gemini": "google-gemini",
    "google": "google-gemini",
    "mcp-sampling": "mcp-sampling",
    "mock": "mock",
}
"""Names of providers, and the API of each."""

EnsembleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$")]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Provider = Literal[
    "openai-compatible", "openai", "ollama", "anthropic", "anthropic-api", "google-gemini", "google", "mcp-sampling",
    "mock",
]  # fmt: skip


def _listed(value: Any) -> Any:
    """Return *value* as a list if it is a single one."""
    return [value] if isinstance(value, (str, dict)) else value


def _dependency(value: Any) -> Any:
    """Return the name of a dependency, given alone or as ``{agent_name: …}``."""
    if not isinstance(value, dict) or "agent_name" not in value:
        return value
    if len(value) > 1:
        raise ValueError("a dependency has no key but agent_name; a condition is the agent's own, under when")
    return value["agent_name"]


class Part(BaseModel):
    """A mapping of the format; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())


class AgentBase(Part):
    """The fields of every agent."""

    name: AgentName
    depends_on: Annotated[tuple[Annotated[AgentName, BeforeValidator(_dependency)], ...], BeforeValidator(_listed)] = ()
    fan_out: bool = False
    """True to run an instance for each element of the list in the dependency's response; requires ``depends_on``."""
    input_key: str | None = None
    """Member of the first dependency's response that is used as the input."""
    input_scope: Literal["all", "dependencies", "base"] = "all"
    """The input of a model: the run's input and the dependencies' responses, only the latter, or only the former."""
    when: str | None = None
    """A condition, see :mod:`.references`; if it does not hold, the agent is skipped."""
    timeout_seconds: Seconds | None = None
    retries: Annotated[int, Field(ge=0, le=10)] | None = None
    """Number of retries after temporary failures; by default two for models."""
    on_failure: Literal["continue", "stop"] | None = None
    """Consequence of its failure for the rest of the run; the ensemble's policy by default."""

    @model_validator(mode="after")
    def _fans_out_over_something(self) -> AgentBase:
        if self.fan_out and not self.depends_on:
            raise ValueError("fan_out needs depends_on: it runs the agent for each element of a dependency's response")
        if self.input_key is not None and not self.depends_on:
            raise ValueError("input_key needs depends_on: it names a member of a dependency's response")
        return self


class ModelAgent(AgentBase):
    """An agent that asks a model."""

    model_profile: str | None = None
    model: str | None = None
    provider: Provider | None = None
    system_prompt: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    options: dict[str, Any] | None = None
    output_format: Literal["text", "json"] | None = None
    fallback_model_profile: str | None = None

    @model_validator(mode="after")
    def _has_one_model(self) -> ModelAgent:
        if (self.model_profile is None) == (self.model is None and self.provider is None):
            raise ValueError("name either model_profile, or model and provider")
        if (self.model is None) != (self.provider is None):
            raise ValueError("model and provider belong together")
        return self


class ScriptAgent(AgentBase):
    """An agent that runs a script from the ensemble's directory."""

    script: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class EnsembleAgent(AgentBase):
    """An agent that runs another ensemble."""

    ensemble: str


class Loop(Part):
    """An ensemble that is run until a condition on its deliverable holds."""

    body: str
    until: str
    """A condition on the members of an iteration's deliverable."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
    carry: str | None = None
    """The part of the deliverable that is the input of the next iteration; all of it by default."""


class LoopAgent(AgentBase):
    """An agent that runs an ensemble repeatedly."""

    loop: Loop


class DispatchAgent(AgentBase):
    """An agent that runs the ensemble named by an earlier agent."""

    dispatch: str


class ToolCall(Part):
    """The call of a tool of an installed server."""

    server: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    tool: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: dict[str, Any] | None = None
    """Arguments, with references in strings; by default the agent's input, which has to be an object."""


class McpAgent(AgentBase):
    """An agent that calls a tool of an installed server."""

    mcp: ToolCall


Agent = ModelAgent | ScriptAgent | EnsembleAgent | LoopAgent | DispatchAgent | McpAgent

KINDS: Final[dict[str, type[AgentBase]]] = {
    "script": ScriptAgent,
    "loop": LoopAgent,
    "dispatch": DispatchAgent,
    "ensemble": EnsembleAgent,
    "mcp": McpAgent,
    "model_profile": ModelAgent,
    "model": ModelAgent,
}
"""Keys that determine the kind of an agent: the first one that it has."""


def kind_of(agent: Agent) -> str:
    """Return ``model``, ``script``, ``ensemble``, ``loop``, ``dispatch`` or ``mcp``."""
    return _WORDS[type(agent)]


_WORDS: Final = {
    ModelAgent: "model",
    ScriptAgent: "script",
    EnsembleAgent: "ensemble",
    LoopAgent: "loop",
    DispatchAgent: "dispatch",
    McpAgent: "mcp",
}


def _agent(value: Any) -> Any:
    """Validate as the kind that its keys determine, so that faults refer to that kind."""
    if not isinstance(value, dict):
        return value
    kind = next((kind for key, kind in KINDS.items() if key in value), ModelAgent)
    return kind.model_validate(value)


class Budget(Part):
    """Limits for the usage of a run."""

    tokens: Annotated[int, Field(gt=0)] | None = None
    cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Ensemble(Part):
    """An ensemble."""

    name: EnsembleName
    description: str = ""
    default_task: str | None = None
    """The input for calls without one."""
    agents: Annotated[tuple[Annotated[Agent, BeforeValidator(_agent)], ...], Field(min_length=1, max_length=MAX_AGENTS)]
    on_failure: Literal["continue", "stop"] = "continue"
    """"continue" to run the other agents after a failure; agents that depend only on failed ones are always skipped."""
    max_concurrent: Annotated[int, Field(ge=1, le=64)] = 8
    """Maximum number of concurrent agents, including instances."""
    timeout_seconds: Seconds | None = None
    budget: Budget | None = None


class Profile(Part):
    """A model with its settings, under a name."""

    model: Annotated[str, Field(min_length=1)]
    provider: Provider
    system_prompt: str | None = None
    timeout_seconds: Seconds | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    cost_per_token: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Cost in dollars of input, and by default also of output."""
    cost_per_output_token: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    options: dict[str, Any] | None = None
    base_url: str | None = None


class Plexus(Part):
    """The Plexus server that is notified of runs."""

    enabled: bool = False
    context_id: str = ""
    server_command: str = ""


class Settings(BaseModel):
    """``config.yaml``, which may contain settings of other programs."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    model_profiles: dict[str, Profile] = Field(default_factory=dict)
    plexus: Plexus = Plexus()
