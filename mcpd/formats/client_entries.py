# SPDX-License-Identifier: LGPL-2.1-or-later
"""One server as a client's file has it, whatever the client calls its fields."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mcpd.errors import InvalidManifest
from mcpd.formats.keys import scalar_text
from mcpd.formats.launchers import Command
from mcpd.model.base import printable

_KINDS: Final = {
    **dict.fromkeys(("http", "streamable-http", "streamable_http", "streamablehttp", "remote"), "streamable-http"),
    "sse": "sse",
    **dict.fromkeys(("ws", "websocket"), "websocket"),
}
_NOT_KEPT: Final = (
    *("enabled_tools", "disabled_tools", "enabledTools", "disabledTools", "includeTools", "excludeTools"),
    *("auth", "authProviderType", "headersHelper", "oauth"),
)
"""What some clients do with tools and for a sign-in, and mcpd otherwise."""
_MOST: Final = 1_024
"""Arguments, variables or headers of one server."""


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """One server: either a command or a URL."""

    command: Command | None
    env: dict[str, str] = field(repr=False)
    passed: tuple[str, ...]
    """Variables of the client's environment that the server gets under their own names."""
    cwd: str
    url: str = field(repr=False)
    kind: str
    """The type of its transport, empty where the file does not say."""
    headers: dict[str, str] = field(repr=False)
    bearer: str
    """The variable that holds a bearer token."""
    header_variables: dict[str, str]
    """Headers, and the variables that hold their values."""
    disabled: bool
    env_file: str
    not_kept: tuple[str, ...]
    """Fields that say something which does not count here."""
    description: str

    @classmethod
    def parse(cls, raw: object, where: str) -> ClientEntry:
        """Read *raw*. Raises :class:`~mcpd.errors.InvalidManifest`, beginning with *where*, that names the field."""
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
            not_kept=tuple(name for name in _NOT_KEPT if raw.get(name)),
            description=reader.text("description"),
        )

    def elsewhere(self, url: str, kind: str, headers: dict[str, str]) -> ClientEntry:
        """The server at *url*, which this one only leads to."""
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
    """Reads fields that have one name or another."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._raw = raw
        self._where = where

    def text(self, *names: str) -> str:
        name, value = self._first(names)
        if value is None or isinstance(value, (dict, list)):
            return ""
        if not isinstance(value, str):
            raise InvalidManifest(f"{self._where}: {name} is not a text")
        return value

    def texts(self, *names: str) -> dict[str, str]:
        name, value = self._first(names)
        if value is None:
            return {}
        if not isinstance(value, dict) or any(isinstance(each, (dict, list)) for each in value.values()):
            raise InvalidManifest(f"{self._where}: {name} is not a map of texts")
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
        if isinstance(value, dict):  # as Zed had it
            arguments, value = value.get("args"), value.get("path")
        words = value if isinstance(value, list) else [value]
        arguments = [] if arguments is None else arguments
        if value is None:
            return None
        if not isinstance(arguments, list) or len(arguments) > _MOST or not all(_is_plain(word) for word in arguments):
            raise InvalidManifest(f"{self._where}: args is not a list of texts")
        if not words or not all(isinstance(word, str) for word in words):
            raise InvalidManifest(f"{self._where}: {name} is neither a text nor a list of texts")
        if len(words) == 1 and not arguments and " " in words[0] and not words[0].startswith("/"):
            words = self._split(words[0])
        whole = _without_windows([*words, *(scalar_text(word) for word in arguments)])
        if not whole or not whole[0]:
            raise InvalidManifest(f"{self._where}: {name} is empty")
        command = Command(whole[0], tuple(whole[1:]))
        if command.name in {"sh", "bash", "zsh", "dash", "fish", "cmd", "powershell", "pwsh"}:
            raise InvalidManifest(
                f"{self._where}: {printable(command.name)} runs a command line; write the program and its arguments"
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
    """*words* without the shell by which Windows starts scripts."""
    if len(words) > 2 and words[0].lower() in {"cmd", "cmd.exe"} and words[1].lower() == "/c":
        return words[2:]
    return words
