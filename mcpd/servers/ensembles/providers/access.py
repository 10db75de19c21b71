# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where models may be asked, and with which keys.

A project's profile, which anybody may have written, reaches only the APIs of :data:`DEFAULTS` and what the user's keys
or profiles name. Otherwise a cloned project could make this program ask any service of the local network, or
of the machine itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.errors import ConfigMissing, InvalidConfig, McpdError, NotAuthorized
from mcpd.servers.ensembles.providers.keys import ANTHROPIC, GEMINI, OLLAMA, OPENAI, Base, Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mcpd.servers.ensembles.format.models import Profile

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


class Access:
    """Where models may be asked, and with which keys."""

    def __init__(self, keys: Keys, allowed: Callable[[], Collection[str]] = tuple) -> None:
        """*allowed* gives the base URLs of the user's own profiles."""
        self._keys = keys
        self._allowed = allowed

    def fault(self, profile: Profile, *, trusted: bool) -> str | None:
        """Return what keeps the model of *profile* from being asked; see :meth:`base`."""
        if profile.provider not in DEFAULTS:
            return None
        try:
            self.key(self.base(profile, trusted=trusted))
        except McpdError as fault:
            return fault.message
        return None

    def base(self, profile: Profile, *, trusted: bool) -> Base:
        """Return where the model of *profile* is, whose ``base_url`` is the user's own word if *trusted*.

        Raises :class:`~mcpd.errors.NotAuthorized` if nothing may be sent there.
        """
        if profile.base_url is None:
            return self._keys.base(DEFAULTS[profile.provider])
        base = Base.parse(profile.base_url, "base_url of the profile")
        if trusted or self._keys.key(base) is not None or any(known.covers(base) for known in self._known()):
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

    def key(self, base: Base) -> str | None:
        """Return the key that is sent to *base*. Raises :class:`~mcpd.errors.McpdError` if one is missing or wrong."""
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
