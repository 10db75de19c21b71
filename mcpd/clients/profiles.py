# SPDX-License-Identifier: LGPL-2.1-or-later
"""Profiles: which of the installed servers a client's configuration contains, and how it reaches them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

from mcpd.clients.errors import ProfileNotFound
from mcpd.clients.families import VARIABLE, DataFile, DataFiles, Line, packaged
from mcpd.clients.payload import BRIDGE
from mcpd.model import printable
from mcpd.paths import Paths, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mcpd.clients.families import Family

LayerName: TypeAlias = Literal["user", "system", "vendor"]

_Glob = Annotated[str, Field(min_length=1, max_length=200)]


class Profile(DataFile):
    """One profile, as described by its data file."""

    name: Line
    description: Annotated[str, Field(max_length=500)] = ""
    clients: tuple[_Glob, ...] = ()
    """Globs for the ids of client families that offer this profile even if they do not name it."""
    include: tuple[_Glob, ...] = ("*",)
    """Globs for server ids; a server is included only if one of them matches."""
    exclude: tuple[_Glob, ...] = ()
    """Globs for server ids; a server is left out if one of them matches."""
    layers: Annotated[tuple[LayerName, ...], Field(min_length=1)] = ("user", "system")
    """Layers of the servers."""
    scripts: bool = True
    """True if it includes script servers."""
    transport: Literal["stdio", "http"] = "stdio"
    url: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:\[\]_-]+(/[!-~]*)?$")] = BRIDGE
    """Base of the bridge's URLs; :data:`BRIDGE` is the user's own bridge."""
    variables: dict[_Glob, tuple[str, ...]] = Field(default_factory=dict)
    """Environment variables that the client passes to servers, by glob for server ids."""

    @field_validator("variables")
    @classmethod
    def _names(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for glob, names in value.items():
            for name in names:
                if not VARIABLE.fullmatch(name):
                    raise ValueError(f"{glob}: {name!a} is not the name of a variable: use A-Z a-z 0-9 _")
        return value

    @field_validator("url")
    @classmethod
    def _without_slash(cls, value: str) -> str:
        return value.rstrip("/")

    def takes(self, server_id: str) -> bool:
        """Return True if ``include`` and ``exclude`` select *server_id*."""
        return any(fnmatchcase(server_id, glob) for glob in self.include) and not any(
            fnmatchcase(server_id, glob) for glob in self.exclude
        )

    def variables_of(self, server_id: str) -> list[str]:
        """Return the variables that are passed to *server_id*, sorted."""
        return sorted(
            {name for glob, names in self.variables.items() if fnmatchcase(server_id, glob) for name in names}
        )


class Profiles:
    """All profiles."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """*directories* are in order of rising precedence; a missing one is empty."""
        self._files = DataFiles(directories, Profile.parse, "profile")

    @classmethod
    def of(cls, paths: Paths, scope: Scope) -> Profiles:
        """Open the profiles of *scope*."""
        own = [paths.user.client_profiles] if scope is Scope.USER else []
        return cls([packaged("client-profiles"), paths.vendor_profiles, paths.system.client_profiles, *own])

    @property
    def problems(self) -> list[str]:
        """One line for each invalid file."""
        return list(self._files.read()[1])

    def available(self, family: Family) -> list[str]:
        """Return the profiles that *family* names, in its order, then those that name it, by id."""
        return self.by_family([family])[family.id]

    def by_family(self, families: Iterable[Family]) -> dict[str, list[str]]:
        """Return the result of :meth:`available` for each of *families*, by id."""
        found, _ = self._files.read()
        return {family.id: [profile.id for profile in _of(family, found)] for family in families}

    def get(self, family: Family, profile_id: str) -> Profile:
        """Return the profile *profile_id* of *family*.

        Raises :class:`~mcpd.clients.errors.ProfileNotFound`.
        """
        found = _of(family, self._files.read()[0])
        for profile in found:
            if profile.id == profile_id:
                return profile
        raise ProfileNotFound(printable(profile_id), family.id, [profile.id for profile in found])


def _of(family: Family, found: Mapping[str, Profile]) -> list[Profile]:
    """Return the profiles among *found* that *family* offers."""
    named = dict.fromkeys(profile_id for profile_id in family.profiles if profile_id in found)
    claims = sorted(
        profile.id
        for profile in found.values()
        if profile.id not in named and any(fnmatchcase(family.id, glob) for glob in profile.clients)
    )
    return [found[profile_id] for profile_id in [*named, *claims]]
