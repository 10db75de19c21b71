# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client families: the known MCP clients, where their configuration files are, and how entries are written.

Each family is described by one TOML file, so that a new client can be added without code.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from mcpd.clients.errors import ClientNotFound, InvalidInput
from mcpd.clients.tree import NAME
from mcpd.errors import InvalidConfig, McpdError, from_oserror
from mcpd.files import is_missing, read_file, settled, signature
from mcpd.model import printable
from mcpd.model.base import check_json, first_fault
from mcpd.paths import Paths, Scope
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mcpd.files import Signature
    from mcpd.model import JsonValue

System: TypeAlias = Literal["linux", "macos", "windows"]
Expandable: TypeAlias = Literal["env", "headers", "args", "url"]
Transport: TypeAlias = Literal["stdio", "http", "sse"]
Format: TypeAlias = Literal["json", "jsonc", "toml", "yaml"]
Shape: TypeAlias = Literal["map", "list"]

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
"""Name of an environment variable that a client can substitute."""

SYSTEMS: Final[tuple[System, ...]] = ("linux", "macos", "windows")
PLACE: Final = re.compile(r"\{([^{}]*)\}")
"""Placeholder in the pattern of a path."""
BASES: Final = ("home", "config")

Line = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A field of an entry."""
ProfileId = Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]


_SHOWN: Final[dict[System, dict[str, str]]] = {
    "linux": {"home": "~", "config": "~/.config"},
    "macos": {"home": "~", "config": "~/Library/Application Support"},
    "windows": {"home": "%USERPROFILE%", "config": "%APPDATA%"},
}


class Part(BaseModel):
    """A table of a data file. Unknown keys are errors, because they may be misspelled."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataFile(Part):
    """A whole data file."""

    _id: str = PrivateAttr("")

    @classmethod
    def parse(cls, name: str, data: Mapping[str, object], origin: str) -> Self:
        """Return what *data*, the TOML of the data file *name* at *origin*, describes.

        Raises :class:`~mcpd.errors.InvalidConfig` that names *origin*, the field and the fault.
        """
        try:
            check_json(data)
            found = cls.model_validate(data)
        except ValidationError as error:
            raise InvalidConfig(f"{origin}: {first_fault(error)}") from error
        except ValueError as error:
            raise InvalidConfig(f"{origin}: {error}") from error
        found._id = name  # noqa: SLF001 - its own
        return found

    @property
    def id(self) -> str:
        """Name of the data file."""
        return self._id


class Limitations(Part):
    """Limits of the client; None where no limit is known."""

    max_servers: Annotated[int, Field(ge=1)] | None = None
    max_env_vars_per_server: Annotated[int, Field(ge=0)] | None = None


class Detect(Part):
    """Signs of an installed client, besides its file."""

    programs: tuple[Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f]+$")], ...] = ()
    """Programs that are looked up in ``PATH``."""
    directories: tuple[Line, ...] = ()
    """Patterns of directories on Linux, with the placeholders of :class:`File`."""


class Expansion(Part):
    """Syntax by which the client substitutes a variable of its own environment: *prefix* NAME *suffix*."""

    prefix: Line
    suffix: Annotated[str, Field(max_length=20)] = ""
    fields: Annotated[tuple[Expandable, ...], Field(min_length=1)]
    """Fields in which the client substitutes variables."""
    names_only: bool = False
    """True if the client only has fields that name a variable: a placeholder is then written as such a field."""


class _Entry(Part):
    """Fields of one kind of entry."""

    name: Name | None = None
    """Field that repeats the server's name."""
    marks: dict[Name, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Fields that identify this kind: the first value is written, all are accepted."""
    constants: dict[Name, JsonValue] = Field(default_factory=dict)
    """Further fields that are written, and ignored when reading."""

    def fields(self) -> list[str]:
        """Return every field that may be written."""
        return [*([self.name] if self.name else []), *self.marks, *self.constants]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = self.fields()
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the field {twice[0]!r} has two meanings")
        return self


class Stdio(_Entry):
    """Fields of an entry that starts a program."""

    command: Name = "command"
    args: Name | None = "args"
    """None, in TOML ``""``, if :attr:`command` is a list of the program and its arguments."""
    env: Name | None = "env"
    cwd: Name | None = None
    env_names: Name | None = None
    """Field with a list of variables passed from the client's environment, instead of placeholders in env."""

    @model_validator(mode="before")
    @classmethod
    def _nothing(cls, data: object) -> object:
        """Turn ``""`` into None: TOML has no null."""
        if isinstance(data, dict):
            return {key: None if value == "" and key in {"args", "env"} else value for key, value in data.items()}
        return data

    def fields(self) -> list[str]:
        """Return every field that may be written."""
        given = [each for each in (self.command, self.args, self.env, self.cwd, self.env_names) if each]
        return [*given, *super().fields()]


class Remote(_Entry):
    """Fields of an entry that names a URL."""

    url: Name = "url"
    aliases: tuple[Name, ...] = ()
    """Other fields that contain the URL of this kind in some files; accepted, and never written."""
    headers: Name | None = "headers"
    headers_in: Name | None = None
    """Field with the object that contains the headers, if they are not in the entry itself."""
    bearer: Name | None = None
    """Field that names the variable with a bearer token, instead of a placeholder in ``Authorization``."""
    header_names: Name | None = None
    """Field with a map from headers to the variables with their values, instead of placeholders in headers."""
    unmarked: bool = False
    """True if an entry with this URL and none of the marks is of this kind."""

    @model_validator(mode="before")
    @classmethod
    def _nothing(cls, data: object) -> object:
        """Turn ``""`` into None: TOML has no null."""
        if isinstance(data, dict) and data.get("headers") == "":
            return {**data, "headers": None}
        return data

    def fields(self) -> list[str]:
        """Return every field that may be written."""
        headers = self.headers_in or self.headers
        given = [each for each in (self.url, headers, self.bearer, self.header_names) if each]
        return [*given, *super().fields()]


class File(Part):
    """The client's file, and where the servers are in it."""

    format: Format
    key: Annotated[tuple[Name, ...], Field(min_length=1, max_length=8)]
    shape: Shape = "map"
    linux: tuple[Line, ...] = ()
    """Patterns of paths, most usual first; the first existing file is used, or else the first pattern."""
    macos: tuple[Line, ...] = ()
    windows: tuple[Line, ...] = ()
    variables: dict[Annotated[str, Field(pattern=rf"^{VARIABLE.pattern}$")], Line] = Field(default_factory=dict)


class Tools(Part):
    """Names of tools that the client accepts; it omits the others, or all tools of their server."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = ".*"
    """Regular expression that matches whole names as the server lists them."""
    prefix: Annotated[str, Field(max_length=64)] = ""
    """Text that the client puts before a name, with ``{server}`` for the name of the server."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """Maximum length of a name in characters, including :attr:`prefix`."""
    source: Annotated[str, Field(pattern=r"^https://[^\s\x00-\x1f\x7f]+$")]
    """URL of the page that documents these rules."""

    @field_validator("name")
    @classmethod
    def _regular(cls, name: str) -> str:
        try:
            re.compile(name)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return name


class Family(DataFile):
    """A family of MCP clients: where its file is, how its entries are written, and what it supports."""

    name: Line
    platform: Literal["macos", "windows", "linux", "cross-platform"]
    config_location: Line | None = None
    """The file as listings show it; its real path is in :attr:`file`."""
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
            raise ValueError("file: specify its path on linux, macos or windows")
        for name, default in self.file.variables.items():
            if name in BASES:
                raise ValueError(f"file.variables: {name} is reserved")
            _check_pattern(default, BASES)
        known = (*BASES, *self.file.variables)
        for system in SYSTEMS:
            for pattern in getattr(self.file, system):
                _check_pattern(pattern, known)
        for pattern in self.detect.directories:
            _check_pattern(pattern, known)
        forms = [each for each in (self.stdio, self.http, self.sse) if each is not None]
        if self.file.shape == "list" and any(each.name != "name" for each in forms):
            raise ValueError('file.shape: list entries require name = "name"')
        self._check_names()
        return self

    def _check_names(self) -> None:
        """Check that fields that name variables and placeholders that stand for them come together."""
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
                    f"expansion: names_only = true and {place} in fields are needed: some field names variables"
                )
        if by_name and not all(named.get(place) for place in fields):
            raise ValueError("expansion: names_only is for env and headers, and for fields that name variables")

    @property
    def format(self) -> Format:
        """Format of its file."""
        return self.file.format

    @property
    def key(self) -> tuple[str, ...]:
        """Path to the servers in its file."""
        return self.file.key

    @property
    def shape(self) -> Shape:
        """Container of the servers in its file."""
        return self.file.shape

    @property
    def locations(self) -> dict[System, tuple[str, ...]]:
        """Patterns of its file on each system where it has one."""
        return {system: getattr(self.file, system) for system in SYSTEMS if getattr(self.file, system)}

    def config_format(self) -> Literal["json", "yaml", "toml"]:
        """Return the format for the listing of capabilities, where JSON with comments is JSON."""
        return "json" if self.format == "jsonc" else self.format

    def transports(self) -> list[Transport]:
        """Return the transports by which the client reaches servers."""
        found: list[Transport] = ["stdio"]
        if self.http is not None:
            found.append("http")
        if self.sse is not None:
            found.append("sse")
        return found

    def placeholder(self, variable: str, field: Expandable) -> str | None:
        """Return the placeholder for *variable* in *field*; None if the client substitutes no variables there.

        Raises :class:`~mcpd.clients.errors.InvalidInput` if *variable* is not a valid name.
        """
        if not VARIABLE.fullmatch(variable):
            raise InvalidInput(f"{variable[:140]!a} is not the name of a variable: use A-Z a-z 0-9 _")
        if self.expansion is None or field not in self.expansion.fields:
            return None
        return f"{self.expansion.prefix}{variable}{self.expansion.suffix}"

    def variables_in(self, text: str, field: Expandable) -> list[str]:
        """Return the variables that the client substitutes in *text* in *field*, in order."""
        if self.expansion is None or field not in self.expansion.fields:
            return []
        prefix, suffix = re.escape(self.expansion.prefix), re.escape(self.expansion.suffix)
        return re.findall(f"{prefix}({VARIABLE.pattern}){suffix}", text, re.ASCII)

    def refused_tools(self, server: str, names: Iterable[str]) -> list[str]:
        """Return the tools among *names* that the client does not accept from a server with the name *server*."""
        rules = self.tools
        if rules is None:
            return []
        before = len(rules.prefix.replace("{server}", server))
        return [
            name
            for name in names
            if not re.fullmatch(rules.name, name)
            or (rules.max_length is not None and before + len(name) > rules.max_length)
        ]

    def linux_locations(self, home: Path, environ: Mapping[str, str]) -> list[Path]:
        """Return the possible paths of the client's file on Linux, in order of precedence.

        *home* is the user's directory. A variable of *environ* that is empty or not an absolute path counts as not set.
        """
        return self._filled(self.file.linux, home, environ)

    def linux_directories(self, home: Path, environ: Mapping[str, str]) -> list[Path]:
        """Return the directories that an installed client has on Linux."""
        return self._filled(self.detect.directories, home, environ)

    def _filled(self, patterns: Iterable[str], home: Path, environ: Mapping[str, str]) -> list[Path]:
        bases = {"home": str(home), "config": _absolute(environ.get("XDG_CONFIG_HOME")) or f"{home}/.config"}
        own = {
            name: _absolute(environ.get(name)) or _fill(default, bases) for name, default in self.file.variables.items()
        }
        return [Path(_fill(pattern, {**bases, **own})) for pattern in patterns]

    def summary(self, profiles: Sequence[str]) -> dict[str, JsonValue]:
        """Return the item of ``list_clients``, with the available *profiles*; ``config_locations`` is an extension."""
        locations: dict[str, list[JsonValue]] = {
            system: [_shown(system, pattern, self.file.variables) for pattern in patterns]
            for system, patterns in self.locations.items()
        }
        return {
            "client_id": self.id,
            "display_name": self.name,
            "platform": self.platform,
            "config_location": self.config_location or next(iter(locations.values()))[0],
            "config_locations": {**locations},
            "available_profiles": list(profiles),
        }

    def capabilities(self) -> dict[str, JsonValue]:
        """Return its item in ``capabilities://clients``; ``transports`` and ``placeholders`` are extensions."""
        limits, expansion = self.limitations, self.expansion
        return {
            "client_id": self.id,
            "display_name": self.name,
            "version_min": self.version_min,
            "version_max": self.version_max,
            "config_format": self.config_format(),
            "supports": {
                "environment_variables": self.stdio.env is not None,
                "command_args": True,
                "working_directory": self.stdio.cwd is not None,
                "multiple_servers": limits.max_servers != 1,
            },
            "limitations": {
                "max_servers": limits.max_servers,
                "max_env_vars_per_server": limits.max_env_vars_per_server,
            },
            "transports": list(self.transports()),
            "placeholders": None
            if expansion is None
            else {"syntax": f"{expansion.prefix}NAME{expansion.suffix}", "fields": list(expansion.fields)},
        }


def _check_pattern(pattern: str, known: Sequence[str]) -> None:
    """Raise ValueError unless *pattern* is an absolute path once the *known* names in it are substituted."""
    for name in PLACE.findall(pattern):
        if name not in known:
            raise ValueError(f"{pattern!r}: {{{name}}} is not one of {', '.join(known)}")
    rest = PLACE.sub("", pattern, count=1) if pattern.startswith("{") else pattern
    if "{" in PLACE.sub("", rest) or "}" in PLACE.sub("", rest):
        raise ValueError(f"{pattern!r}: an unmatched brace")
    if (rest and not rest.startswith("/")) or rest == pattern == "/" or ".." in PurePosixPath(rest).parts:
        raise ValueError(f"{pattern!r}: must begin with {{home}}/, {{config}}/ or /, and not contain ..")


def _fill(pattern: str, values: Mapping[str, str]) -> str:
    """Substitute *values* in one pass, so that braces in a value stay unchanged."""
    return PLACE.sub(lambda match: values[match[1]], pattern)


def _shown(system: System, pattern: str, variables: Mapping[str, str]) -> str:
    bases = _SHOWN[system]
    own = {name: _fill(default, bases) for name, default in variables.items()}
    text = _fill(pattern, {**bases, **own})
    return text.replace("/", "\\") if system == "windows" else text


def _absolute(value: str | None) -> str | None:
    return value if value and value.startswith("/") else None


MAX_DATA: Final = 64 * 1024
"""Maximum size of one data file, in bytes."""
MAX_FILES: Final = 1000
"""Maximum number of data files that are read from one directory."""
FIRST: Final = ("claude-desktop", "cursor")
"""The families that listings begin with."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _DirectoryState:
    """State of a directory when it was scanned."""

    files: tuple[tuple[str, Signature | None], ...]
    problem: str
    stable: bool
    """True if a later change cannot go unnoticed."""


class DataFiles(Generic[T]):
    """Data files ``NAME.toml`` in several directories, in order of rising precedence; a higher NAME replaces a lower.

    An invalid file is reported as a problem and does not replace another file. The result is cached until a file
    changes.
    """

    def __init__(
        self, directories: Sequence[Path], parse: Callable[[str, Mapping[str, object], str], T], what: str
    ) -> None:
        """*parse* takes NAME, the content and the file's path; *what* says in messages what NAME names."""
        self._directories = tuple(directories)
        self._parse = parse
        self._what = what
        self._seen: list[_DirectoryState] | None = None
        self._found: dict[str, T] = {}
        self._problems: list[str] = []

    def read(self) -> tuple[Mapping[str, T], list[str]]:
        """Return the parsed files by NAME, and the problems."""
        seen = [self._scan(directory) for directory in self._directories]
        if seen != self._seen:
            self._load(seen)
            self._seen = seen if all(look.stable for look in seen) else None
        return self._found, self._problems

    def _scan(self, directory: Path) -> _DirectoryState:
        """Scan *directory*, with os instead of pathlib, which would take most of the time of a call."""
        try:
            with os.scandir(directory) as entries:
                names = [each.path for each in entries if each.name.endswith(".toml") and each.name[0] != "."]
        except OSError as error:
            if is_missing(error) and not directory.is_symlink():
                return _DirectoryState((), "", stable=True)
            return _DirectoryState((), from_oserror(error, f"reading {directory}").message, stable=False)
        if len(names) > MAX_FILES:
            return _DirectoryState(
                (), f"{directory}: more than {MAX_FILES} files; all of them are ignored", stable=False
            )
        seen = [(path, _status(path)) for path in sorted(names)]
        return _DirectoryState(
            tuple((path, signature(status) if status else None) for path, status in seen),
            "",
            stable=all(status is not None and settled(status) for _, status in seen),
        )

    def _load(self, seen: list[_DirectoryState]) -> None:
        found: dict[str, T] = {}
        problems: list[str] = []
        for look in seen:
            if look.problem:
                problems.append(look.problem)
            for name, _ in look.files:
                path = Path(name)
                try:
                    found[path.stem] = self._one(path)
                except McpdError as error:
                    problems.append(error.message)
        self._found, self._problems = found, problems

    def _one(self, path: Path) -> T:
        if not NAME.fullmatch(path.stem):
            raise InvalidConfig(
                f"{printable(str(path))}: {printable(path.stem)} is not the id of a {self._what}: use 1 to 64"
                " characters from a-z 0-9 . _ -, beginning with a letter or digit"
            )
        try:
            data = parse_toml(read_file(path, MAX_DATA))
        except ValueError as error:
            raise InvalidConfig(f"{path}: {error}") from error
        except OSError as error:
            raise from_oserror(error, f"reading {path}") from error
        return self._parse(path.stem, data, str(path))


def _status(path: str) -> os.stat_result | None:
    """Return the status of the file *path*; None if it has none, as for a dangling symlink."""
    try:
        return os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None


def packaged(name: str) -> Path:
    """Return the directory of mcpd's own data files *name*: in the package, or next to it in a source tree."""
    inside = Path(str(files("mcpd.clients") / "data" / name))
    return inside if inside.is_dir() else Path(__file__).parents[2] / "data" / name


class Families:
    """All client families."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """*directories* are in order of rising precedence; a missing one is empty."""
        self._files = DataFiles(directories, Family.parse, "client")

    @classmethod
    def of(cls, paths: Paths, scope: Scope) -> Families:
        """Open the families of *scope*."""
        own = [paths.user.clients] if scope is Scope.USER else []
        return cls([packaged("clients"), paths.vendor_clients, paths.system.clients, *own])

    @property
    def problems(self) -> list[str]:
        """One line for each invalid file."""
        return list(self._files.read()[1])

    def all(self) -> list[Family]:
        """Return every family: :data:`FIRST` first, then by id."""
        found, _ = self._files.read()
        first = [found[family_id] for family_id in FIRST if family_id in found]
        return first + [found[family_id] for family_id in sorted(found.keys() - set(FIRST))]

    def get(self, client_id: str) -> Family:
        """Return the family *client_id*.

        Raises :class:`~mcpd.clients.errors.ClientNotFound`.
        """
        found, _ = self._files.read()
        if client_id not in found:
            raise ClientNotFound(printable(client_id), [family.id for family in self.all()])
        return found[client_id]
