# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is known of one MCP client: where its file lies, how its entries are written, what it can do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import ValidationError

from mcpd.clients.description import PLACE, SYSTEMS, VARIABLE, Description, Expandable
from mcpd.clients.faults import InvalidInput
from mcpd.errors import InvalidConfig
from mcpd.model.base import check_json, first_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcpd.clients.description import (
        Detect,
        Expansion,
        Limitations,
        Remote,
        Stdio,
        System,
        Tools,
        Transport,
    )
    from mcpd.model import JsonValue

__all__ = ["Expandable", "Family", "Supports"]

_SHOWN: Final[dict[System, dict[str, str]]] = {
    "linux": {"home": "~", "config": "~/.config"},
    "macos": {"home": "~", "config": "~/Library/Application Support"},
    "windows": {"home": "%USERPROFILE%", "config": "%APPDATA%"},
}


@dataclass(frozen=True, slots=True)
class Supports:
    """What a server of this client may have."""

    environment_variables: bool
    command_args: bool
    working_directory: bool
    multiple_servers: bool


@dataclass(frozen=True, slots=True)
class Family:
    """One family of MCP clients."""

    id: str
    name: str
    platform: str
    config_location: str
    """As listings show it; where the file really is, :attr:`locations` say."""
    locations: Mapping[System, tuple[str, ...]]
    """Patterns, the most usual one first; the first file that exists counts, else the first."""
    variables: Mapping[str, str]
    """Environment variables that patterns name, with the pattern that holds where one is not set."""
    project: str | None
    """The file of a project, relative to it."""
    profiles: tuple[str, ...]
    version_min: str | None
    version_max: str | None
    format: Literal["json", "jsonc", "toml", "yaml"]
    key: tuple[str, ...]
    """The path to the servers in the file."""
    shape: Literal["map", "list"]
    limitations: Limitations
    tools: Tools | None
    """None where no rule for the names of tools is known."""
    detect: Detect
    expansion: Expansion | None
    stdio: Stdio
    http: Remote | None
    """None where the client takes no URL of Streamable HTTP."""
    sse: Remote | None
    homepage: str
    notes: str

    @classmethod
    def parse(cls, family_id: str, data: Mapping[str, object], origin: str) -> Family:
        """The family that *data*, the TOML read from *origin*, describes.

        Raises :class:`~mcpd.errors.InvalidConfig` that names *origin*, the field and the fault.
        """
        try:
            check_json(data)
            given = Description.model_validate(data)
        except ValidationError as error:
            raise InvalidConfig(f"{origin}: {first_fault(error)}") from error
        except ValueError as error:
            raise InvalidConfig(f"{origin}: {error}") from error
        file = given.file
        locations: dict[System, tuple[str, ...]] = {
            "linux": file.linux,
            "macos": file.macos,
            "windows": file.windows,
        }
        shown = next(_shown(system, locations[system][0], file.variables) for system in SYSTEMS if locations[system])
        return cls(
            id=family_id,
            name=given.name,
            platform=given.platform,
            config_location=given.config_location or shown,
            locations={system: patterns for system, patterns in locations.items() if patterns},
            variables=file.variables,
            project=file.project,
            profiles=given.profiles,
            version_min=given.version_min,
            version_max=given.version_max,
            format=file.format,
            key=file.key,
            shape=file.shape,
            limitations=given.limitations,
            tools=given.tools,
            detect=given.detect,
            expansion=given.expansion,
            stdio=given.stdio,
            http=given.http,
            sse=given.sse,
            homepage=given.homepage,
            notes=given.notes,
        )

    @property
    def supports(self) -> Supports:
        """What a server of this client may have, as the fields of its entries say."""
        return Supports(
            environment_variables=self.stdio.env is not None,
            command_args=True,
            working_directory=self.stdio.cwd is not None,
            multiple_servers=self.limitations.max_servers != 1,
        )

    def config_format(self) -> Literal["json", "yaml", "toml"]:
        """The format as the listing of capabilities names it: JSON with comments is JSON."""
        return "json" if self.format == "jsonc" else self.format

    def transports(self) -> list[Transport]:
        """How the client reaches servers."""
        found: list[Transport] = ["stdio"]
        if self.http is not None:
            found.append("http")
        if self.sse is not None:
            found.append("sse")
        return found

    def placeholder(self, variable: str, field: Expandable) -> str | None:
        """What the client replaces by the value of *variable* in *field*; None where it replaces nothing.

        Raises :class:`~mcpd.clients.faults.InvalidInput` if *variable* cannot be the name of one.
        """
        if not VARIABLE.fullmatch(variable):
            raise InvalidInput(f"{variable[:140]!a} cannot be the name of a variable: use A-Z a-z 0-9 _")
        if self.expansion is None or field not in self.expansion.fields:
            return None
        return f"{self.expansion.prefix}{variable}{self.expansion.suffix}"

    def variables_in(self, text: str, field: Expandable) -> list[str]:
        """The variables that the client fills in when it reads *text* in *field*, in their order."""
        if self.expansion is None or field not in self.expansion.fields:
            return []
        prefix, suffix = re.escape(self.expansion.prefix), re.escape(self.expansion.suffix)
        return re.findall(f"{prefix}({VARIABLE.pattern}){suffix}", text, re.ASCII)

    def refused_tools(self, server: str, names: Iterable[str]) -> list[str]:
        """Return those of the tools *names* that it refuses in a server with the name *server*."""
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
        """Where the client's file may be on Linux, in the order in which they count."""
        return [Path(each) for each in self.expand("linux", str(home), environ)]

    def linux_directories(self, home: Path, environ: Mapping[str, str]) -> list[Path]:
        """The directories that an installed client has on Linux."""
        values = self._values("linux", str(home), environ)
        return [Path(_fill(pattern, values)) for pattern in self.detect.directories]

    def expand(self, system: System, home: str, environ: Mapping[str, str]) -> list[str]:
        """The paths of *system* for a user whose directory is *home* and whose environment is *environ*.

        A variable that is empty or holds no absolute path counts as not set.
        """
        values = self._values(system, home, environ)
        return [_fill(pattern, values) for pattern in self.locations.get(system, ())]

    def _values(self, system: System, home: str, environ: Mapping[str, str]) -> dict[str, str]:
        config = {
            "linux": _absolute(environ.get("XDG_CONFIG_HOME")) or f"{home}/.config",
            "macos": f"{home}/Library/Application Support",
            "windows": _absolute(environ.get("APPDATA")) or f"{home}/AppData/Roaming",
        }[system]
        bases = {"home": home, "config": config}
        own = {name: _absolute(environ.get(name)) or _fill(default, bases) for name, default in self.variables.items()}
        return {**bases, **own}

    def summary(self, profiles: Sequence[str]) -> dict[str, JsonValue]:
        """The item of ``list_clients``, with the *profiles* that there are; ``config_locations`` is ours."""
        locations: dict[str, JsonValue] = {
            system: [_shown(system, pattern, self.variables) for pattern in patterns]
            for system, patterns in self.locations.items()
        }
        return {
            "client_id": self.id,
            "display_name": self.name,
            "platform": self.platform,
            "config_location": self.config_location,
            "config_locations": locations,
            "available_profiles": list(profiles),
        }

    def capabilities(self) -> dict[str, JsonValue]:
        """The item of ``capabilities://clients``; ``transports`` and ``placeholders`` are ours."""
        supports, limits, expansion = self.supports, self.limitations, self.expansion
        return {
            "client_id": self.id,
            "display_name": self.name,
            "version_min": self.version_min,
            "version_max": self.version_max,
            "config_format": self.config_format(),
            "supports": {
                "environment_variables": supports.environment_variables,
                "command_args": supports.command_args,
                "working_directory": supports.working_directory,
                "multiple_servers": supports.multiple_servers,
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


def _fill(pattern: str, values: Mapping[str, str]) -> str:
    """In one pass, so that a value with braces stays what it is."""
    return PLACE.sub(lambda match: values[match[1]], pattern)


def _shown(system: System, pattern: str, variables: Mapping[str, str]) -> str:
    bases = _SHOWN[system]
    own = {name: _fill(default, bases) for name, default in variables.items()}
    text = _fill(pattern, {**bases, **own})
    return text.replace("/", "\\") if system == "windows" else text


def _absolute(value: str | None) -> str | None:
    return value if value and re.match(r"/|[A-Za-z]:[\\/]", value) else None
