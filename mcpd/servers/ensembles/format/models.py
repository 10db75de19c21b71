# SPDX-License-Identifier: LGPL-2.1-or-later
"""What may stand in an ensemble, a profile and a project's ``config.yaml``; unknown keys are refused in the first two.

The format is llm-orc's, with ``mcp``, ``retries``, ``budget``, ``on_failure`` and ``max_concurrent`` added.
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
"""The names of providers, and the API that each speaks."""

EnsembleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$")]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Provider = Literal[
    "openai-compatible", "openai", "ollama", "anthropic", "anthropic-api", "google-gemini", "google", "mcp-sampling",
    "mock",
]  # fmt: skip


def _listed(value: Any) -> Any:
    """*value*, of which there may be several."""
    return [value] if isinstance(value, (str, dict)) else value


def _dependency(value: Any) -> Any:
    """The name, on its own or as ``{agent_name: …}``."""
    if not isinstance(value, dict) or "agent_name" not in value:
        return value
    if len(value) > 1:
        raise ValueError("a dependency has no key but agent_name; a condition is the agent's own, under when")
    return value["agent_name"]


class Part(BaseModel):
    """A mapping of the format, which has no other keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())


class AgentBase(Part):
    """What every agent may have."""

    name: AgentName
    depends_on: Annotated[tuple[Annotated[AgentName, BeforeValidator(_dependency)], ...], BeforeValidator(_listed)] = ()
    fan_out: bool = False
    """Run once for each element of what it depends on, which has to be a list; needs ``depends_on``."""
    input_key: str | None = None
    """The member of the first dependency's response that is the input."""
    input_scope: Literal["all", "dependencies", "base"] = "all"
    """What a model sees: the run's input and what it depends on, only the latter, or only the former."""
    when: str | None = None
    """A condition, see :mod:`.references`; the agent is skipped if it does not hold."""
    timeout_seconds: Seconds | None = None
    retries: Annotated[int, Field(ge=0, le=10)] | None = None
    """How often what failed for a while is tried again; twice for models if nothing is said."""
    on_failure: Literal["continue", "stop"] | None = None
    """What its failure means for the rest of the run; the ensemble's own policy if it says nothing."""

    @model_validator(mode="after")
    def _fans_out_over_something(self) -> AgentBase:
        if self.fan_out and not self.depends_on:
            raise ValueError("fan_out needs depends_on: it runs the agent for each element of a dependency's response")
        if self.input_key is not None and not self.depends_on:
            raise ValueError("input_key needs depends_on: it names a member of a dependency's response")
        return self


class ModelAgent(AgentBase):
    """Asks a model."""

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
    """Runs a script of the ensemble's directory."""

    script: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class EnsembleAgent(AgentBase):
    """Runs another ensemble."""

    ensemble: str


class Loop(Part):
    """An ensemble that is run until a condition on its deliverable holds."""

    body: str
    until: str
    """A condition over the members of the deliverable of an iteration."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
    carry: str | None = None
    """What of the deliverable is the input of the next iteration; all of it if this says nothing."""


class LoopAgent(AgentBase):
    """Runs an ensemble repeatedly."""

    loop: Loop


class DispatchAgent(AgentBase):
    """Runs the ensemble that an earlier agent has named."""

    dispatch: str


class ToolCall(Part):
    """A tool of an installed server."""

    server: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    tool: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: dict[str, Any] | None = None
    """With references in strings; the agent's input, which has to be an object, if it says nothing."""


class McpAgent(AgentBase):
    """Calls a tool of an installed server."""

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
"""What tells the kind of an agent: the first of these keys that it has."""


def kind_of(agent: Agent) -> str:
    """One of ``model``, ``script``, ``ensemble``, ``loop``, ``dispatch`` and ``mcp``."""
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
    """Validate by the kind that its keys tell, so that a fault is the fault of that kind."""
    if not isinstance(value, dict):
        return value
    kind = next((kind for key, kind in KINDS.items() if key in value), ModelAgent)
    return kind.model_validate(value)


class Budget(Part):
    """What a run may use."""

    tokens: Annotated[int, Field(gt=0)] | None = None
    cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Ensemble(Part):
    """An ensemble."""

    name: EnsembleName
    description: str = ""
    default_task: str | None = None
    """The input where a call has none."""
    agents: Annotated[tuple[Annotated[Agent, BeforeValidator(_agent)], ...], Field(min_length=1, max_length=MAX_AGENTS)]
    on_failure: Literal["continue", "stop"] = "continue"
    """Whether other agents run on when one has failed; what depends on failed ones alone is skipped in any case."""
    max_concurrent: Annotated[int, Field(ge=1, le=64)] = 8
    """How many agents, and instances of those that fan out, run at the same time."""
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
    """In dollars, of input; and of output, too, where nothing else is said."""
    cost_per_output_token: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    options: dict[str, Any] | None = None
    base_url: str | None = None


class Plexus(Part):
    """The knowledge graph that hears of runs."""

    enabled: bool = False
    context_id: str = ""
    server_command: str = ""


class Settings(BaseModel):
    """``config.yaml``, of which other programs have their own parts."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    model_profiles: dict[str, Profile] = Field(default_factory=dict)
    plexus: Plexus = Plexus()
