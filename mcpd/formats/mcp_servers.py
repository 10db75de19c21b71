# SPDX-License-Identifier: LGPL-2.1-or-later
"""Import of the servers in a client's configuration file (``mcpServers`` and similar) as entries.

Settings that mcpd cannot honor are reported as problems, and the server is left out. Credentials are separated from the
entries, and paths in arguments and variables become permissions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.errors import InvalidManifest
from mcpd.formats.keys import ENVIRONMENT_NAME, HEADER_NAME, UniqueKeys, scalar_text
from mcpd.formats.launchers import NIX_STORE, Command, local_command, package_of, permissions_of
from mcpd.model import JsonValue
from mcpd.model.base import ID_PATTERN, RESERVED_IDS, Problem, check_json, id_from_name, printable
from mcpd.model.entry import NETWORK, Entry
from mcpd.model.placeholders import placeholders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KINDS: Final = {
    **dict.fromkeys(("http", "streamable-http", "streamable_http", "streamablehttp", "remote"), "streamable-http"),
    "sse": "sse",
    **dict.fromkeys(("ws", "websocket"), "websocket"),
}
_IGNORED: Final = (
    *("enabled_tools", "disabled_tools", "enabledTools", "disabledTools", "includeTools", "excludeTools"),
    *("auth", "authProviderType", "headersHelper", "oauth"),
)
"""Fields for tool filters and sign-in, which mcpd handles differently."""
_MOST: Final = 1_024
"""Maximum number of arguments, variables or headers of one server."""


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """One server in a client's file, with either a command or a URL."""

    command: Command | None
    env: dict[str, str] = field(repr=False)
    passed: tuple[str, ...]
    """Variables of the client's environment that the server gets under the same names."""
    cwd: str
    url: str = field(repr=False)
    kind: str
    """Transport type, empty if unknown."""
    headers: dict[str, str] = field(repr=False)
    bearer: str
    """Name of the variable that holds a bearer token."""
    header_variables: dict[str, str]
    """Names of headers, mapped to the variables that hold their values."""
    disabled: bool
    env_file: str
    ignored: tuple[str, ...]
    """Fields that have no effect in mcpd."""
    description: str

    @classmethod
    def parse(cls, raw: object, where: str) -> ClientEntry:
        """Parse *raw*.

        Raises :class:`~mcpd.errors.InvalidManifest`, whose message begins with *where* and names the field.
        """
        if not isinstance(raw, dict):
            raise InvalidManifest(f"{where}: not an object")
        reader = _Reader(raw, where)
        kind = reader.text("type", "transport").replace(" ", "").lower()
        url = reader.text("url", "httpUrl", "serverUrl", "uri", "baseUrl", "wsUrl")
        command = reader.command() if kind not in _KINDS or not url else None
        if command is None and not url:
            raise InvalidManifest(f"{where}: has neither a command nor a url")
        if "httpUrl" in raw and not kind:
            kind = "http"
        return cls(
            command=command,
            env=reader.texts("env", "envs", "environment"),
            passed=reader.names("env_vars", "env_keys"),
            cwd=reader.text("cwd", "working_directory", "workingDirectory"),
            url=url,
            kind=_KINDS.get(kind, ""),
            headers=reader.texts("headers", "http_headers", "requestOptions.headers"),
            bearer=reader.text("bearer_token_env_var"),
            header_variables=reader.texts("env_http_headers"),
            disabled=raw.get("disabled") is True or raw.get("enabled") is False or raw.get("active") is False,
            env_file=reader.text("envFile"),
            ignored=tuple(name for name in _IGNORED if raw.get(name)),
            description=reader.text("description"),
        )

    def redirected_to(self, url: str, kind: str, headers: dict[str, str]) -> ClientEntry:
        """Return a copy of this entry that describes a remote server at *url*."""
        return replace(
            self,
            command=None,
            env={},
            passed=(),
            cwd="",
            url=url,
            kind=kind,
            headers=headers,
            bearer="",
            header_variables={},
        )


class _Reader:
    """Reader of fields that have several alternative names."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._raw = raw
        self._where = where

    def text(self, *names: str) -> str:
        name, value = self._first(names)
        if value is None or isinstance(value, (dict, list)):
            return ""
        if not isinstance(value, str):
            raise InvalidManifest(f"{self._where}: {name} is not a string")
        return value

    def texts(self, *names: str) -> dict[str, str]:
        name, value = self._first(names)
        if value is None:
            return {}
        if not isinstance(value, dict) or any(isinstance(each, (dict, list)) for each in value.values()):
            raise InvalidManifest(f"{self._where}: {name} is not a map of strings")
        if len(value) > _MOST:
            raise InvalidManifest(f"{self._where}: {name} has more than {_MOST} members")
        return {key: scalar_text(each) for key, each in value.items() if each is not None}

    def names(self, *names: str) -> tuple[str, ...]:
        name, value = self._first(names)
        if value is None:
            return ()
        if isinstance(value, list):
            value = [each.get("name") if isinstance(each, dict) else each for each in value]
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value) or len(value) > _MOST:
            raise InvalidManifest(f"{self._where}: {name} is not a list of names")
        return tuple(value)

    def command(self) -> Command | None:
        name, value = self._first(("command", "cmd"))
        arguments: object = self._raw.get("args")
        if isinstance(value, dict):  # the form in older versions of Zed
            arguments, value = value.get("args"), value.get("path")
        words = value if isinstance(value, list) else [value]
        arguments = [] if arguments is None else arguments
        if value is None:
            return None
        if not isinstance(arguments, list) or len(arguments) > _MOST or not all(_is_plain(word) for word in arguments):
            raise InvalidManifest(f"{self._where}: args is not a list of strings")
        if not words or not all(isinstance(word, str) for word in words):
            raise InvalidManifest(f"{self._where}: {name} is neither a string nor a list of strings")
        if len(words) == 1 and not arguments and " " in words[0] and not words[0].startswith("/"):
            words = self._split(words[0])
        whole = _without_windows([*words, *(scalar_text(word) for word in arguments)])
        if not whole or not whole[0]:
            raise InvalidManifest(f"{self._where}: {name} is empty")
        command = Command(whole[0], tuple(whole[1:]))
        if command.name in {"sh", "bash", "zsh", "dash", "fish", "cmd", "powershell", "pwsh"}:
            raise InvalidManifest(
                f"{self._where}: {printable(command.name)} runs a shell command line; specify the program and its"
                " arguments instead"
            )
        return command

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            found: Any = self._raw
            for part in name.split("."):
                found = found.get(part) if isinstance(found, dict) else None
            if found is not None:
                return name, found
        return names[0], None

    def _split(self, line: str) -> list[str]:
        try:
            return shlex.split(line)
        except ValueError as error:
            raise InvalidManifest(f"{self._where}: command: {error}") from error


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float))


def _without_windows(words: list[str]) -> list[str]:
    """Return *words* without a leading ``cmd /c``, which starts scripts on Windows."""
    if len(words) > 2 and words[0].lower() in {"cmd", "cmd.exe"} and words[1].lower() == "/c":
        return words[2:]
    return words


FindSecrets: TypeAlias = Callable[[Mapping[str, JsonValue]], Iterable[tuple[str, str]]]

_VARIABLE: Final = re.compile(
    r"\$\{\{\s{0,9}(?:secrets|inputs|env)\.(?P<doubled>[A-Za-z0-9_.-]{1,128})\s{0,9}\}\}"
    r"|\$\{(?:(?P<kind>env|input|secrets?|config):)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,127})(?::-(?P<default>[^{}]*))?\}"
    r"|\{env:(?P<braced>[A-Za-z_][A-Za-z0-9_]{0,127})\}"
    r"|(?<![A-Za-z0-9_$])\$(?P<bare>[A-Z_][A-Z0-9_]{0,127})(?![A-Za-z0-9_])",
    re.ASCII,
)
_FILE: Final = re.compile(r"\{file:[^{}]+\}")
_DIRECTORIES: Final = {
    **dict.fromkeys(("workspaceFolder", "workspaceRoot", "projectRoot", "cwd"), "Directory of the project"),
    "userHome": "Home directory",
    "HOME": "Home directory",
}
"""Variables for directories of the client's project or user, with their labels."""


@dataclass(slots=True)
class FilledEntry:
    """Values of one entry, with placeholders in place of the client's variables."""

    command: Command | None = None
    url: str = ""
    env: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    """Permissions for paths that the user sets."""
    properties: list[dict[str, Any]] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


class Values:
    """Conversion of the variables of one entry to configurable properties."""

    def __init__(self, find_secrets: FindSecrets, inputs: object, where: str) -> None:
        """*inputs* are the declarations of user input in a VS Code file."""
        self.where = where
        self._find_secrets = find_secrets
        self._inputs = {
            declared["id"]: declared
            for declared in (inputs if isinstance(inputs, list) else [])
            if isinstance(declared, dict) and isinstance(declared.get("id"), str)
        }
        self._taken = UniqueKeys()
        self._keys: dict[str, str] = {}
        """Property keys by variable."""
        self._found = FilledEntry()

    def fill(self, entry: ClientEntry, command: Command | None) -> FilledEntry:
        """Return the filled-in values of *entry* with *command*, which is None if its package defines the command.

        Raises :class:`~mcpd.errors.InvalidManifest` for credentials that other users could read.
        """
        found = self._found
        here = entry.command
        canonical: dict[str, JsonValue] = {"env": dict(entry.env), "headers": dict(entry.headers)}
        if here is not None:
            # Check the original command, since arguments of a package runner may contain secrets, too.
            canonical |= {"command": here.program, "args": list(here.arguments)}
        else:
            canonical["url"] = entry.url
        secrets = dict(self._find_secrets(canonical))
        if here is not None:
            for name in entry.passed:
                self._environment(name, f"${{env:{name}}}", secret=False)
            for name, text in entry.env.items():
                self._environment(name, text, secret=f"env.{name}" in secrets)
            self._refuse_exposed_secrets(secrets)
            if command is not None:
                arguments = tuple(self._argument(text, index) for index, text in enumerate(command.arguments))
                found.command = replace(command, arguments=arguments)
            return found
        self._url(entry.url, secret="url" in secrets)
        for name, text in entry.headers.items():
            self._header(name, text, secret=f"headers.{name}" in secrets)
        for name, variable in entry.header_variables.items():
            self._header(name, f"${{env:{variable}}}", secret=False)
        if entry.bearer:
            self._header("Authorization", f"Bearer ${{env:{entry.bearer}}}", secret=False)
        return found

    def _refuse_exposed_secrets(self, secrets: Mapping[str, str]) -> None:
        for place, why in secrets.items():
            if place == "command" or place.startswith("args["):
                shown = "an argument" if place.startswith("args[") else "its command"
                raise InvalidManifest(
                    f"{self.where}: {shown} contains a secret ({why}), which every user on this machine could read; put"
                    " it into a variable under env, if the server supports that"
                )

    def _environment(self, name: str, text: str, *, secret: bool) -> None:
        if not ENVIRONMENT_NAME.fullmatch(name):
            raise InvalidManifest(f"{self.where}: env: {printable(name)!r} cannot be the name of a variable")
        whole = _VARIABLE.fullmatch(text)
        variable = _name(whole) if whole else ""
        if secret:
            key = self._taken.take(name)
            # The key of a property with the target "env" is the name of the variable.
            target = "env" if key == name else "manifest"
            self._add(key, label=name, target=target, sensitive=True, value=text)
            if key != name:
                self._found.env[name] = f"{{config.{key}}}"
        elif whole and variable not in self._keys and variable not in _DIRECTORIES and self._taken.is_free(name):
            self._keys[variable] = self._taken.take(name)
            self._declare(self._keys[variable], whole, target="env", label=name, sensitive=True)
        else:
            self._found.env[name] = self._filled(text, f"env.{name}")

    def _header(self, name: str, text: str, *, secret: bool) -> None:
        if not HEADER_NAME.fullmatch(name):
            raise InvalidManifest(f"{self.where}: headers: {printable(name)!r} cannot be the name of a header")
        if secret:
            key = self._taken.take(name)
            self._add(key, label=name, target="header", sensitive=True, value=text)
            text = f"{{config.{key}}}"
        else:
            text = self._filled(text, f"headers.{name}")
        self._found.headers[name] = text

    def _url(self, text: str, *, secret: bool) -> None:
        if not secret:
            self._found.url = self._filled(text, "url")
            return
        key = self._taken.take("URL")
        self._add(
            key, label="Address of the server, with its credentials", target="manifest", sensitive=True, value=text
        )
        self._found.url = f"{{config.{key}}}"

    def _argument(self, text: str, index: int) -> str:
        for found in _VARIABLE.finditer(text):
            name = _name(found)
            if self._is_secret(found):
                raise InvalidManifest(
                    f"{self.where}: args[{index}]: {printable(name)!r} is a secret, and every user of the machine could"
                    " read an argument; put it in a variable under env, if the server supports that"
                )
        return self._filled(text, f"args[{index}]", sensitive=False)

    def _is_secret(self, found: re.Match[str]) -> bool:
        """Return whether the variable *found* in an argument is secret, judged by its declaration or else its name."""
        name = _name(found)
        declared = self._inputs.get(name)
        if found["kind"] == "input" and declared is not None:
            return declared.get("password") is True
        return any(True for _ in self._find_secrets({"env": {name: "unknown value"}}))

    def _filled(self, text: str, place: str, *, sensitive: bool = True) -> str:
        """Return *text* with each variable replaced with ``{config.KEY}``, and add properties for the keys."""
        if _FILE.search(text):
            raise InvalidManifest(f"{self.where}: {place}: {{file:…}} is not supported; insert the value")
        if placeholders(text):
            raise InvalidManifest(
                f"{self.where}: {place}: {{config.…}} is a placeholder of mcpd and cannot be imported"
            )

        def key(found: re.Match[str]) -> str:
            name = _name(found)
            if name not in self._keys:
                self._keys[name] = self._taken.take(name)
                self._declare(self._keys[name], found, target="manifest", label=name, sensitive=sensitive)
            return f"{{config.{self._keys[name]}}}"

        return _VARIABLE.sub(key, text)

    def _declare(self, key: str, found: re.Match[str], *, target: str, label: str, sensitive: bool) -> None:
        """Add the property *key* for the variable *found*."""
        name = _name(found)
        if name in _DIRECTORIES:
            self._found.properties.append(
                {"key": key, "label": _DIRECTORIES[name], "type": "path", "required": True, "target": "manifest"}
            )
            self._found.paths.append(f"filesystem:rw:{{config.{key}}}")
            return
        declared = self._inputs.get(name, {}) if found["kind"] == "input" else {}
        if declared.get("password") is False or (declared and "password" not in declared):
            sensitive = False
        default = found["default"] or declared.get("default")
        extra: dict[str, Any] = {} if default is None or sensitive else {"default": default}
        if isinstance(declared.get("options"), list):
            extra["choices"] = declared["options"]
        self._add(key, label=str(declared.get("description") or label), target=target, sensitive=sensitive, extra=extra)

    def _add(
        self,
        key: str,
        *,
        label: str,
        target: str,
        sensitive: bool,
        value: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        document = {"key": key, "label": label, "target": target, "required": True, **(extra or {})}
        self._found.properties.append(document | ({"sensitive": True} if sensitive else {}))
        if value is not None:
            self._found.secrets[key] = value


def _name(found: re.Match[str]) -> str:
    return found["doubled"] or found["name"] or found["braced"] or found["bare"] or ""


_KEYS: Final = (("mcpServers",), ("servers",), ("mcp", "servers"), ("mcp",), ("context_servers",), ("mcp_servers",),
                ("extensions",))  # fmt: skip
"""Keys under which clients keep their servers."""
_UNAMBIGUOUS: Final = frozenset({("mcpServers",), ("context_servers",), ("mcp_servers",)})
"""Keys that clients use only for servers, so that their content needs no further check."""
_MOST_SERVERS: Final = 1_000
"""Maximum number of servers in one file."""
_MCPD_PROGRAMS: Final = frozenset({"mcpctl", "mcpd", "mcpd-bridge", "mcpd-remote"})
_MCP_REMOTE_VALUES: Final = frozenset(
    {"--header", "--transport", "--host", "--resource", "--auth-timeout", "--ignore-tool", "--static-oauth-client-info"}
    | {"--static-oauth-client-metadata"}
)


@dataclass(frozen=True, slots=True)
class Imported:
    """One imported server."""

    entry: dict[str, Any]
    """The entry without credentials."""
    secrets: dict[str, str] = field(repr=False)
    """The credentials by property key."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The importable servers of a file, and messages about imported and skipped servers."""

    servers: list[Imported]
    problems: list[Problem]


def is_client_file(document: object) -> bool:
    """Return whether *document* looks like a client's configuration file rather than a registry."""
    return any(True for _ in _maps(document))


def servers_of(document: object, origin: str, find_secrets: FindSecrets) -> ImportResult:
    """Return the servers in *document*, a client's parsed file from *origin* (for messages).

    *find_secrets* gets a plain entry (``command``, ``args``, ``env``, ``url``, ``headers``, ``cwd``) and yields the
    fields that contain a secret, as ``env.NAME`` or ``args[2]``, each with a reason.

    Raises :class:`~mcpd.errors.InvalidManifest` for a document without servers.
    """
    found = [item for servers in _maps(document) for item in _items(servers)]
    if not found:
        raise InvalidManifest(
            f"{origin}: not a client's file: no servers under {', '.join('.'.join(key) for key in _KEYS)}"
        )
    if len(found) > _MOST_SERVERS:
        raise InvalidManifest(f"{origin}: {len(found)} servers, at most {_MOST_SERVERS} are read")
    inputs = _at(document, ("inputs",)) or _at(document, ("mcp", "inputs"))
    result = ImportResult([], [])
    taken: set[str] = set()
    for name, raw in found:
        where = f"{origin}: {printable(name)}"
        notes: list[str] = []
        try:
            entry = _read(name, raw, where)
            if entry.disabled:
                notes.append("is disabled in the file and was skipped")
                continue
            server_id = _id(name, taken)
            result.servers.append(_imported(server_id, name, entry, Values(find_secrets, inputs, where), notes.append))
            taken.add(server_id)
            if server_id != name:
                notes.append(f"is named {server_id} here")
        except InvalidManifest as error:
            result.problems.append(Problem(origin, printable(name), error.message))
        finally:
            result.problems.extend(Problem(origin, printable(name), f"{where}: {note}") for note in notes)
    return result


def _read(name: str, raw: object, where: str) -> ClientEntry:
    """Check and parse the entry *raw*."""
    try:
        check_json({name: raw})
    except ValueError:
        # The original message quotes the text, which may be a credential.
        raise InvalidManifest(f"{where}: contains NUL or a lone surrogate, or is nested too deeply") from None
    return ClientEntry.parse(raw, where)


def _maps(document: object) -> Iterator[dict[str, Any] | list[Any]]:
    for path in _KEYS:
        found = _at(document, path)
        if isinstance(found, (dict, list)) and (path in _UNAMBIGUOUS or _holds_entries(found)):
            yield found


def _at(document: object, path: Sequence[str]) -> object:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _holds_entries(found: dict[str, Any] | list[Any]) -> bool:
    return isinstance(found, dict) and any(_is_entry(value) for value in found.values())


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict) or {"transports", "manifest"} & value.keys():
        return False
    if isinstance(value.get("transport"), dict) or isinstance(value.get("source"), dict):
        return False
    return any(key in value for key in ("command", "cmd", "url", "httpUrl", "serverUrl", "uri", "wsUrl"))


def _items(servers: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(servers, dict):
        yield from servers.items()
        return
    for number, server in enumerate(servers):
        name = server.get("name") if isinstance(server, dict) else None
        yield (name if isinstance(name, str) and name else f"server {number}"), server


def _id(name: str, taken: set[str]) -> str:
    base = id_from_name(name)
    server_id, number = base, 1
    while server_id in taken or server_id in RESERVED_IDS or not ID_PATTERN.fullmatch(server_id):
        number += 1
        server_id = f"{base[:120]}-{number}"
    return server_id


def _imported(server_id: str, name: str, entry: ClientEntry, values: Values, note: Callable[[str], None]) -> Imported:
    document: dict[str, Any] = {"id": server_id, "name": name, "summary": entry.description, "version": ""}
    if entry.env_file:
        note("its envFile is not read; give its variables with mcpctl secret set and mcpctl config set")
    for field_name in entry.ignored:
        note(f"its {field_name} is ignored")
    command = entry.command
    packaged = package_of(command, values.where) if command is not None else None
    if command is not None and command.name in _MCPD_PROGRAMS:
        raise InvalidManifest(f"{values.where}: starts mcpd itself, so there is nothing to import")
    if packaged is not None and packaged.source.get("package") == "mcp-remote" and packaged.command is not None:
        entry = _behind_mcp_remote(packaged.command.arguments[1:], entry, values.where, note)
        command = packaged = None
    found = values.fill(entry, packaged.command if packaged else command)
    if command is None:
        document["transports"] = [_remote(entry, found)]
    else:
        document |= _program(entry, found, packaged.source if packaged else None, values.where, note)
    if found.properties:
        document["configurableProperties"] = found.properties
    parsed = Entry.parse(document, values.where)
    if parsed.remote is not None:
        try:
            parsed.remote.check_remote()
        except InvalidManifest as error:
            raise InvalidManifest(f"{values.where}: {error.message}") from error
    return Imported(parsed.to_json(), found.secrets)


def _remote(entry: ClientEntry, found: FilledEntry) -> dict[str, Any]:
    kind = entry.kind or ("sse" if entry.url.split("?")[0].rstrip("/").endswith("/sse") else "streamable-http")
    if entry.url.lower().startswith(("ws://", "wss://")):
        kind = "websocket"
    address = {"wsUrl" if kind == "websocket" else "url": found.url}
    return {"type": kind, **address} | ({"headers": found.headers} if found.headers else {})


def _program(
    entry: ClientEntry, found: FilledEntry, source: dict[str, Any] | None, where: str, note: Callable[[str], None]
) -> dict[str, Any]:
    """Return the package source, transport, variables and permissions of a server that runs on this machine."""
    command = found.command
    if source is None and command is not None:
        local = local_command(command, entry.cwd, where)
        source, command = local.source, local.command
    if entry.cwd and (source is None or source["type"] != "local"):
        note("its working directory is ignored: mcpd starts it in its installation directory")
    named = [*(command.arguments if command else ()), *found.env.values()]
    if command is not None and command.program.startswith(NIX_STORE):
        named.append(command.program)
    paths = list(dict.fromkeys([*found.paths, *permissions_of(named)]))
    document: dict[str, Any] = {"permissions": [NETWORK, *paths]}
    if source is not None:
        document["source"] = source
        document["version"] = source.get("version", "")
    if command is not None:
        document["transports"] = [{"type": "stdio", "command": command.program, "args": list(command.arguments)}]
    dropped = sorted(found.env.keys() & {"PATH", "HOME"})
    if dropped:
        note(f"{' and '.join(dropped)} are omitted: mcpd sets them itself")
    if env := {key: text for key, text in found.env.items() if key not in dropped}:
        document["env"] = env
    return document


def _behind_mcp_remote(
    arguments: Sequence[str], entry: ClientEntry, where: str, note: Callable[[str], None]
) -> ClientEntry:
    """Return the remote server that ``mcp-remote`` with *arguments* connects to; mcpd connects to it directly."""
    words, url, kind = list(arguments), "", ""
    headers: dict[str, str] = {}
    while words:
        word = words.pop(0)
        value = words.pop(0) if word in _MCP_REMOTE_VALUES and words else ""
        if word == "--header":
            name, _, text = value.partition(":")
            headers[name.strip()] = _from_env(text.strip(), entry.env)
        elif word == "--transport":
            kind = {"sse-only": "sse", "http-only": "streamable-http"}.get(value, "")
        elif word in _MCP_REMOTE_VALUES:
            note(f"the option {word} of mcp-remote is ignored")
        elif not word.startswith("-") and not url:
            url = word
    if not url:
        raise InvalidManifest(f"{where}: mcp-remote has no URL")
    return entry.redirected_to(url, kind, headers)


def _from_env(text: str, env: Mapping[str, JsonValue]) -> str:
    for name, value in env.items():
        if isinstance(value, str):
            text = text.replace(f"${{{name}}}", value)
    return text
