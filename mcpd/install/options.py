# SPDX-License-Identifier: LGPL-2.1-or-later
"""Options of an installation, and the values given for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcpd.errors import InvalidArgument
from mcpd.store import config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.model import ConfigProperty, JsonValue, Manifest
    from mcpd.store import Configuration


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """Options of ``Install``, ``InstallManifest`` and ``Update``."""

    consent: bool = False
    """True if the caller has seen the permissions and consents to them."""
    config: dict[str, JsonValue] = field(default_factory=dict)
    """Values for properties that are not sensitive."""
    version: str = ""
    """Version (pypi, npm) or revision (git) to install instead of the entry's; updates then leave the server alone."""
    source: str = ""
    """URL of the registry to take the entry from; empty for the first registry that has the server."""
    dry_run: bool = False
    """Stop once the plan is known; the job ends as cancelled."""
    reinstall: bool = False
    """Install the same version again, or replace a server of a different origin."""
    check: bool = True
    """Run the health check; False installs a remote server that may be offline."""


class Answers:
    """The values given for an installation, checked against the manifest."""

    def __init__(self, manifest: Manifest | None = None, held: Configuration | None = None) -> None:
        """*manifest* declares the properties (None: the job takes no values); *held* are the values already set."""
        self._manifest = manifest
        self._held = held
        self._values: dict[str, JsonValue] = {}
        self._secrets: dict[str, JsonValue] = {}

    def set_config(self, changes: Mapping[str, JsonValue]) -> None:
        """Set values of properties that are not sensitive; None removes one.

        Raises :class:`~mcpd.errors.InvalidConfig` for an unknown or sensitive key or an invalid value.
        """
        for key, value in config.checked(self._known(), changes).items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def set_secret(self, key: str, value: str) -> None:
        """Set the value of a sensitive property; an empty one removes it.

        Raises the same errors as :meth:`set_config`.
        """
        checked = config.checked_secret(self._known(), key, value)
        if value:
            self._secrets[key] = checked
        else:
            self._secrets.pop(key, None)

    def take_over(self, earlier: Answers) -> None:
        """Move the values of *earlier*, given before all properties were known, into this object.

        Raises the same errors as :meth:`set_config`, including for properties that do not exist.
        """
        values, secrets = dict(earlier._values), dict(earlier._secrets)
        earlier.forget()
        if values:
            self.set_config(values)
        for key, value in secrets.items():
            self.set_secret(key, str(value))

    def missing(self) -> list[ConfigProperty]:
        """Return the required properties without a value."""
        if self._manifest is None:
            return []
        held = self._held.values if self._held else {}
        merged = config.merge(self._manifest, [held, self._values, self._secrets])
        return config.public(self._manifest, merged, self._held.secrets_set if self._held else ()).missing

    def given(self) -> dict[str, JsonValue]:
        """Return all values given, including secrets."""
        return {**self._values, **self._secrets}

    def forget(self) -> None:
        """Discard the values."""
        self._values.clear()
        self._secrets.clear()

    def _known(self) -> Manifest:
        if self._manifest is None:
            raise InvalidArgument("this job does not accept configuration")
        return self._manifest
