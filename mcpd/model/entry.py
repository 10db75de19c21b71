# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server as a registry describes it (seed 001 §4.1), in today's form and in the older ones."""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from mcpd.errors import InvalidManifest
from mcpd.model.base import Document, Strings, Text, as_list, check_id
from mcpd.model.legacy import modernise
from mcpd.model.property import ConfigProperty  # noqa: TC001 - pydantic reads the annotations
from mcpd.model.source import Source  # noqa: TC001 - pydantic reads the annotations
from mcpd.model.transport import Transport, TransportType, covers_linux

NETWORK: Final = "network"


def _checked_id(value: str) -> str:
    try:
        return check_id(value)
    except InvalidManifest as error:
        raise ValueError(error.message) from error


class Entry(Document):
    """Identity, origin and needs of a server."""

    id: Annotated[str, AfterValidator(_checked_id)]
    name: Text = ""
    summary: Text = ""
    version: Text = ""
    transports: Annotated[list[Transport], BeforeValidator(as_list)] = Field(default_factory=list)
    source: Source | None = None
    description: Text = ""
    author: JsonValue = ""
    homepage: Text = ""
    bug_url: Text = ""
    donation_url: Text = ""
    icon: Text = ""
    categories: Strings = Field(default_factory=list)
    license: JsonValue = ""
    release_date: Text = ""
    size: JsonValue = None
    screenshots: JsonValue = None
    changelog: JsonValue = None
    capabilities: JsonValue = None
    tools: JsonValue = None
    scope: Text = ""
    """The scope the registry proposes; in a manifest, the one the server is installed in (S-23)."""
    platforms: JsonValue = None
    permissions: Strings = Field(default_factory=list)
    configurable_properties: Annotated[list[ConfigProperty], BeforeValidator(as_list)] = Field(default_factory=list)
    manifest: Text = ""
    """URL of the whole manifest, where the registry holds a summary only."""
    integrity: JsonValue = None
    """Hashes of what ``manifest`` names."""

    @model_validator(mode="before")
    @classmethod
    def _older_forms(cls, data: Any) -> Any:
        return modernise(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _unique_keys(self) -> Self:
        keys = [p.key for p in self.configurable_properties]
        if len(keys) != len(set(keys)):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"configurableProperties: {twice!r} is there twice")
        return self

    @property
    def stdio(self) -> Transport | None:
        """The primary transport: the first of type ``stdio`` that is meant for Linux (S-32)."""
        return next((t for t in self.transports if t.type is TransportType.STDIO and t.runs_here), None)

    @property
    def remote(self) -> Transport | None:
        """How a server that runs elsewhere is reached; None for one that has a :attr:`stdio` transport."""
        if self.stdio is not None:
            return None
        return next((t for t in self.transports if t.is_remote and t.runs_here), None)

    @property
    def all_permissions(self) -> list[str]:
        """What is to be consented to: :attr:`permissions`, and what the way to a server elsewhere takes by itself."""
        implied = [NETWORK] if self.remote is not None and NETWORK not in self.permissions else []
        return [*implied, *self.permissions]

    @property
    def runs_here(self) -> bool:
        """Whether the server is meant for Linux."""
        return covers_linux(self.platforms)

    def property(self, key: str) -> ConfigProperty | None:
        """The configurable property *key*, if there is one."""
        return next((p for p in self.configurable_properties if p.key == key), None)
