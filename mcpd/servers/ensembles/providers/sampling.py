# SPDX-License-Identifier: LGPL-2.1-or-later
"""The model of the client that calls this server (``sampling/createMessage`` of MCP)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mcpd.errors import NotSupported
from mcpd.servers.ensembles.providers.http import DEFAULT_MAX_TOKENS, with_json

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Completion, Prompt


class Sampling(Protocol):
    """Requests completions from the client."""

    async def sample(self, system: str | None, text: str, max_tokens: int, temperature: float | None) -> Completion:
        """Return the answer of the client's model to *text*, of at most *max_tokens* tokens.

        Raises :class:`~mcpd.errors.NotSupported` if this client offers no sampling, and McpdError.
        """


async def complete(sampling: Sampling | None, prompt: Prompt) -> Completion:
    """Request a completion from *sampling*. Raises :class:`~mcpd.errors.NotSupported` if it is None, and its errors."""
    if sampling is None:
        raise NotSupported(
            "provider mcp-sampling asks the model of the client that calls, and there is none here; use a profile of"
            " another provider, or a client that offers sampling"
        )
    profile = prompt.profile
    system = with_json(prompt.system) if prompt.json else prompt.system
    return await sampling.sample(system, prompt.text, profile.max_tokens or DEFAULT_MAX_TOKENS, profile.temperature)
