# SPDX-License-Identifier: LGPL-2.1-or-later
"""The data file of a client family: one TOML file with what is known of it, so that another client needs no code."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

if TYPE_CHECKING:
    from collections.abc import Sequence

System: TypeAlias = Literal["linux", "macos", "windows"]
Expandable: TypeAlias = Literal["env", "headers", "args", "url"]
Transport: TypeAlias = Literal["stdio", "http", "sse"]

FAMILY_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
"""The name of a data file, of a client family as of a profile, without ``.toml``."""
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
"""The name of an environment variable that a client can be told to fill in."""

SYSTEMS: Final[tuple[System, ...]] = ("linux", "macos", "windows")
PLACE: Final = re.compile(r"\{([^{}]*)\}")
"""What is filled in in a pattern of a path."""
BASES: Final = ("home", "config")

Line = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A field of an entry."""
ProfileId = Annotated[str, Field(pattern=rf"^{FAMILY_ID.pattern}$")]


class Part(BaseModel):
    """A table of a data file; a key that it does not know is a fault, for it is a misspelt one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Limitations(Part):
    """What the client has no room for; None where no limit is known."""

    max_servers: Annotated[int, Field(ge=1)] | None = None
    max_env_vars_per_server: Annotated[int, Field(ge=0)] | None = None


class Detect(Part):
    """By what an installed client is told, beside its file."""

    programs: tuple[Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f]+$")], ...] = ()
    """Looked up in ``PATH``."""
    directories: tuple[Line, ...] = ()
    """Patterns as those of the file, for Linux."""


class Expansion(Part):
    """How the client is told to fill in a variable of its own environment: *prefix* NAME *suffix*."""

    prefix: Line
    suffix: Annotated[str, Field(max_length=20)] = ""
    fields: Annotated[tuple[Expandable, ...], Field(min_length=1)]
    """Where it does so."""
    names_only: bool = False
    """Whether the client knows no such text: a placeholder then stands for a field that names the variable."""


class _Entry(Part):
    """How one kind of entry is written."""

    name: Name | None = None
    """The field that repeats the server's name."""
    marks: dict[Name, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Fields that tell this kind from the others: the first value is written, each one is read."""
    constants: dict[Name, JsonValue] = Field(default_factory=dict)
    """Fields written alongside, and not looked at when reading."""

    def fields(self) -> list[str]:
        """Every field that may be written."""
        return [*([self.name] if self.name else []), *self.marks, *self.constants]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = self.fields()
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the field {twice[0]!r} is given two meanings")
        return self


class Stdio(_Entry):
    """The fields of an entry that starts a program."""

    command: Name = "command"
    args: Name | None = "args"
    """None where :attr:`command` holds a list: the program, then its arguments. Written ``""``."""
    env: Name | None = "env"
    cwd: Name | None = None
    env_names: Name | None = None
    """A list of variables that are passed on from the client's environment, in place of placeholders in env."""

    @model_validator(mode="before")
    @classmethod
    def _nothing(cls, data: object) -> object:
        """TOML has no null."""
        if isinstance(data, dict):
            return {key: None if value == "" and key in {"args", "env"} else value for key, value in data.items()}
        return data

    def fields(self) -> list[str]:
        """Every field that may be written."""
        given = [each for each in (self.command, self.args, self.env, self.cwd, self.env_names) if each]
        return [*given, *super().fields()]


class Remote(_Entry):
    """The fields of an entry that names a URL."""

    url: Name = "url"
    aliases: tuple[Name, ...] = ()
    """Other fields that hold the URL of this kind in some files; they are read and never written."""
    headers: Name | None = "headers"
    headers_in: Name | None = None
    """The object that holds them, where the entry itself does not."""
    bearer: Name | None = None
    """Names the variable that holds a bearer token, in place of a placeholder in ``Authorization``."""
    header_names: Name | None = None
    """A map from headers to variables that hold their values, in place of placeholders in headers."""
    unmarked: bool = False
    """Whether an entry with this URL and none of the marks is of this kind."""

    @model_validator(mode="before")
    @classmethod
    def _nothing(cls, data: object) -> object:
        """TOML has no null."""
        if isinstance(data, dict) and data.get("headers") == "":
            return {**data, "headers": None}
        return data

    def fields(self) -> list[str]:
        """Every field that may be written."""
        headers = self.headers_in or self.headers
        given = [each for each in (self.url, headers, self.bearer, self.header_names) if each]
        return [*given, *super().fields()]


class File(Part):
    """The client's file and the place of the servers in it."""

    format: Literal["json", "jsonc", "toml", "yaml"]
    key: Annotated[tuple[Name, ...], Field(min_length=1, max_length=8)]
    shape: Literal["map", "list"] = "map"
    linux: tuple[Line, ...] = ()
    macos: tuple[Line, ...] = ()
    windows: tuple[Line, ...] = ()
    variables: dict[Annotated[str, Field(pattern=rf"^{VARIABLE.pattern}$")], Line] = Field(default_factory=dict)
    project: Line | None = None


class Tools(Part):
    """The names of tools that the client accepts; it leaves out the others, or all tools of their server."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = ".*"
    """A regular expression that matches whole names as the server lists them."""
    prefix: Annotated[str, Field(max_length=64)] = ""
    """The text that the client puts before a name, with ``{server}`` for the name of the server."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """Characters of the name with :attr:`prefix`."""
    source: Annotated[str, Field(pattern=r"^https://[^\s\x00-\x1f\x7f]+$")]
    """The page that says so."""

    @field_validator("name")
    @classmethod
    def _regular(cls, name: str) -> str:
        try:
            re.compile(name)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return name


class Description(Part):
    """A whole data file."""

    name: Line
    platform: Literal["macos", "windows", "linux", "cross-platform"]
    config_location: Line | None = None
    homepage: Annotated[str, Field(pattern=r"^(https://[^\s\x00-\x1f\x7f]+)?$")] = ""
    notes: Annotated[str, Field(max_length=2000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")] = ""
    profiles: Annotated[tuple[ProfileId, ...], Field(min_length=1)]
    version_min: Line | None = None
    version_max: Line | None = None
    file: File
    detect: Detect = Detect()
    limitations: Limitations = Limitations()
    tools: Tools | None = None
    expansion: Expansion | None = None
    stdio: Stdio = Stdio()
    http: Remote | None = None
    sse: Remote | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if not any(getattr(self.file, system) for system in SYSTEMS):
            raise ValueError("file: say where it lies on linux, macos or windows")
        for name, default in self.file.variables.items():
            if name in BASES:
                raise ValueError(f"file.variables: {name} is taken")
            _check_pattern(default, BASES)
        known = (*BASES, *self.file.variables)
        for system in SYSTEMS:
            for pattern in getattr(self.file, system):
                _check_pattern(pattern, known)
        for pattern in self.detect.directories:
            _check_pattern(pattern, known)
        if self.file.project is not None:
            project = PurePosixPath(self.file.project)
            if project.is_absolute() or ".." in project.parts:
                raise ValueError("file.project: name it relative to the project, without ..")
        forms = [each for each in (self.stdio, self.http, self.sse) if each is not None]
        if self.file.shape == "list" and any(each.name != "name" for each in forms):
            raise ValueError('file.shape: the entries of a list need name = "name"')
        self._check_names()
        return self

    def _check_names(self) -> None:
        """Fields that name variables and placeholders that only stand for them come together."""
        remotes = [each for each in (self.http, self.sse) if each is not None]
        named = {
            "env": bool(self.stdio.env_names),
            "headers": any(each.bearer or each.header_names for each in remotes),
        }
        by_name = self.expansion is not None and self.expansion.names_only
        fields = self.expansion.fields if self.expansion is not None else ()
        for place, used in named.items():
            if used and not (by_name and place in fields):
                raise ValueError(
                    f"expansion: names_only = true and {place} in fields: some field names variables for it"
                )
        if by_name and not all(named.get(place) for place in fields):
            raise ValueError("expansion: names_only is for env and headers, and for fields that name variables")


def _check_pattern(pattern: str, known: Sequence[str]) -> None:
    """Raise ValueError unless *pattern* is an absolute path once the *known* names in it are filled in."""
    for name in PLACE.findall(pattern):
        if name not in known:
            raise ValueError(f"{pattern!r}: {{{name}}} is none of {', '.join(known)}")
    rest = PLACE.sub("", pattern, count=1) if pattern.startswith("{") else pattern
    if "{" in PLACE.sub("", rest) or "}" in PLACE.sub("", rest):
        raise ValueError(f"{pattern!r}: a brace without its other half")
    if (rest and not rest.startswith("/")) or rest == pattern == "/" or ".." in PurePosixPath(rest).parts:
        raise ValueError(f"{pattern!r}: begin with {{home}}/, {{config}}/ or /, and go nowhere with ..")
