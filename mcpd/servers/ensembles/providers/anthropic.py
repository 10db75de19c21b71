# SPDX-License-Identifier: LGPL-2.1-or-later
"""The messages API of Anthropic: https://platform.claude.com/docs/en/api/messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from mcpd.servers.ensembles.engine.types import Completion
from mcpd.servers.ensembles.providers.http import (
    DEFAULT_MAX_TOKENS,
    LAX_OBJECT,
    Answer,
    Call,
    Count,
    Name,
    Text,
    options,
    parsed,
    refused,
    with_json,
)

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Prompt
    from mcpd.servers.ensembles.providers.keys import Base

VERSION: Final = "2023-06-01"
_NO_ANSWERS: Final = frozenset({"refusal", "tool_use"})


class _Block(Answer):
    type: Name = ""
    text: Text = ""


class _Usage(Answer):
    input_tokens: Count = 0
    cache_creation_input_tokens: Count = 0
    cache_read_input_tokens: Count = 0
    output_tokens: Count = 0


class _Message(Answer):
    content: list[_Block]
    stop_reason: Name = ""
    model: Name = ""
    usage: Annotated[_Usage, LAX_OBJECT] = _Usage()


def call(prompt: Prompt, base: Base, key: str | None) -> Call:
    """Return the request for *prompt*."""
    profile = prompt.profile
    body = {"max_tokens": DEFAULT_MAX_TOKENS, **options(profile)}
    if profile.max_tokens is not None:
        body["max_tokens"] = profile.max_tokens
    if profile.temperature is not None:
        body["temperature"] = profile.temperature
    if system := with_json(prompt.system) if prompt.json else prompt.system:
        body["system"] = system
    body |= {"model": profile.model, "messages": [{"role": "user", "content": prompt.text}]}
    headers = {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}
    return Call(f"{base}/v1/messages", body, headers, key)


def completion(asked: Call, answer: Any) -> Completion:
    """Return the completion in *answer* to *asked*. Raises :class:`~mcpd.errors.McpdError`."""
    found = parsed(_Message, answer, asked)
    if found.stop_reason in _NO_ANSWERS:
        raise refused(asked, found.stop_reason)
    usage = found.usage
    # Tokens read from and written to the cache are not included in the first number.
    taken = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    text = "".join(block.text for block in found.content if block.type == "text")
    return Completion(text, taken, usage.output_tokens, found.model)
