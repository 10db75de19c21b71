# SPDX-License-Identifier: LGPL-2.1-or-later
"""Profiles: which of the installed servers a client's configuration holds, and how it reaches them."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, ValidationError, field_validator

from mcpd.clients.errors import ProfileNotFound
from mcpd.clients.families import VARIABLE, DataFiles, Line, Part, packaged
from mcpd.clients.payload import BRIDGE
from mcpd.errors import InvalidConfig
from mcpd.model import printable
from mcpd.model.base import check_json, first_fault
from mcpd.paths import Paths, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mcpd.clients.families import Family

LayerName: TypeAlias = Literal["user", "system", "vendor"]

_Glob = Annotated[str, Field(min_length=1, max_length=200)]


class _Description(Part):
    """A whole data file."""

    name: Line
    description: Annotated[str, Field(max_length=500)] = ""
    clients: tuple[_Glob, ...] = ()
    include: tuple[_Glob, ...] = ("*",)
    exclude: tuple[_Glob, ...] = ()
    layers: Annotated[tuple[LayerName, ...], Field(min_length=1)] = ("user", "system")
    scripts: bool = True
    transport: Literal["stdio", "http"] = "stdio"
    url: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:\[\]_-]+(/[!-~]*)?$")] = BRIDGE
    variables: dict[_Glob, tuple[str, ...]] = Field(default_factory=dict)

    @field_validator("variables")
    @classmethod
    def _names(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for glob, names in value.items():
            for name in names:
                if not VARIABLE.fullmatch(name):
                    raise ValueError(f"{glob}: {name!a} cannot be the name of a variable: use A-Z a-z 0-9 _")
        return value


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile."""

    id: str
    name: str
    description: str
    clients: tuple[str, ...]
    """Globs over the ids of client families that have it although they do not name it."""
    include: tuple[str, ...]
    """Globs over the ids of servers, of which one has to match."""
    exclude: tuple[str, ...]
    """Such globs, of which none may match."""
    layers: tuple[LayerName, ...]
    """Who installed the servers."""
    scripts: bool
    """Whether script servers are among them."""
    transport: Literal["stdio", "http"]
    url: str
    """The base of the bridge's URLs, without a slash at its end; :data:`BRIDGE` if it is the user's own."""
    variables: Mapping[str, tuple[str, ...]]
    """By glob over ids, the variables of its environment that the client passes on to the server."""

    @classmethod
    def parse(cls, profile_id: str, data: Mapping[str, object], origin: str) -> Profile:
        """The profile that *data*, the TOML read from *origin*, describes.

        Raises :class:`~mcpd.errors.InvalidConfig` that names *origin*, the field and the fault.
        """
        try:
            check_json(data)
            given = _Description.model_validate(data)
        except ValidationError as error:
            raise InvalidConfig(f"{origin}: {first_fault(error)}") from error
        except ValueError as error:
            raise InvalidConfig(f"{origin}: {error}") from error
        return cls(
            id=profile_id,
            name=given.name,
            description=given.description,
            clients=given.clients,
            include=given.include,
            exclude=given.exclude,
            layers=given.layers,
            scripts=given.scripts,
            transport=given.transport,
            url=given.url.rstrip("/"),
            variables=given.variables,
        )

    def takes(self, server_id: str) -> bool:
        """Whether the globs let *server_id* in."""
        return any(fnmatchcase(server_id, glob) for glob in self.include) and not any(
            fnmatchcase(server_id, glob) for glob in self.exclude
        )

    def variables_of(self, server_id: str) -> list[str]:
        """The variables that are passed on to *server_id*, by name, each once."""
        return sorted(
            {name for glob, names in self.variables.items() if fnmatchcase(server_id, glob) for name in names}
        )


class Profiles:
    """All profiles."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """*directories* by rising precedence; one that is missing is empty."""
        self._files = DataFiles(directories, Profile.parse, "profile")

    @classmethod
    def of(cls, paths: Paths, scope: Scope) -> Profiles:
        """Those of *scope*."""
        own = [paths.user.client_profiles] if scope is Scope.USER else []
        return cls([packaged("client-profiles"), paths.vendor_profiles, paths.system.client_profiles, *own])

    @property
    def problems(self) -> list[str]:
        """One line for every file that cannot be used."""
        return list(self._files.read()[1])

    def available(self, family: Family) -> list[str]:
        """The profiles of *family* in its order, then those that claim it, by id."""
        return self.by_family([family])[family.id]

    def by_family(self, families: Iterable[Family]) -> dict[str, list[str]]:
        """The same of many families, by their ids."""
        found, _ = self._files.read()
        return {family.id: [profile.id for profile in _of(family, found)] for family in families}

    def get(self, family: Family, profile_id: str) -> Profile:
        """The profile *profile_id* of *family*.

        Raises :class:`~mcpd.clients.errors.ProfileNotFound`, which knows the others.
        """
        found = _of(family, self._files.read()[0])
        for profile in found:
            if profile.id == profile_id:
                return profile
        raise ProfileNotFound(printable(profile_id), family.id, [profile.id for profile in found])


def _of(family: Family, found: Mapping[str, Profile]) -> list[Profile]:
    """Those of *found* that *family* has."""
    named = dict.fromkeys(profile_id for profile_id in family.profiles if profile_id in found)
    claims = sorted(
        profile.id
        for profile in found.values()
        if profile.id not in named and any(fnmatchcase(family.id, glob) for glob in profile.clients)
    )
    return [found[profile_id] for profile_id in [*named, *claims]]
