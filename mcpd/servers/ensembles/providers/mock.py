# SPDX-License-Identifier: LGPL-2.1-or-later
"""Deterministic fake model: its answers depend only on the input and the profile's options; no network is used."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.errors import InvalidConfig, LimitExceeded, McpdError, ServiceUnavailable
from mcpd.model.base import first_fault
from mcpd.servers.ensembles.engine.types import Completion
from mcpd.servers.ensembles.format.models import MAX_SECONDS
from mcpd.servers.ensembles.providers.http import fault

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Prompt

_REMEMBERED: Final = 10_000
"""Maximum number of prompts whose failures are counted at the same time."""


class Options(BaseModel):
    """The ``options`` of a profile of this provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    response: str | None = None
    """The answer, in which ``{input}`` is replaced by the input."""
    echo: bool = False
    """Answer with the input."""
    latency: Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)] = 0
    """Seconds before the answer, or the failure."""
    fail: Literal["rate-limited", "unavailable", "refused"] | None = None
    times: Annotated[int, Field(ge=1)] | None = None
    """How often a prompt fails before it is answered; then counting restarts. Without a number it always fails."""
    tokens: Annotated[int, Field(ge=0, lt=1 << 53)] | None = None
    """Number of tokens of the answer, all of them output; by default a quarter of the characters."""


class Mock:
    """The fake model, which counts the failures of each prompt."""

    def __init__(self) -> None:
        self._failed: OrderedDict[str, int] = OrderedDict()

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the answer. Raises the error in the options, or InvalidConfig if the options are invalid."""
        options = _options(prompt)
        await asyncio.sleep(options.latency)
        self._fail(prompt, options)
        text = _text(prompt, options)
        if options.tokens is not None:
            return Completion(text, 0, options.tokens, prompt.profile.model)
        asked = len(prompt.text) + len(prompt.system or "")
        return Completion(text, asked // 4, len(text) // 4, prompt.profile.model)

    def _fail(self, prompt: Prompt, options: Options) -> None:
        if options.fail is None:
            return
        if options.times is not None:
            who = _digest(prompt)
            failed = self._failed.pop(who, 0)
            if failed >= options.times:
                return
            self._failed[who] = failed + 1
            if len(self._failed) > _REMEMBERED:
                self._failed.popitem(last=False)
        raise _failure(options.fail)


def _options(prompt: Prompt) -> Options:
    try:
        return Options.model_validate(prompt.profile.options or {})
    except ValidationError as error:
        raise InvalidConfig(f"options of a model of provider mock: {first_fault(error)}") from error


def _failure(kind: Literal["rate-limited", "unavailable", "refused"]) -> McpdError:
    if kind == "rate-limited":
        return fault(LimitExceeded("the mock model is told to be rate-limited"), retryable=True, retry_after=0.0)
    if kind == "unavailable":
        return fault(ServiceUnavailable("the mock model is told to be unavailable"), retryable=True)
    return fault(McpdError("the mock model is told to refuse"), reason="refusal")


def _text(prompt: Prompt, options: Options) -> str:
    if options.response is not None:
        return options.response.replace("{input}", prompt.text)
    text = prompt.text if options.echo else f"answer {_digest(prompt)[:12]} of {prompt.profile.model}"
    return json.dumps({"answer": text}, ensure_ascii=False) if prompt.json and not options.echo else text


def _digest(prompt: Prompt) -> str:
    """Return a hash that is the same for the same prompt and profile, on every machine."""
    asked = [prompt.text, prompt.system, prompt.json, prompt.profile.model_dump(mode="json")]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
