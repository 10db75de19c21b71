# SPDX-License-Identifier: LGPL-2.1-or-later
"""``policy.toml``: what configurations of clients may hold.

The administrator's ``/etc/mcp/policy.toml`` counts for everybody. A user's own file stands beside it and can only take
away more. Where there is no file everything is allowed; one that cannot be read allows nothing to be published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.clients.origins import UNKNOWN, origin_of
from mcpd.errors import InvalidConfig, InvalidManifest
from mcpd.files import is_missing, read_file
from mcpd.model import printable
from mcpd.model.base import first_fault
from mcpd.paths import Scope
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mcpd.clients.family import Family
    from mcpd.clients.origins import Origin
    from mcpd.model import JsonValue
    from mcpd.paths import Paths
    from mcpd.store.index import InstalledServer

MAX_POLICY: Final = 1024 * 1024
"""Bytes of one file."""

_Glob = Annotated[str, Field(strict=True, min_length=1, max_length=1000)]
_Globs = Annotated[tuple[_Glob, ...], Field(max_length=1000)]
_URL: Final = "url:"
_DOUBTED: Final = ("servers", "commands", "sources")
"""What a rule has to be about, for an entry of which nothing can be told to be against it."""
_Patterns: TypeAlias = "Sequence[tuple[str, re.Pattern[str]]]"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    allowed: _Globs | None = None
    """None allows everything; an empty list nothing."""
    forbidden: _Globs = ()


class _File(BaseModel):
    """One file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: _Table = _Table()
    commands: _Table = _Table()
    sources: _Table = _Table()
    permissions: _Table = _Table()


@dataclass(frozen=True, slots=True)
class Violation:
    """Something in a configuration that a policy does not allow."""

    rule: str
    """Such as ``servers.forbidden``."""
    server_id: str
    """The name that the server has in the configuration."""
    value: str
    """What is not allowed."""
    message: str
    file: str
    """The policy."""

    def to_json(self) -> dict[str, JsonValue]:
        """The violation as tools answer it."""
        return {
            "rule": self.rule,
            "server_id": self.server_id,
            "value": self.value,
            "message": self.message,
            "file": self.file,
        }


@dataclass(frozen=True, slots=True)
class _Rule:
    """One table of one file."""

    name: str
    file: str
    allowed: _Patterns | None
    forbidden: _Patterns
    urls: _Patterns = ()
    """What the same file allows of URLs, each by a glob that says so."""

    @property
    def is_restrictive(self) -> bool:
        """Whether there is anything that it does not allow."""
        return bool(self.forbidden) or self.is_selective

    @property
    def is_selective(self) -> bool:
        """Whether it allows some things alone."""
        return self.allowed is not None and all(glob != "*" for glob, _ in self.allowed)

    def forbids(self, values: Iterable[str]) -> tuple[str, str] | None:
        """The first of *values*, which stand for one thing, that is forbidden, and the glob that does it."""
        return next(
            ((value, glob) for value in values for glob, match in self.forbidden if match.fullmatch(value)), None
        )

    def admits(self, values: Iterable[str]) -> bool:
        """Whether *values*, which stand for one thing, are allowed by one of them."""
        if self.allowed is None:
            return True
        return any(match.fullmatch(value) for value in values for _, match in self.allowed)


class Policy:
    """What one scope may put into configurations."""

    def __init__(self, rules: Sequence[_Rule] = ()) -> None:
        """*rules* come from :meth:`load`; without any everything is allowed."""
        self._rules = tuple(rules)

    @classmethod
    def load(cls, paths: Paths, scope: Scope) -> Policy:
        """The policy of *scope* as its files are now.

        Raises :class:`~mcpd.errors.InvalidConfig`, which names the file and the key, if one of them cannot be used:
        then nothing may be published or deployed.
        """
        files = [paths.system.policy, *([paths.user.policy] if scope is Scope.USER else [])]
        return cls([rule for file in files for rule in _rules(file)])

    def check(
        self,
        payload: Mapping[str, JsonValue],
        servers: Mapping[str, InstalledServer],
        family: Family | None = None,
    ) -> list[Violation]:
        """What *payload*, for the clients *family*, holds against the policy, by server.

        *servers* are the installed ones, by id. ``forbidden`` beats ``allowed``, and all files have to allow a thing.
        Where it cannot be told what an entry is, it is against every rule that restricts servers, commands or sources.
        """
        entries = payload.get("mcpServers")
        if not self._rules or not isinstance(entries, dict):
            return []
        found: list[Violation] = []
        for name in sorted(entries):
            origin = origin_of(entries[name], servers, family)
            for rule in self._rules:
                found += _CHECKS[rule.name](rule, name, origin) or _check_doubt(rule, name, origin)
        return found


def _rules(file: Path) -> list[_Rule]:
    try:
        data = parse_toml(read_file(file, MAX_POLICY))
        tables = _File.model_validate(data)
    except OSError as error:
        if is_missing(error) and not file.is_symlink():
            return []
        raise _unusable(f"{file}: {error.strerror}") from error
    except InvalidManifest as error:
        raise _unusable(error.message) from error
    except ValidationError as error:
        raise _unusable(f"{file}: {_fault(error)}") from error
    except ValueError as error:
        raise _unusable(f"{file}: {error}") from error
    urls = [glob for glob in tables.sources.allowed or () if glob.startswith(_URL)]
    return [
        _Rule(
            name,
            str(file),
            _compiled(table.allowed) if table.allowed is not None else None,
            _compiled(table.forbidden),
            _compiled(urls),
        )
        for name, table in (
            ("servers", tables.servers),
            ("commands", tables.commands),
            ("sources", tables.sources),
            ("permissions", tables.permissions),
        )
        if table.allowed is not None or table.forbidden
    ]


def _compiled(globs: Iterable[str]) -> _Patterns:
    return [(glob, re.compile(translate(glob))) for glob in globs]


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "extra_forbidden":
        return f"{'.'.join(printable(str(part)) for part in first['loc'])}: there is no such rule"
    return first_fault(error)


def _unusable(fault: str) -> InvalidConfig:
    return InvalidConfig(f"{fault}; as long as this policy cannot be read, no configuration is published or deployed")


def _check_servers(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    """By its name, and by the ids of what it runs: another name for a server makes no other server of it."""
    for value in dict.fromkeys((name, *origin.runs)):
        is_name = value == name
        what = "a server of this name" if is_name else f"it runs {printable(value)!r}, which"
        if found := _against(rule, name, (value,), what):
            return found
    if found_name := rule.forbids(origin.names):
        value, glob = found_name
        what = f"it may run {printable(value)!r}, which is forbidden by {printable(glob)!r}"
        return [_violation(rule, name, "forbidden", value, what)]
    return []


def _check_commands(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    """As it is written; what is forbidden, by its last part too, wherever it lies."""
    if origin.command is None:
        return _check_url(rule, name, origin)
    last = re.split(r"[/\\]", origin.command)[-1]
    written = (origin.command,)
    what = f"the command {printable(origin.command)!r}"
    if found := _against(rule, name, written, what, also_forbidden=(last, last.strip())):
        return found
    if origin.fault and rule.is_selective:
        return [_violation(rule, name, "allowed", origin.command, f"{what} is allowed, but {printable(origin.fault)}")]
    return []


def _check_url(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    """No command is what no list of commands allows; only the sources of the same file can."""
    if not rule.is_selective or any(
        match.fullmatch(source) for source in origin.sources for _, match in rule.urls if source.startswith(_URL)
    ):
        return []
    what = f"it is no command, and no '{_URL}…' in sources.allowed of the same file allows it"
    return [_violation(rule, name, "allowed", origin.written or UNKNOWN, what)]


def _check_sources(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    shown = origin.written or origin.sources[0]
    what = f"what comes from {printable(shown)!r}"
    if shown == UNKNOWN:
        why = f" ({printable(origin.fault)})" if origin.fault else ""
        what = f"its source is {UNKNOWN!r}, as it is not plainly 'mcpctl run ID' of an installed server{why}; that"
    return _against(rule, name, origin.sources, what, also_forbidden=(shown,), shown=shown)


def _check_doubt(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    if not origin.doubt or rule.name not in _DOUBTED or not rule.is_restrictive:
        return []
    value = origin.command if origin.command is not None else origin.written or UNKNOWN
    what = f"{origin.doubt}, so it cannot be told whether it is allowed"
    return [_violation(rule, name, "allowed" if rule.is_selective else "forbidden", value, what)]


def _check_permissions(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    if origin.permissions is None:
        # Nothing can be said of a server that is not installed, or not by mcpd, so it is not on a list either.
        return _against(rule, name, (UNKNOWN,), "a server whose permissions are not known")
    found: list[Violation] = []
    for permission in origin.permissions:
        base = permission.partition("?")[0]
        # What may be made may be written: a rule on the one is a rule on the other.
        writes = re.sub(r"\Afilesystem:create:", "filesystem:rw:", base)
        values = dict.fromkeys((permission, base, writes))
        found += _against(rule, name, values, f"the permission {printable(permission)!r}")
    return found


_CHECKS: Final = {
    "servers": _check_servers,
    "commands": _check_commands,
    "sources": _check_sources,
    "permissions": _check_permissions,
}


def _against(
    rule: _Rule,
    name: str,
    values: Iterable[str],
    what: str,
    also_forbidden: Iterable[str] = (),
    shown: str | None = None,
) -> list[Violation]:
    """What *rule* has against *values*, the spellings of one thing that *what* names; at most one violation."""
    values = tuple(values)
    if forbidden := rule.forbids((*values, *also_forbidden)):
        return [
            _violation(rule, name, "forbidden", forbidden[0], f"{what} is forbidden by {printable(forbidden[1])!r}")
        ]
    if not rule.admits(values):
        return [_violation(rule, name, "allowed", shown or values[0], f"{what} is not among what is allowed")]
    return []


def _violation(rule: _Rule, name: str, kind: str, value: str, what: str) -> Violation:
    shown = printable(name)
    text = f"server '{shown}': {what} ({rule.name}.{kind} in {rule.file}); remove the server or change the policy"
    return Violation(f"{rule.name}.{kind}", shown, printable(value), text, rule.file)
