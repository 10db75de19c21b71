# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tools take and say (L-7…L-10, L-17, L-18); what is named in seed 002 has its names and defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mcpd.servers.ensembles.editing.changes import Changes  # noqa: TC001 -- for pydantic
from mcpd.servers.ensembles.engine.types import MAX_RESPONSE

Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=400,
        description="The ensemble's name. PROJECT/NAME, user/NAME or shipped/NAME is the one of these where several"
        " have the name.",
    ),
]
ArtifactId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=400,
        description="ENSEMBLE/TIMESTAMP, as invoke and llm-orc://artifacts/ENSEMBLE say it.",
    ),
]
Format = Annotated[
    Literal["text", "json"],
    Field(description="What the text of the answer is: the deliverable, or all of the result as JSON."),
]
Streaming = Annotated[
    bool, Field(description="Whether progress, and messages with each agent's response, are sent on the way.")
]


class Arguments(BaseModel):
    """What a tool takes. A field that may be left out has a default; nothing else is accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Invoke(Arguments):
    """``invoke`` (L-7)."""

    ensemble_name: Name
    input: Annotated[
        str,
        Field(max_length=MAX_RESPONSE, description="What the ensemble works on; its default_task if this is empty."),
    ]
    output_format: Format = "json"
    streaming: Streaming = True
    plexus_context: Annotated[
        str | None,
        Field(max_length=400, description="The context of Plexus that hears of the run, instead of the configured."),
    ] = None


class Resume(Arguments):
    """``resume_execution``."""

    artifact_id: ArtifactId
    output_format: Format = "json"
    streaming: Streaming = True


class Update(Arguments):
    """``update_ensemble`` (L-8)."""

    ensemble_name: Name
    changes: Annotated[Changes, Field(description="What is to be changed, in this order.")]
    dry_run: Annotated[bool, Field(description="Only say what would change.")] = True
    backup: Annotated[bool, Field(description="Keep the file as it was beside the changed one.")] = True


class Analyze(Arguments):
    """``analyze_execution`` (L-9)."""

    artifact_id: ArtifactId
    plexus_feedback: Annotated[bool, Field(description="Whether Plexus hears of it, if it is configured.")] = True


class Validate(Arguments):
    """``validate_ensemble`` (L-10)."""

    ensemble_name: Name


class Result(BaseModel):
    """What a tool says in ``structuredContent``. A field that is None is left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Feedback(Result):
    """What became of telling Plexus (L-12)."""

    sent: bool
    error: str | None = None
    answer: dict[str, Any] | None = None


class Execution(Result):
    """What became of a run: what its artifact holds, and how to find that."""

    model_config = ConfigDict(extra="allow", frozen=True)

    ensemble: str
    status: Literal["completed", "completed_with_errors", "failed", "cancelled"]
    artifact_id: str | None = None
    artifact: Annotated[str | None, Field(description="The URI of the resource that has all of it.")] = None
    not_kept: Annotated[str | None, Field(description="Why the run could not be kept, or not as a whole.")] = None
    input: str
    results: Annotated[
        dict[str, dict[str, Any]],
        Field(description="By agent: status, response, error, usage and times."),
    ]
    deliverable: Annotated[
        str | None, Field(description="The response of the last agent; of several, an object of theirs as JSON.")
    ] = None
    metadata: dict[str, Any]
    cut: Annotated[
        bool | None, Field(description="Whether responses are cut here, as all of them are too long together.")
    ] = None
    plexus: Feedback | None = None


class Finding(Result):
    """Something that is wrong with an ensemble, or may be."""

    severity: Literal["error", "warning"]
    message: str
    file: str
    line: int | None = None
    agent: str | None = None


class Edit(Result):
    """What ``update_ensemble`` has done, or would do."""

    ensemble: str
    file: str
    dry_run: bool
    changed: bool
    diff: Annotated[str, Field(description="The change, as diff -u shows it.")]
    backup: Annotated[str | None, Field(description="The file that holds what was there before.")] = None
    findings: list[Finding]


class Analysis(Result):
    """What ``analyze_execution`` says."""

    artifact_id: str
    ensemble: str
    status: str
    analysis: dict[str, Any]
    plexus: Feedback | None = None


class Validation(Result):
    """What ``validate_ensemble`` says."""

    ensemble: str
    file: str
    valid: bool
    agents: int | None = None
    findings: list[Finding]
