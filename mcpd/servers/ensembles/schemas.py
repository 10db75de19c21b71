# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments and results of the tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mcpd.servers.ensembles.editing.planning import Changes  # noqa: TC001 -- for pydantic
from mcpd.servers.ensembles.engine.types import MAX_RESPONSE, AgentStatus, RunStatus

Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=400,
        description="The ensemble's name, or PROJECT/NAME, user/NAME or shipped/NAME if several have the same name.",
    ),
]
ArtifactId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=400,
        description="ENSEMBLE/TIMESTAMP, as in invoke and llm-orc://artifacts/ENSEMBLE; ENSEMBLE/latest is the"
        " newest run.",
    ),
]
Format = Annotated[
    Literal["text", "json"],
    Field(description="The text of the answer: the deliverable, or the whole result as JSON."),
]
Streaming = Annotated[
    bool, Field(description="Send progress, and messages with each agent's response, during the run.")
]


class Arguments(BaseModel):
    """Base of the arguments of a tool. Optional fields have a default; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Invoke(Arguments):
    """Arguments of ``invoke``."""

    ensemble_name: Name
    input: Annotated[
        str,
        Field(max_length=MAX_RESPONSE, description="The input of the ensemble; default_task if empty."),
    ]
    output_format: Format = "json"
    streaming: Streaming = True
    plexus_context: Annotated[
        str | None,
        Field(max_length=400, description="The Plexus context for this run, instead of the configured one."),
    ] = None


class Resume(Arguments):
    """Arguments of ``resume_execution``."""

    artifact_id: ArtifactId
    output_format: Format = "json"
    streaming: Streaming = True


class Update(Arguments):
    """Arguments of ``update_ensemble``."""

    ensemble_name: Name
    changes: Annotated[Changes, Field(description="The changes, made in this order.")]
    dry_run: Annotated[bool, Field(description="Only show the changes.")] = True
    backup: Annotated[bool, Field(description="Save the previous file beside the changed one.")] = True


class Analyze(Arguments):
    """Arguments of ``analyze_execution``."""

    artifact_id: ArtifactId
    plexus_feedback: Annotated[bool, Field(description="Notify Plexus, if it is configured.")] = True


class Validate(Arguments):
    """Arguments of ``validate_ensemble``."""

    ensemble_name: Name
    check_tools: bool = Field(
        default=False, description="Start the servers whose tools it calls, and check that they have these tools"
    )


class Result(BaseModel):
    """Base of the ``structuredContent`` of a tool. Fields that are None are omitted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Feedback(Result):
    """Result of notifying Plexus."""

    sent: bool
    error: str | None = None
    answer: dict[str, Any] | None = None


class Refusal(Result):
    """The ``error``, in a form for programs."""

    error: Annotated[str, Field(description="The kind of error, such as Timeout.")]
    data: Annotated[dict[str, Any] | None, Field(description="file, line, output, provider and other details.")] = None


class Share(Result):
    """Result of an agent; the artifact also contains its times, its instances and what it ran."""

    status: AgentStatus
    response: str | None = None
    error: Annotated[str | None, Field(description="Why there is no response.")] = None
    fault: Refusal | None = None
    seconds: float
    model: str | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    attempts: Annotated[int | None, Field(description="Number of attempts, if more than one.")] = None
    fallback: Annotated[bool | None, Field(description="True if its fallback profile responded.")] = None
    reused: Annotated[bool | None, Field(description="True if the response is from an earlier run.")] = None
    cut: Annotated[bool | None, Field(description="True if the artifact has more of the response.")] = None


class Execution(Result):
    """Result of a run, and its artifact, which contains more."""

    ensemble: str
    status: RunStatus
    error: Annotated[str | None, Field(description="Why the run as a whole ended early.")] = None
    fault: Refusal | None = None
    artifact_id: str | None = None
    artifact: Annotated[str | None, Field(description="The URI of the resource with the whole run.")] = None
    not_kept: Annotated[str | None, Field(description="Why the run could not be stored completely.")] = None
    results: Annotated[dict[str, Share], Field(description="The result of each agent, by name.")]
    deliverable: Annotated[
        str | None, Field(description="The response of the last agent; for several, a JSON object of their responses.")
    ] = None
    seconds: float
    tokens: int
    cost_usd: float
    cut: Annotated[bool | None, Field(description="True if the deliverable or a response is truncated here.")] = None
    plexus: Feedback | None = None


class Finding(Result):
    """An error in an ensemble, or a possible one."""

    severity: Literal["error", "warning"]
    message: str
    file: str
    line: int | None = None
    agent: str | None = None


class Edit(Result):
    """Result of ``update_ensemble``: the changes made, or with ``dry_run`` the planned ones."""

    ensemble: str
    file: str
    dry_run: bool
    changed: bool
    diff: Annotated[str, Field(description="The changes, as a unified diff.")]
    backup: Annotated[str | None, Field(description="The file with the previous content.")] = None
    findings: list[Finding]


class Analysis(Result):
    """Result of ``analyze_execution``."""

    artifact_id: str
    ensemble: str
    status: str
    analysis: dict[str, Any]
    plexus: Feedback | None = None


class Validation(Result):
    """Result of ``validate_ensemble``."""

    ensemble: str
    file: str
    valid: bool
    agents: int | None = None
    findings: list[Finding]
