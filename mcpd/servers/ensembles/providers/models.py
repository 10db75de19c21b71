# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completions by the model of a profile, whichever provider serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcpd.errors import McpdError
from mcpd.servers.ensembles.format.models import PROVIDERS
from mcpd.servers.ensembles.providers import anthropic, gemini, openai, sampling
from mcpd.servers.ensembles.providers.http import Call, Http
from mcpd.servers.ensembles.providers.keys import Access, Base, Keys
from mcpd.servers.ensembles.providers.mock import Mock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from mcpd.servers.ensembles.engine.types import Completion, Prompt
    from mcpd.servers.ensembles.providers.sampling import Sampling


class _Api(NamedTuple):
    call: Callable[[Prompt, Base, str | None], Call]
    completion: Callable[[Call, Any], Completion]


_APIS: Final = {
    "openai-compatible": _Api(openai.call, openai.completion),
    "anthropic": _Api(anthropic.call, anthropic.completion),
    "google-gemini": _Api(gemini.call, gemini.completion),
}


class HttpModels:
    """Models behind HTTP, the client's own, and the mock; implements ``engine.types.Models``."""

    def __init__(
        self,
        keys: Mapping[str, str],
        sampling: Sampling | None,
        allowed: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Use *keys*; *allowed* returns the base URLs of the user's own profiles.

        Raises :class:`~mcpd.errors.InvalidConfig` for invalid keys, see :class:`.keys.Keys`.
        """
        self.access = Access(keys if isinstance(keys, Keys) else Keys(keys), allowed)
        self._sampling = sampling
        self._http = Http()
        self._mock = Mock()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the answer of the model. Raises the errors of ``engine.types.Models``.

        ``data["retryable"]`` is True if a retry may help, and ``data["reason"]`` is why a model did not answer.
        """
        profile = prompt.profile
        try:
            kind = PROVIDERS[profile.provider]
            if kind == "mock":
                return await self._mock.complete(prompt)
            if kind == "mcp-sampling":
                return await sampling.complete(self._sampling, prompt)
            api, base = _APIS[kind], self.access.base(profile, trusted=prompt.trusted)
            asked = api.call(prompt, base, self.access.key(base))
            return api.completion(asked, await self._http.post(asked))
        except McpdError as error:
            known = {"retryable": False, **(error.data or {})}
            error.data = {**known, "provider": profile.provider, "model": profile.model}
            raise
