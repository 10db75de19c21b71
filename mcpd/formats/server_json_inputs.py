# SPDX-License-Identifier: LGPL-2.1-or-later
"""The inputs of a server.json as configurable properties, and the texts that name them."""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.formats.keys import ENVIRONMENT_NAME, HEADER_NAME, Keys, scalar_text
from mcpd.model import Target, ValueType
from mcpd.model.entry import NETWORK
from mcpd.model.placeholders import placeholders

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mcpd.formats.server_json_schema import Argument, Input, KeyValue, Scalar

MAX_PROPERTIES: Final = 500
"""Values that one server may ask for."""
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_TYPES: Final = {
    "string": ValueType.STRING,
    "number": ValueType.NUMBER,
    "boolean": ValueType.BOOLEAN,
    "filepath": ValueType.PATH,
}


class Inputs:
    """Collects the properties of one entry; each has a key of its own."""

    def __init__(self) -> None:
        self.properties: list[dict[str, Any]] = []
        self.permissions: list[str] = [NETWORK]
        """What a package needs: server.json declares nothing, and nearly all of them use the network."""
        self.faults: list[str] = []
        """What keeps the server from being started as its author means it."""
        self._keys = Keys()
        self._headers: dict[str, list[tuple[KeyValue, str]]] = {}

    def environment(self, variables: Sequence[KeyValue]) -> dict[str, str]:
        """The variables that are set whatever the user says; those that the user sets become properties."""
        fixed: dict[str, str] = {}
        names: set[str] = set()
        for variable in variables:
            name = variable.name
            if not ENVIRONMENT_NAME.fullmatch(name):
                self.faults.append(f"{name[:100]!a} cannot be the name of an environment variable")
            elif name not in names:
                names.add(name)
                if variable.value is not None:
                    fixed[name] = self._filled(scalar_text(variable.value), variable)
                elif self._keys.is_free(name):
                    self._property(name, variable, Target.ENV, granting=True)
                else:
                    # The key of such a property is what the variable is called.
                    fixed[name] = f"{{config.{self._property(name, variable, Target.MANIFEST, granting=True)}}}"
        return fixed

    def arguments(self, arguments: Sequence[Argument]) -> list[str]:
        """The arguments, with ``{config.KEY}`` where the user gives the value."""
        found: list[str] = []
        for argument in arguments:
            found += self._named(argument) if argument.type == "named" and argument.name else self._positional(argument)
        return found

    def address(self, url: str, variables: Mapping[str, Input], *, required: bool) -> str:
        """The *url* of a server that runs elsewhere, with ``{config.KEY}`` for its *variables*."""
        return self._template(url, variables, Target.MANIFEST, required=required)

    def headers(self, headers: Sequence[KeyValue], *, required: bool) -> dict[str, str]:
        """The headers by name; *required* is False where the server can be used without them."""
        found: dict[str, str] = {}
        for header in headers:
            if not HEADER_NAME.fullmatch(header.name):
                self.faults.append(f"{header.name[:100]!a} cannot be the name of a header")
            elif header.name not in found:
                if header.value is not None:
                    text = scalar_text(header.value)
                    found[header.name] = self._template(text, header.variables, Target.MANIFEST, required=required)
                else:
                    found[header.name] = f"{{config.{self._header(header, required=required)}}}"
        return found

    def _header(self, header: KeyValue, *, required: bool) -> str:
        """The key for *header*, which several ways to the same server have in common."""
        same = self._headers.setdefault(header.name, [])
        for known, key in same:
            if known == header:
                return key
        key = self._property(header.name, header, Target.HEADER, required=required)
        same.append((header, key))
        return key

    def _positional(self, argument: Argument) -> list[str]:
        if argument.value is not None:
            return [self._filled(scalar_text(argument.value), argument, in_argument=True)]
        key = self._argument(argument.value_hint or argument.name or "argument", argument)
        return [f"{{config.{key}}}"] if key else []

    def _named(self, argument: Argument) -> list[str]:
        flag = argument.name or ""
        self._refuse_placeholders(flag)
        if argument.value is not None:
            text = self._filled(scalar_text(argument.value), argument, in_argument=True)
            return _flagged(flag, text, argument)
        if not _asks(argument):
            return [flag]
        key = self._argument(flag, argument)
        return _flagged(flag, f"{{config.{key}}}", argument) if key else []

    def _argument(self, name: str, argument: Argument) -> str:
        """The key of the property for *argument*; empty for a secret that the server can do without."""
        if argument.is_secret:
            # Every user of the machine can read arguments, and no server is started with a secret in them.
            if argument.is_required:
                self.faults.append(
                    f"its argument {name[:100]!a} is a secret, which every user of the machine could read"
                )
            return ""
        return self._property(name, argument, Target.ARG, repeated=bool(argument.is_repeated), granting=True)

    def _filled(self, text: str, given: Input, *, in_argument: bool = False) -> str:
        return self._template(text, given.variables, Target.MANIFEST, in_argument=in_argument)

    def _template(
        self,
        text: str,
        variables: Mapping[str, Input] | None,
        target: Target,
        *,
        in_argument: bool = False,
        required: bool = True,
    ) -> str:
        """*text* with its *variables* as placeholders; what is in braces and no variable stays as it is."""
        keys: dict[str, str] = {}

        def fill(found: re.Match[str]) -> str:
            name = found[1]
            variable = (variables or {}).get(name)
            if variable is None:
                return found[0]
            if variable.value is not None:
                return scalar_text(variable.value)
            if in_argument and variable.is_secret:
                self.faults.append(
                    f"its argument {name[:100]!a} is a secret, which every user of the machine could read"
                )
                return ""
            if name not in keys:
                keys[name] = self._property(name, variable, target, required=required, granting=in_argument)
            return f"{{config.{keys[name]}}}"

        filled = _VARIABLE.sub(fill, text)
        self._refuse_placeholders(text)
        self._refuse_placeholders(filled, set(keys.values()))
        return filled

    def _refuse_placeholders(self, text: str, own: Collection[str] = ()) -> None:
        """Note a fault for a *text* with placeholders for other keys than *own*: its author means them literally."""
        if keys := [key for key in placeholders(text) if key not in own]:
            self.faults.append(f"it holds {{config.{keys[0][:100]}}}, for which mcpd would put a value of the user")

    def _property(
        self,
        name: str,
        given: Input,
        target: Target,
        *,
        required: bool = True,
        repeated: bool = False,
        granting: bool = False,
    ) -> str:
        """Add a property for *given*, and return its key. Raises :class:`~mcpd.errors.InvalidManifest`."""
        if len(self.properties) == MAX_PROPERTIES:
            raise InvalidManifest(f"asks for more than {MAX_PROPERTIES} values")
        key = self._keys.take(name.lstrip("-"))
        kind = _TYPES.get(given.format or "")
        default = _typed(given.default, kind)
        grants = granting and kind is ValueType.PATH and not given.is_secret
        # What a permission is for, the user names: nobody sees a default when they are asked for their consent.
        suggested = scalar_text(default) if grants and default is not None else ""
        default = None if suggested else default
        parts: dict[str, Any] = {
            "label": name if key != name else "",
            "description": given.description,
            "sensitive": given.is_secret,
            "required": bool(given.is_required or suggested) and required,
            "type": ValueType.LIST if repeated else kind,
            "choices": given.choices,
            "placeholder": suggested or given.placeholder,
        }
        new = {"key": key, "target": target} | {part: value for part, value in parts.items() if value}
        if default is not None:
            new["default"] = [default] if repeated else default
        self.properties.append(new)
        if grants:
            self.permissions.append(f"filesystem:rw:{{config.{key}}}")
        return key


def _asks(argument: Argument) -> bool:
    """Whether the user is to give a value: a flag of which nothing is said but its name is just passed on."""
    return any(
        (
            argument.description,
            argument.is_required,
            argument.default is not None,
            argument.value_hint,
            argument.placeholder,
            argument.choices,
            argument.format,
            argument.is_repeated,
        )
    )


def _flagged(flag: str, text: str, argument: Argument) -> list[str]:
    """*flag* with *text*: apart where both are there or missing together, else joined by ``=``."""
    keys = placeholders(text)
    if not keys:
        return [flag, text]
    variables = (argument.variables or {}).values()
    truth = argument.format == "boolean" or any(variable.format == "boolean" for variable in variables)
    if truth or argument.is_repeated or "{" in flag or "}" in flag:
        return [f"{flag}={text}"]
    conditions = "".join(f"{{config.{key}?}}" for key in keys[:-1])
    return [f"{conditions}{{config.{keys[-1]}?{flag}}}", text]


def _typed(default: Scalar, kind: ValueType | None) -> Scalar:
    """*default*, which the schema has as text, as a value of *kind* if it is one."""
    if not isinstance(default, str):
        return default
    if kind is ValueType.BOOLEAN and default.lower() in ("true", "false"):
        return default.lower() == "true"
    if kind is ValueType.NUMBER:
        for number in (int, float):
            with contextlib.suppress(ValueError):
                if math.isfinite(value := number(default)):
                    return value
    return default
