# SPDX-License-Identifier: LGPL-2.1-or-later
"""The policy for client configurations, ``policy.toml``.

The administrator's ``/etc/mcp/policy.toml`` applies to everyone. A user's own file can only restrict further. Without
a file everything is allowed; with an unreadable one nothing can be published.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from fnmatch import translate
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.clients.addresses import read_address
from mcpd.clients.payload import COMMAND, RUN
from mcpd.errors import InvalidConfig, InvalidManifest
from mcpd.files import is_missing, read_file
from mcpd.model import ID_PATTERN, SourceType, printable
from mcpd.model.base import first_fault
from mcpd.model.steering import is_steering
from mcpd.package_sources import INDEXES
from mcpd.paths import Scope
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.clients.addresses import Address
    from mcpd.clients.families import Family
    from mcpd.model import JsonValue, Source
    from mcpd.paths import Paths
    from mcpd.store.index import InstalledServer

UNKNOWN: Final = "unknown"
"""Source of a server that is not installed, or not started by mcpd."""
_WORDS: Final = frozenset({RUN, "spawn"})
_FIELDS: Final = frozenset({"type", "command", "args", "env"})
"""Fields that an entry may have if it does nothing but run an installed server."""
_SYNTAXES: Final = ("${%s}", "${env:%s}", "{env:%s}", "${{ secrets.%s }}")
"""Syntaxes of variables; which of them a client has is in its family."""
_LOADERS: Final = re.compile(r"PATH|LD_.*|DYLD_.*|GCONV_PATH|GLIBC_TUNABLES|LOCPATH", re.DOTALL)
"""Environment variables that can make a command run another program."""
_FILLED_IN: Final = re.compile(r"[${}`]|%[^%\s]{1,256}%")
_BETWEEN: Final = re.compile(r"[\s'\"`;&|()<>=,]+")
_MCPCTL: Final = re.compile(
    rf"(?:.*[/\\])?{COMMAND}(?:\.exe)?[/\\.]*|mcpd\.cli(?:\.main)?|.*mcpd[/\\]cli(?:[/\\](?:main|__main__)\.py)?",
    re.IGNORECASE | re.DOTALL,
)
_ADDRESS: Final = re.compile(r"https?:[^\s'\"]{1,4000}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Origin:
    """The server behind one entry."""

    command: str | None = None
    """None for an entry with a URL."""
    runs: tuple[str, ...] = ()
    """Ids of the installed servers that it may run; empty if none."""
    names: tuple[str, ...] = ()
    """Further ids of servers that may be reached, through its URL or through a program that starts ``mcpctl``."""
    sources: tuple[str, ...] = (UNKNOWN,)
    """Its source, such as ``npm:NAME``, in one or more equivalent spellings; at least one."""
    written: str | None = None
    """The source as it is written, if the usual spelling differs."""
    permissions: tuple[str, ...] | None = None
    """Permissions in its manifest; None if unknown."""
    fault: str = ""
    """Reason why the entry runs something other than its command; empty if it does not."""
    doubt: str = ""
    """Reason why the program or server is uncertain; empty if it is certain."""


def origin_of(entry: JsonValue, servers: Mapping[str, InstalledServer], family: Family | None = None) -> Origin:
    """Return the origin of *entry*, where *servers* are the installed ones by id.

    *family* is the client that it is for; without it, variables may be in any client's syntax.
    """
    if not isinstance(entry, dict):
        return Origin(doubt="it is not an object")
    url, command = entry.get("url"), entry.get("command")
    if url is not None and command is None:
        return _remote(url, servers, family)
    return _local(entry, servers, family)


def runs_mcpctl(entry: Mapping[str, JsonValue]) -> bool:
    """Return True if *entry* starts ``mcpctl``, directly or through another program."""
    command = entry.get("command")
    return (isinstance(command, str) and _is_mcpctl(command)) or any(
        _MCPCTL.fullmatch(word) for word in _words([command, *_listed(entry.get("args"))])
    )


def is_passed_on(name: str, value: JsonValue, family: Family | None) -> bool:
    """Return True if *family* replaces *value* of the variable *name* with that variable of its own environment."""
    if family is not None:
        expansion = family.expansion
        return (
            expansion is not None
            and "env" in expansion.fields
            and value == f"{expansion.prefix}{name}{expansion.suffix}"
        )
    return any(value == syntax % name for syntax in _SYNTAXES)


def _remote(url: JsonValue, servers: Mapping[str, InstalledServer], family: Family | None) -> Origin:
    if not isinstance(url, str):
        return Origin(doubt="its url is not a string")
    address = read_address(url, _prefix(family))
    runs, names = _bridged(address)
    normal = f"url:{address.normal}"
    sources = dict.fromkeys((f"url:{url}", normal)) if address.is_usual else (normal,)
    permissions = _permissions(servers.get(runs[0])) if runs else None
    return Origin(None, runs, names, tuple(sources), f"url:{url}", permissions, doubt=address.doubt)


def _local(entry: Mapping[str, JsonValue], servers: Mapping[str, InstalledServer], family: Family | None) -> Origin:
    command, args = entry.get("command"), entry.get("args")
    text = command if isinstance(command, str) else ""
    doubt = "it has a command and a url" if entry.get("url") is not None else ""
    if _is_filled_in(text, family):
        doubt = doubt or "its command contains a placeholder"
    names: list[str] = []
    for word in _listed(args):
        for found in _ADDRESS.finditer(word):
            runs, others = _bridged(read_address(found[0]))
            names += (*runs, *others)
    if not _is_mcpctl(text):
        if runs_mcpctl(entry):
            doubt = doubt or f"it runs {COMMAND} through another program"
        if doubt:
            names += _words([text, *_listed(args)])
        return Origin(text, (), _once(names), fault=_loader(entry, text, family), doubt=doubt)
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        doubt = doubt or f"what it passes to {COMMAND} is not a list of strings"
    elif any(_is_filled_in(word, family) for word in _listed(args)):
        doubt = doubt or f"what it passes to {COMMAND} contains a placeholder"
    names += [word.partition("=")[2] for word in _listed(args) if word.startswith("-")]
    runs, fault = _run(_listed(args)), _unusual(entry, family)
    server = servers.get(runs[0]) if text == COMMAND and runs and not fault and not doubt else None
    return Origin(text, runs, _once(names), _sources(server), None, _permissions(server), fault, doubt)


def _run(args: list[str]) -> tuple[str, ...]:
    """Return the ids that ``mcpctl`` may be told to run; for an unusual spelling, all that may be ids."""
    words = [arg for arg in args if not arg.startswith("-")]
    if words and words[0] in _WORDS:
        words = words[1:]
    return _once(words)


def _unusual(entry: Mapping[str, JsonValue], family: Family | None) -> str:
    """Return why an entry of ``mcpctl`` does not just run an installed server; empty if it does."""
    args = entry.get("args")
    if not (isinstance(args, list) and len(args) == 2 and args[0] == RUN):
        return f"its arguments are not '{RUN} ID'"
    if not (isinstance(args[1], str) and ID_PATTERN.fullmatch(args[1])):
        return "what it runs is not a server id"
    if further := sorted(entry.keys() - _FIELDS):
        return f"it has a field {further[0][:140]!a}"
    if entry.get("type", "stdio") != "stdio":
        return "its type is not stdio"
    return _unusual_variable(entry.get("env", {}), family)


def _unusual_variable(env: JsonValue, family: Family | None) -> str:
    if not isinstance(env, dict):
        return "its env is not an object"
    for name, value in env.items():
        if is_steering(name):
            return f"the variable {name[:140]!a} controls {COMMAND} itself"
        if not is_passed_on(name, value, family):
            return f"the variable {name[:140]!a} is not passed on unchanged"
    return ""


def _loader(entry: Mapping[str, JsonValue], command: str, family: Family | None) -> str:
    """Return how the environment turns *command* into another program; empty if it does not."""
    env = entry.get("env", {})
    if not isinstance(env, dict):
        return "its env is not an object"
    for name, value in env.items():
        is_sought = name != "PATH" or not re.search(r"[/\\]", command)
        if _LOADERS.fullmatch(name) and is_sought and not is_passed_on(name, value, family):
            return f"the variable {name[:140]!a} changes which program it runs"
    return ""


def _bridged(address: Address) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the id of the server that *address* names on a bridge of this machine, and possible ids on others."""
    parts = [part.partition(";")[0] for part in address.segments]
    named = [(at, part) for at, part in enumerate(parts) if at and parts[at - 1].lower() == "mcp"]
    runs = tuple(part for at, part in named if at == 1 and address.is_local)
    return runs, _once([part for _, part in named])


def _is_mcpctl(command: str) -> bool:
    return bool(_MCPCTL.fullmatch(command.strip()))


def _words(texts: list[JsonValue]) -> Iterator[str]:
    for text in texts:
        if isinstance(text, str):
            yield from filter(None, _BETWEEN.split(text))


def _is_filled_in(text: str, family: Family | None) -> bool:
    prefix = _prefix(family)
    return bool(_FILLED_IN.search(text)) or bool(prefix and prefix in text)


def _prefix(family: Family | None) -> str:
    return family.expansion.prefix if family is not None and family.expansion is not None else ""


def _listed(args: JsonValue) -> list[str]:
    if isinstance(args, str):
        return [args]
    return [arg for arg in args if isinstance(arg, str)] if isinstance(args, list) else []


def _once(texts: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


def _permissions(server: InstalledServer | None) -> tuple[str, ...] | None:
    return tuple(server.manifest.all_permissions) if server is not None and server.manifest is not None else None


def _sources(server: InstalledServer | None) -> tuple[str, ...]:
    if server is None or server.manifest is None:
        return (UNKNOWN,)
    found: list[str] = []
    if server.script is not None:
        found.append(f"script:{server.id}")
    if server.layer == "vendor":
        found.append(f"vendor:{server.id}")
    if found:
        return tuple(found)
    remote = server.manifest.remote
    if remote is not None:
        return _url("url", remote.address)
    return _source(server.manifest.source) or (UNKNOWN,)


def _source(source: Source | None) -> tuple[str, ...]:
    if source is None:
        return ()
    place = source.url or source.path
    if source.package and (index := INDEXES.get(source.type)):
        return tuple(
            dict.fromkeys(f"{index.type}:{name}" for name in (source.package, index.normalise(source.package)))
        )
    match source.type:
        case SourceType.GIT | SourceType.ARCHIVE | SourceType.MCPB if place:
            return _url(str(source.type), place)
        case SourceType.LOCAL if source.path:
            return (f"local:{source.path}",)
        case _:
            return ()


def _url(kind: str, url: str) -> tuple[str, ...]:
    """Return *url* as it is written, and with scheme and host in lower case, which is equivalent."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return (f"{kind}:{url}",)
    same = urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path, parts.query, parts.fragment))
    return tuple(dict.fromkeys((f"{kind}:{url}", f"{kind}:{same}")))


MAX_POLICY: Final = 1024 * 1024
"""Maximum size of one policy file, in bytes."""

_Glob = Annotated[str, Field(strict=True, min_length=1, max_length=1000)]
_Globs = Annotated[tuple[_Glob, ...], Field(max_length=1000)]
_URL: Final = "url:"
_DOUBTED: Final = ("servers", "commands", "sources")
"""Tables whose rules an entry violates if its program or server is uncertain."""
_Patterns: TypeAlias = "Sequence[tuple[str, re.Pattern[str]]]"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    allowed: _Globs | None = None
    """None allows everything; an empty list allows nothing."""
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
    """A violation of a policy by a configuration."""

    rule: str
    """Such as ``servers.forbidden``."""
    server_id: str
    """Name of the server in the configuration."""
    value: str
    """The forbidden value."""
    message: str
    file: str
    """The policy."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the violation as tools report it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One table of one file."""

    name: str
    file: str
    allowed: _Patterns | None
    forbidden: _Patterns
    urls: _Patterns = ()
    """URLs that the same file allows, each by a glob for URLs."""

    @property
    def is_restrictive(self) -> bool:
        """True if it forbids anything."""
        return bool(self.forbidden) or self.is_selective

    @property
    def is_selective(self) -> bool:
        """True if it allows only some things."""
        return self.allowed is not None and all(glob != "*" for glob, _ in self.allowed)

    def forbids(self, values: Iterable[str]) -> tuple[str, str] | None:
        """Return the first of *values*, spellings of one thing, that is forbidden, and the glob that forbids it."""
        return next(
            ((value, glob) for value in values for glob, match in self.forbidden if match.fullmatch(value)), None
        )

    def admits(self, values: Iterable[str]) -> bool:
        """Return True if one of *values*, spellings of one thing, is allowed."""
        if self.allowed is None:
            return True
        return any(match.fullmatch(value) for value in values for _, match in self.allowed)


class Policy:
    """The policy of one scope."""

    def __init__(self, rules: Sequence[_Rule] = ()) -> None:
        """*rules* come from :meth:`load`; without any everything is allowed."""
        self._rules = tuple(rules)

    @classmethod
    def load(cls, paths: Paths, scope: Scope) -> Policy:
        """Return the policy of *scope* as its files are now.

        Raises :class:`~mcpd.errors.InvalidConfig`, which names the file and the key, if one of them is invalid: then
        nothing may be published or deployed.
        """
        files = [paths.system.policy, *([paths.user.policy] if scope is Scope.USER else [])]
        return cls([rule for file in files for rule in _rules(file)])

    def check(
        self,
        payload: Mapping[str, JsonValue],
        servers: Mapping[str, InstalledServer],
        family: Family | None = None,
    ) -> list[Violation]:
        """Return the violations in *payload*, for the clients *family*, by server.

        *servers* are the installed ones, by id. ``forbidden`` beats ``allowed``, and all files have to allow a thing.
        An entry of uncertain meaning violates every rule that restricts servers, commands or sources.
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
        return f"{'.'.join(printable(str(part)) for part in first['loc'])}: unknown rule"
    return first_fault(error)


def _unusable(fault: str) -> InvalidConfig:
    return InvalidConfig(f"{fault}; as long as this policy cannot be read, no configuration is published or deployed")


def _check_servers(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    """Check the name, and the ids of what it runs: another name does not make it another server."""
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
    """Check the command as written; ``forbidden`` also applies to its last part, in any directory."""
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
    """Check an entry without a command: if the file restricts commands, its ``sources.allowed`` must allow the URL."""
    if not rule.is_selective or any(
        match.fullmatch(source) for source in origin.sources for _, match in rule.urls if source.startswith(_URL)
    ):
        return []
    what = f"it has no command, and no '{_URL}…' in sources.allowed of the same file allows it"
    return [_violation(rule, name, "allowed", origin.written or UNKNOWN, what)]


def _check_sources(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    shown = origin.written or origin.sources[0]
    what = f"the source {printable(shown)!r}"
    if shown == UNKNOWN:
        why = f" ({printable(origin.fault)})" if origin.fault else ""
        what = f"its source is {UNKNOWN!r}, because it is not simply 'mcpctl run ID' of an installed server{why}; that"
    return _against(rule, name, origin.sources, what, also_forbidden=(shown,), shown=shown)


def _check_doubt(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    if not origin.doubt or rule.name not in _DOUBTED or not rule.is_restrictive:
        return []
    value = origin.command if origin.command is not None else origin.written or UNKNOWN
    what = f"{origin.doubt}, so it is uncertain whether it is allowed"
    return [_violation(rule, name, "allowed" if rule.is_selective else "forbidden", value, what)]


def _check_permissions(rule: _Rule, name: str, origin: Origin) -> list[Violation]:
    if origin.permissions is None:
        # The permissions of a server that mcpd did not install are unknown, so no list includes them.
        return _against(rule, name, (UNKNOWN,), "a server whose permissions are unknown")
    found: list[Violation] = []
    for permission in origin.permissions:
        base = permission.partition("?")[0]
        # Permission to create includes writing, so a rule on writing covers it.
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
    """Return the violation of *rule* by *values*, the spellings of one thing that *what* names; at most one."""
    values = tuple(values)
    if forbidden := rule.forbids((*values, *also_forbidden)):
        return [
            _violation(rule, name, "forbidden", forbidden[0], f"{what} is forbidden by {printable(forbidden[1])!r}")
        ]
    if not rule.admits(values):
        return [_violation(rule, name, "allowed", shown or values[0], f"{what} is not allowed")]
    return []


def _violation(rule: _Rule, name: str, kind: str, value: str, what: str) -> Violation:
    shown = printable(name)
    text = f"server '{shown}': {what} ({rule.name}.{kind} in {rule.file}); remove the server or change the policy"
    return Violation(f"{rule.name}.{kind}", shown, printable(value), text, rule.file)
