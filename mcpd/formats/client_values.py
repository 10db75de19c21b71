# SPDX-License-Identifier: LGPL-2.1-or-later
"""The values in a client's entry: credentials taken out, and what a client would fill in made properties."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.errors import InvalidManifest
from mcpd.formats.keys import ENVIRONMENT_NAME, HEADER_NAME, Keys
from mcpd.model import JsonValue
from mcpd.model.base import printable
from mcpd.model.placeholders import placeholders

if TYPE_CHECKING:
    from mcpd.formats.client_entries import ClientEntry
    from mcpd.formats.launchers import Command

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
"""What depends on where a client runs, and whose it is."""


@dataclass(slots=True)
class Found:
    """What became of the values of one entry."""

    command: Command | None = None
    url: str = ""
    env: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    """Permissions for paths that the user names."""
    properties: list[dict[str, Any]] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


class Values:
    """Fills in one entry; made for it."""

    def __init__(self, find_secrets: FindSecrets, inputs: object, where: str) -> None:
        """*inputs* are those that a file of VS Code declares."""
        self.where = where
        self._find_secrets = find_secrets
        self._inputs = {
            declared["id"]: declared
            for declared in (inputs if isinstance(inputs, list) else [])
            if isinstance(declared, dict) and isinstance(declared.get("id"), str)
        }
        self._taken = Keys()
        self._keys: dict[str, str] = {}
        """The key for each variable."""
        self._found = Found()

    def fill(self, entry: ClientEntry, command: Command | None) -> Found:
        """The values of *entry*, whose program is *command*; None where its package has to say that.

        Raises :class:`~mcpd.errors.InvalidManifest` for credentials where they cannot be kept from others.
        """
        found = self._found
        here = entry.command
        canonical: dict[str, JsonValue] = {"env": dict(entry.env), "headers": dict(entry.headers)}
        if here is not None:
            # Also what the runner of a package is given, such as the address of a repository.
            canonical |= {"command": here.program, "args": list(here.arguments)}
        else:
            canonical["url"] = entry.url
        secrets = dict(self._find_secrets(canonical))
        if here is not None:
            for name in entry.passed:
                self._environment(name, f"${{env:{name}}}", secret=False)
            for name, text in entry.env.items():
                self._environment(name, text, secret=f"env.{name}" in secrets)
            self._refuse(secrets)
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

    def _refuse(self, secrets: Mapping[str, str]) -> None:
        for place, why in secrets.items():
            if place == "command" or place.startswith("args["):
                shown = "an argument" if place.startswith("args[") else "its command"
                raise InvalidManifest(
                    f"{self.where}: {shown} holds a secret ({why}), which every user of the machine could read; put it"
                    " into a variable under env, if the server takes it there"
                )

    def _environment(self, name: str, text: str, *, secret: bool) -> None:
        if not ENVIRONMENT_NAME.fullmatch(name):
            raise InvalidManifest(f"{self.where}: env: {printable(name)!r} cannot be the name of a variable")
        whole = _VARIABLE.fullmatch(text)
        variable = _name(whole) if whole else ""
        if secret:
            key = self._taken.take(name)
            # A property for the environment is called what the variable is.
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
                    " read an argument; put it into a variable under env, if the server takes it there"
                )
        return self._filled(text, f"args[{index}]", sensitive=False)

    def _is_secret(self, found: re.Match[str]) -> bool:
        """Whether the variable *found* in an argument holds a secret, by what is declared of it or by its name."""
        name = _name(found)
        declared = self._inputs.get(name)
        if found["kind"] == "input" and declared is not None:
            return declared.get("password") is True
        return any(True for _ in self._find_secrets({"env": {name: "unknown value"}}))

    def _filled(self, text: str, place: str, *, sensitive: bool = True) -> str:
        """*text* with ``{config.KEY}`` for each variable."""
        if _FILE.search(text):
            raise InvalidManifest(f"{self.where}: {place}: the content of a file cannot be filled in; give the value")
        if placeholders(text):
            raise InvalidManifest(f"{self.where}: {place}: {{config.…}} stands for a value of the user in mcpd")

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
