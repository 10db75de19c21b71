# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asks the model of a profile, by whatever serves it, and lets neither keys nor requests go astray.

A project's profile, which anybody may have written, reaches only the APIs of :data:`DEFAULTS` and what the user's keys
or profiles name. Otherwise a cloned project could make this program ask any service of the local network, or
of the machine itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcpd.errors import ConfigMissing, InvalidConfig, McpdError, NotAuthorized
from mcpd.servers.ensembles.format.models import PROVIDERS
from mcpd.servers.ensembles.providers import anthropic, gemini, openai, sampling
from mcpd.servers.ensembles.providers.http import Call, Http
from mcpd.servers.ensembles.providers.keys import ANTHROPIC, GEMINI, OLLAMA, OPENAI, Base, Keys
from mcpd.servers.ensembles.providers.mock import Mock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from mcpd.servers.ensembles.engine.types import Completion, Prompt
    from mcpd.servers.ensembles.providers.sampling import Sampling

DEFAULTS: Final = {
    "openai-compatible": OPENAI,
    "openai": OPENAI,
    "ollama": OLLAMA,
    "anthropic": ANTHROPIC,
    "anthropic-api": ANTHROPIC,
    "google-gemini": GEMINI,
    "google": GEMINI,
}
"""Where the APIs of providers are, if the profile has no ``base_url``."""
VARIABLES: Final = {OPENAI: "OPENAI_API_KEY", ANTHROPIC: "ANTHROPIC_API_KEY", GEMINI: "GEMINI_API_KEY"}
"""The variables of the keys without which these answer nobody."""


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
        """*allowed* gives the base URLs of the user's own profiles.

        Raises :class:`~mcpd.errors.InvalidConfig` for keys that cannot be used, see :class:`.keys.Keys`.
        """
        self._keys = keys if isinstance(keys, Keys) else Keys(keys)
        self._sampling = sampling
        self._allowed = allowed
        self._http = Http()
        self._mock = Mock()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def complete(self, prompt: Prompt) -> Completion:
        """What the model answers. Raises what ``engine.types.Models`` says.

        ``data["retryable"]`` tells whether another try may help, and ``data["reason"]`` why a model gave no answer.
        """
        profile = prompt.profile
        try:
            kind = PROVIDERS[profile.provider]
            if kind == "mock":
                return await self._mock.complete(prompt)
            if kind == "mcp-sampling":
                return await sampling.complete(self._sampling, prompt)
            api, base = _APIS[kind], self._base(prompt)
            asked = api.call(prompt, base, self._key(base))
            return api.completion(asked, await self._http.post(asked))
        except McpdError as error:
            known = {"retryable": False, **(error.data or {})}
            error.data = {**known, "provider": profile.provider, "model": profile.model}
            raise

    def _base(self, prompt: Prompt) -> Base:
        """Where *prompt* goes. Raises :class:`~mcpd.errors.NotAuthorized` if its profile may not go there."""
        profile = prompt.profile
        if profile.base_url is None:
            return self._keys.base(DEFAULTS[profile.provider])
        base = Base.parse(profile.base_url, "base_url of the profile")
        if prompt.trusted or self._keys.key(base) is not None or any(known.covers(base) for known in self._known()):
            return base
        raise NotAuthorized(
            f"the project's profile names the base_url {base}, which you have not allowed; if you trust it, add a"
            " profile with this base_url to ~/.config/llm-orc/config.yaml"
        )

    def _known(self) -> list[Base]:
        known = [self._keys.base(default) for default in DEFAULTS.values()]
        for url in self._allowed():
            try:
                known.append(Base.parse(url, "base_url"))
            except InvalidConfig:
                # It allows nothing; what is wrong with it is said to whoever uses its profile.
                continue
        return known

    def _key(self, base: Base) -> str | None:
        if (fault := self._keys.fault(base)) is not None:
            raise InvalidConfig(fault)
        key = self._keys.key(base)
        variable = next((name for url, name in VARIABLES.items() if Base.parse(url, url).covers(base)), None)
        if key is None and variable is not None:
            # What does not say where it belongs may be this one.
            unclear = "".join(f"; {each.message}" for each in self._keys.faults if each.base is None)
            raise ConfigMissing(
                f"there is no key for {base}: set one with 'mcpctl secret set llm-orc {variable}', or {variable} in"
                f" the environment where llm-orc runs on its own{unclear}"
            )
        return key
