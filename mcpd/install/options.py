# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a caller may say about an installation."""

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
    """The caller has seen the permissions and agrees to them."""
    config: dict[str, JsonValue] = field(default_factory=dict)
    """Values for properties that are not sensitive."""
    version: str = ""
    """Version (pypi, npm) or revision (git) to install instead of the entry's; updates then leave the server alone."""
    source: str = ""
    """URL of the registry to take the entry from; empty for the first that has it."""
    dry_run: bool = False
    """End as cancelled once it is known what would be done."""
    reinstall: bool = False
    """Install again what is installed in this version already, or replace what came from elsewhere."""
    check: bool = True
    """Try the server before it is put into use; without, a remote server is installed that may be offline."""


class Answers:
    """Collects values, checks them, and says what is still missing."""

    def __init__(self, manifest: Manifest | None = None, held: Configuration | None = None) -> None:
        """*manifest* declares the properties (None: a job that takes no values); *held* is what is set already."""
        self._manifest = manifest
        self._held = held
        self._values: dict[str, JsonValue] = {}
        self._secrets: dict[str, JsonValue] = {}

    def set_config(self, changes: Mapping[str, JsonValue]) -> None:
        """Take values for properties that are not sensitive; None takes one back.

        Raises :class:`~mcpd.errors.InvalidConfig` for an unknown or sensitive key or a value that does not fit.
        """
        for key, value in config.checked(self._known(), changes).items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def set_secret(self, key: str, value: str) -> None:
        """Take the value of a sensitive property; an empty one takes it back. Errors as :meth:`set_config`."""
        checked = config.checked_secret(self._known(), key, value)
        if value:
            self._secrets[key] = checked
        else:
            self._secrets.pop(key, None)

    def take_over(self, earlier: Answers) -> None:
        """Take what was given as *earlier*, before it was known what is asked; *earlier* forgets it.

        Errors as :meth:`set_config`, also for what is not asked after all.
        """
        values, secrets = dict(earlier._values), dict(earlier._secrets)
        earlier.forget()
        if values:
            self.set_config(values)
        for key, value in secrets.items():
            self.set_secret(key, str(value))

    def missing(self) -> list[ConfigProperty]:
        """Required properties without a value."""
        if self._manifest is None:
            return []
        held = self._held.values if self._held else {}
        merged = config.merge(self._manifest, [held, self._values, self._secrets])
        return config.public(self._manifest, merged, self._held.secrets_set if self._held else ()).missing

    def given(self) -> dict[str, JsonValue]:
        """All values that were given, secrets among them."""
        return {**self._values, **self._secrets}

    def forget(self) -> None:
        """Drop the values."""
        self._values.clear()
        self._secrets.clear()

    def _known(self) -> Manifest:
        if self._manifest is None:
            raise InvalidArgument("this job takes no configuration")
        return self._manifest
