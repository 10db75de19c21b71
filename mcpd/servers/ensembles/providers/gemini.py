# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ``generateContent`` API of Google's Gemini: https://ai.google.dev/api/generate-content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

from pydantic import Field

from mcpd.servers.ensembles.engine.types import Completion
from mcpd.servers.ensembles.providers.http import (
    LAX_OBJECT,
    LAX_OBJECTS,
    Answer,
    Call,
    Count,
    Name,
    Text,
    options,
    parsed,
    refused,
    unusable,
)

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Prompt
    from mcpd.servers.ensembles.providers.keys import Base

_ANSWERS: Final = frozenset({"", "FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS"})


class _Part(Answer):
    text: Text = ""
    thought: Any = False
    """True if it is a thought of the model, not its answer."""


class _Content(Answer):
    parts: Annotated[tuple[_Part, ...], LAX_OBJECTS] = ()


class _Candidate(Answer):
    content: Annotated[_Content, LAX_OBJECT] = _Content()
    reason: Name = Field(default="", alias="finishReason")


class _Feedback(Answer):
    reason: Name = Field(default="", alias="blockReason")


class _Usage(Answer):
    prompt: Count = Field(default=0, alias="promptTokenCount")
    candidates: Count = Field(default=0, alias="candidatesTokenCount")
    thoughts: Count = Field(default=0, alias="thoughtsTokenCount")


class _Response(Answer):
    candidates: tuple[_Candidate, ...] = ()
    feedback: Annotated[_Feedback, LAX_OBJECT] = Field(default=_Feedback(), alias="promptFeedback")
    usage: Annotated[_Usage, LAX_OBJECT] = Field(default=_Usage(), alias="usageMetadata")
    model: Name = Field(default="", alias="modelVersion")


def call(prompt: Prompt, base: Base, key: str | None) -> Call:
    """Return the request for *prompt*; the profile's options are its ``generationConfig``."""
    profile = prompt.profile
    config = options(profile)
    if profile.temperature is not None:
        config["temperature"] = profile.temperature
    if profile.max_tokens is not None:
        config["maxOutputTokens"] = profile.max_tokens
    if prompt.json:
        config["responseMimeType"] = "application/json"
    body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": prompt.text}]}]}
    if prompt.system:
        body["systemInstruction"] = {"parts": [{"text": prompt.system}]}
    if config:
        body["generationConfig"] = config
    model = quote(profile.model.removeprefix("models/"), safe="")
    # The key is sent in a header, as URLs end up in logs.
    headers = {"x-goog-api-key": key} if key else {}
    return Call(f"{base}/v1beta/models/{model}:generateContent", body, headers, key)


def completion(asked: Call, answer: Any) -> Completion:
    """Return the completion in *answer* to *asked*. Raises :class:`~mcpd.errors.McpdError`."""
    found = parsed(_Response, answer, asked)
    if found.feedback.reason:
        raise refused(asked, found.feedback.reason)
    if not found.candidates:
        raise unusable(asked, "it has no candidates")
    candidate, usage = found.candidates[0], found.usage
    if candidate.reason not in _ANSWERS:
        raise refused(asked, candidate.reason)
    text = "".join(part.text for part in candidate.content.parts if part.thought is not True)
    return Completion(text, usage.prompt, usage.candidates + usage.thoughts, found.model)
