# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the server of a configuration's entry comes from, as a policy asks for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from mcpd.clients.addresses import read_address
from mcpd.clients.payload import COMMAND, RUN
from mcpd.model import ID_PATTERN, SourceType
from mcpd.model.steering import is_steering
from mcpd.package_sources import INDEXES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcpd.clients.addresses import Address
    from mcpd.clients.family import Family
    from mcpd.model import JsonValue, Source
    from mcpd.store.index import InstalledServer

UNKNOWN: Final = "unknown"
"""The source of what is not installed, or not run by mcpd."""
_WORDS: Final = frozenset({RUN, "spawn"})
_FIELDS: Final = frozenset({"type", "command", "args", "env"})
"""What an entry that plainly runs an installed server may have."""
_SYNTAXES: Final = ("${%s}", "${env:%s}", "{env:%s}", "${{ secrets.%s }}")
"""How clients write a variable; which of them a client has, only its description says."""
_LOADERS: Final = re.compile(r"PATH|LD_.*|DYLD_.*|GCONV_PATH|GLIBC_TUNABLES|LOCPATH", re.DOTALL)
"""Variables that make another program of whatever is started."""
_FILLED_IN: Final = re.compile(r"[${}`]|%[^%\s]{1,256}%")
_BETWEEN: Final = re.compile(r"[\s'\"`;&|()<>=,]+")
_MCPCTL: Final = re.compile(
    rf"(?:.*[/\\])?{COMMAND}(?:\.exe)?[/\\.]*|mcpd\.cli(?:\.main)?|.*mcpd[/\\]cli(?:[/\\](?:main|__main__)\.py)?",
    re.IGNORECASE | re.DOTALL,
)
_ADDRESS: Final = re.compile(r"https?:[^\s'\"]{1,4000}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of the server behind one entry."""

    command: str | None = None
    """None for an entry with a URL."""
    runs: tuple[str, ...] = ()
    """Ids of the installed servers that it may run; empty if none."""
    names: tuple[str, ...] = ()
    """Further texts that are ids if its URL, or a program between, leads to mcpd after all."""
    sources: tuple[str, ...] = (UNKNOWN,)
    """Where it comes from, such as ``npm:NAME``, in one or more spellings that mean the same; at least one."""
    written: str | None = None
    """The source as it is written, where the usual spelling is another."""
    permissions: tuple[str, ...] | None = None
    """What its manifest asks for; None if that is not known."""
    fault: str = ""
    """Why it runs something else than its command says; empty if that is not so."""
    doubt: str = ""
    """Why it cannot be told which program or server it is; empty if it can."""


def origin_of(entry: JsonValue, servers: Mapping[str, InstalledServer], family: Family | None = None) -> Origin:
    """The origin of *entry*, where *servers* are the installed ones by id.

    *family* are the clients that it is for; without them, variables may be written in any client's way.
    """
    if not isinstance(entry, dict):
        return Origin(doubt="it is no object")
    url, command = entry.get("url"), entry.get("command")
    if url is not None and command is None:
        return _remote(url, servers, family)
    return _local(entry, servers, family)


def runs_mcpctl(entry: Mapping[str, JsonValue]) -> bool:
    """Whether *entry* starts ``mcpctl``, by itself or by way of another program."""
    command = entry.get("command")
    return (isinstance(command, str) and _is_mcpctl(command)) or any(
        _MCPCTL.fullmatch(word) for word in _words([command, *_listed(entry.get("args"))])
    )


def is_passed_on(name: str, value: JsonValue, family: Family | None) -> bool:
    """Whether *value* of the variable *name* is what *family* replaces by that very variable of its environment."""
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
        return Origin(doubt="its url is no text")
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
        doubt = doubt or "a placeholder stands in its command"
    names: list[str] = []
    for word in _listed(args):
        for found in _ADDRESS.finditer(word):
            runs, others = _bridged(read_address(found[0]))
            names += (*runs, *others)
    if not _is_mcpctl(text):
        if runs_mcpctl(entry):
            doubt = doubt or f"it runs {COMMAND} by way of another program"
        if doubt:
            names += _words([text, *_listed(args)])
        return Origin(text, (), _once(names), fault=_loader(entry, text, family), doubt=doubt)
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        doubt = doubt or f"what it passes to {COMMAND} is no list of texts"
    elif any(_is_filled_in(word, family) for word in _listed(args)):
        doubt = doubt or f"a placeholder stands in what it passes to {COMMAND}"
    names += [word.partition("=")[2] for word in _listed(args) if word.startswith("-")]
    runs, fault = _run(_listed(args)), _unusual(entry, family)
    server = servers.get(runs[0]) if text == COMMAND and runs and not fault and not doubt else None
    return Origin(text, runs, _once(names), _sources(server), None, _permissions(server), fault, doubt)


def _run(args: list[str]) -> tuple[str, ...]:
    """The ids that ``mcpctl`` may be told to run; for another spelling than the usual one, all that may be ids."""
    words = [arg for arg in args if not arg.startswith("-")]
    if words and words[0] in _WORDS:
        words = words[1:]
    return _once(words)


def _unusual(entry: Mapping[str, JsonValue], family: Family | None) -> str:
    """What of an entry of ``mcpctl`` makes it do something else than run an installed server; empty if nothing."""
    args = entry.get("args")
    if not (isinstance(args, list) and len(args) == 2 and args[0] == RUN):
        return f"its arguments are not '{RUN} ID'"
    if not (isinstance(args[1], str) and ID_PATTERN.fullmatch(args[1])):
        return "what it runs is no id"
    if further := sorted(entry.keys() - _FIELDS):
        return f"it has a field {further[0][:140]!a}"
    if entry.get("type", "stdio") != "stdio":
        return "its type is not stdio"
    return _unusual_variable(entry.get("env", {}), family)


def _unusual_variable(env: JsonValue, family: Family | None) -> str:
    if not isinstance(env, dict):
        return "its env is no object"
    for name, value in env.items():
        if is_steering(name):
            return f"the variable {name[:140]!a} steers {COMMAND} itself"
        if not is_passed_on(name, value, family):
            return f"the variable {name[:140]!a} is not passed on as the client has it"
    return ""


def _loader(entry: Mapping[str, JsonValue], command: str, family: Family | None) -> str:
    """What of the environment makes another program of *command*; empty if nothing."""
    env = entry.get("env", {})
    if not isinstance(env, dict):
        return "its env is no object"
    for name, value in env.items():
        is_sought = name != "PATH" or not re.search(r"[/\\]", command)
        if _LOADERS.fullmatch(name) and is_sought and not is_passed_on(name, value, family):
            return f"the variable {name[:140]!a} makes another program of it"
    return ""


def _bridged(address: Address) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The id of the server that *address* names on a bridge of this machine, and what would be one on another."""
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
    """*url* as it is written, and with scheme and host in lower case, which mean the same."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return (f"{kind}:{url}",)
    same = urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path, parts.query, parts.fragment))
    return tuple(dict.fromkeys((f"{kind}:{url}", f"{kind}:{same}")))
