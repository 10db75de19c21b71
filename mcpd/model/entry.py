# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries: servers as registries describe them, in the current form and older ones."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, JsonValue, model_validator

from mcpd.errors import InvalidManifest
from mcpd.model.base import MAX_LISTED, Document, Strings, Text, as_list, at_most, check_id, printable
from mcpd.model.legacy import modernise
from mcpd.model.property import ConfigProperty  # noqa: TC001 - pydantic reads the annotations
from mcpd.model.source import Source  # noqa: TC001 - pydantic reads the annotations
from mcpd.model.transport import Transport, TransportType, covers_linux

NETWORK: Final = "network"
MAX_PROPERTIES: Final = 512
"""Maximum number of configurable properties of one entry."""


def _checked_id(value: str) -> str:
    try:
        return check_id(value)
    except InvalidManifest as error:
        raise ValueError(error.message) from error


Few = Annotated[JsonValue, BeforeValidator(at_most(MAX_LISTED))]
FewStrings = Annotated[Strings, BeforeValidator(at_most(MAX_LISTED))]


def _remote_fault(transport: Transport) -> str:
    try:
        transport.check_remote()
    except InvalidManifest as error:
        return error.message
    return ""


class Entry(Document):
    """Description of one server in a registry: its identity, origin and requirements."""

    id: Annotated[str, AfterValidator(_checked_id)]
    name: Text = ""
    summary: Text = ""
    version: Text = ""
    transports: Annotated[
        list[Transport], FailFast(), BeforeValidator(at_most(MAX_LISTED)), BeforeValidator(as_list)
    ] = Field(default_factory=list)
    source: Source | None = None
    description: Text = ""
    author: Few = ""
    homepage: Text = ""
    bug_url: Text = ""
    donation_url: Text = ""
    icon: Text = ""
    categories: FewStrings = Field(default_factory=list)
    license: Few = ""
    release_date: Text = ""
    size: JsonValue = None
    screenshots: Few = None
    changelog: Few = None
    capabilities: JsonValue = None
    tools: JsonValue = None
    scope: Text = ""
    """Scope proposed by the registry; in a manifest, the scope that the server is installed in."""
    platforms: Few = None
    permissions: FewStrings = Field(default_factory=list)
    configurable_properties: Annotated[
        list[ConfigProperty], FailFast(), BeforeValidator(at_most(MAX_PROPERTIES)), BeforeValidator(as_list)
    ] = Field(default_factory=list)
    manifest: Text = ""
    """URL of the full manifest, if the registry only has a summary."""
    integrity: JsonValue = None
    """Hashes of the file at the URL in ``manifest``."""
    unsupported_reason: Text = ""
    """Reason why the entry cannot be installed, set by the conversion from another format."""

    @model_validator(mode="before")
    @classmethod
    def _older_forms(cls, data: Any) -> Any:
        return modernise(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.name:
            # Show the id instead, but do not mark the name as set.
            self.__dict__["name"] = self.id
            self.__pydantic_fields_set__.discard("name")
        seen: set[str] = set()
        for item in self.configurable_properties:
            if item.key in seen:
                raise ValueError(f"configurableProperties: {item.key!r} occurs twice")
            seen.add(item.key)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for the file; it always contains a name."""
        return {**super().to_json(), "name": self.name}

    @cached_property
    def stdio(self) -> Transport | None:
        """The primary transport: the first of type ``stdio`` for Linux."""
        return next((t for t in self.transports if t.type is TransportType.STDIO and t.runs_here), None)

    @cached_property
    def remote(self) -> Transport | None:
        """The transport of a remote server; None for a server with a :attr:`stdio` transport."""
        if self.stdio is not None:
            return None
        return next((t for t in self.transports if t.is_remote and t.runs_here), None)

    @property
    def all_permissions(self) -> list[str]:
        """Permissions that require consent: :attr:`permissions`, and ``network`` for a remote server."""
        implied = [NETWORK] if self.remote is not None and NETWORK not in self.permissions else []
        return [*implied, *self.permissions]

    @property
    def is_summary(self) -> bool:
        """True if the entry cannot be installed until the manifest at its URL is fetched."""
        return bool(self.manifest) and not self.transports and self.source is None

    @property
    def is_for_system(self) -> bool:
        """True if only the system instance can install the server."""
        runtime = (self.model_extra or {}).get("runtime")
        return self.scope == "system" or (isinstance(runtime, dict) and runtime.get("runAs") == "system")

    @property
    def runs_here(self) -> bool:
        """True if the server supports Linux."""
        return covers_linux(self.platforms)

    @property
    def unsupported(self) -> str:
        """Reason why mcpd cannot install the entry; empty if it can."""
        if not self.runs_here:
            return f"it does not run on Linux (platforms: {printable(str(self.platforms))})"
        if self.unsupported_reason:
            return printable(self.unsupported_reason)
        return "" if self.is_summary else self._transport_fault()

    def _transport_fault(self) -> str:
        if self.remote is not None:
            return _remote_fault(self.remote)
        if self.transports and self.stdio is None:
            return "none of its transports is of a known type and for Linux"
        if self.source is None:
            return "" if self.transports else "it has neither a source nor a transport"
        return self.source.unsupported

    def property(self, key: str) -> ConfigProperty | None:
        """Return the configurable property *key*; None if there is none."""
        return next((p for p in self.configurable_properties if p.key == key), None)
