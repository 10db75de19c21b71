# SPDX-License-Identifier: LGPL-2.1-or-later
"""The chat completions API of OpenAI, which Ollama, llama.cpp, vLLM, LM Studio and others also support.

https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

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
    with_json,
)
from mcpd.servers.ensembles.providers.keys import OPENAI

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Prompt
    from mcpd.servers.ensembles.providers.keys import Base

_NO_ANSWERS: Final = frozenset({"content_filter", "tool_calls", "function_call"})


class _Part(Answer):
    type: Name = ""
    text: Text = ""


class _Message(Answer):
    content: Text | Annotated[list[_Part], LAX_OBJECTS] | None = None
    refusal: Text | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if part.type == "text")
        return self.content or ""


class _Choice(Answer):
    message: _Message
    finish_reason: Name = ""


class _Usage(Answer):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class _Completion(Answer):
    choices: list[_Choice]
    model: Name = ""
    usage: Annotated[_Usage, LAX_OBJECT] = _Usage()


def call(prompt: Prompt, base: Base, key: str | None) -> Call:
    """Return the request for *prompt*."""
    profile, system = prompt.profile, prompt.system
    body = options(profile)
    if prompt.json:
        body["response_format"] = {"type": "json_object"}
        # The API requires the word in the prompt.
        if "json" not in f"{system} {prompt.text}".lower():
            system = with_json(system)
    if profile.temperature is not None:
        body["temperature"] = profile.temperature
    if profile.max_tokens is not None:
        # OpenAI's newer models accept only the former, most other servers only the latter.
        body["max_completion_tokens" if str(base) == OPENAI else "max_tokens"] = profile.max_tokens
    messages = [{"role": "user", "content": prompt.text}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return Call(f"{base}/chat/completions", {**body, "model": profile.model, "messages": messages}, headers, key)


def completion(asked: Call, answer: Any) -> Completion:
    """Return the completion in *answer* to *asked*. Raises :class:`~mcpd.errors.McpdError`."""
    found = parsed(_Completion, answer, asked)
    if not found.choices:
        raise unusable(asked, "it has no choices")
    choice = found.choices[0]
    if choice.message.refusal:
        raise refused(asked, "refusal", choice.message.refusal)
    if choice.finish_reason in _NO_ANSWERS:
        raise refused(asked, choice.finish_reason)
    return Completion(choice.message.text, found.usage.prompt_tokens, found.usage.completion_tokens, found.model)
