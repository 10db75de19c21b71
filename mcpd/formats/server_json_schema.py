# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is read of a server.json (schema 2025-12-11), and how documents of older schemas are brought to it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mcpd.errors import InvalidManifest

Scalar = str | int | float | bool | None


class Input(msgspec.Struct, rename="camel"):
    """A value that the author or the user gives."""

    description: str | None = None
    is_required: bool | None = None
    is_secret: bool | None = None
    default: Scalar = None
    placeholder: str | None = None
    value: Scalar = None
    choices: list[Any] | None = None
    format: str | None = None
    variables: dict[str, Input] | None = None
    """What ``{name}`` in :attr:`value` stands for."""


class KeyValue(Input, rename="camel", kw_only=True):
    """An environment variable or a header."""

    name: str


class Argument(Input, rename="camel", kw_only=True):
    """A ``positional`` or ``named`` argument."""

    type: str = "positional"
    name: str | None = None
    value_hint: str | None = None
    is_repeated: bool | None = None


class Transport(msgspec.Struct, rename="camel"):
    """Of a package, or a server that runs elsewhere."""

    type: str = "stdio"
    url: str | None = None
    headers: list[KeyValue] | None = None
    variables: dict[str, Input] | None = None


class Package(msgspec.Struct, rename="camel", kw_only=True):
    """What a registry of packages has, or a file."""

    registry_type: str
    identifier: str
    registry_base_url: str | None = None
    version: str | None = None
    file_sha256: str | None = msgspec.field(default=None, name="fileSha256")
    runtime_hint: str | None = None
    transport: Transport | None = None
    runtime_arguments: list[Argument] | None = None
    package_arguments: list[Argument] | None = None
    environment_variables: list[KeyValue] | None = None


class Icon(msgspec.Struct):
    """One of the icons."""

    src: str | None = None


class Server(msgspec.Struct, rename="camel", kw_only=True):
    """The whole document."""

    name: str
    title: str | None = None
    description: str | None = None
    version: str | None = None
    website_url: str | None = None
    repository: dict[str, Any] | None = None
    icons: list[Icon] | None = None
    packages: list[Package] | None = None
    remotes: list[Transport] | None = None


_RENAMED: Final = {
    "registry_type": "registryType",
    "registry_name": "registryType",
    "registry_base_url": "registryBaseUrl",
    "file_sha256": "fileSha256",
    "runtime_hint": "runtimeHint",
    "runtime_arguments": "runtimeArguments",
    "package_arguments": "packageArguments",
    "environment_variables": "environmentVariables",
    "is_required": "isRequired",
    "is_secret": "isSecret",
    "is_repeated": "isRepeated",
    "value_hint": "valueHint",
    "website_url": "websiteUrl",
    "transport_type": "type",
}
"""Names of fields before 2025-09-16."""


def read(document: dict[str, Any], origin: str) -> Server:
    """The server.json *document*, read from *origin*, whatever its schema.

    Raises :class:`~mcpd.errors.InvalidManifest` that names *origin*, the field and the fault.
    """
    try:
        return msgspec.convert(_modern(document), Server, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidManifest(f"{origin}: {error}") from error


def _modern(document: dict[str, Any]) -> dict[str, Any]:
    packages, remotes = document.get("packages"), document.get("remotes")
    if not {"version_detail", "website_url"} & document.keys() and not _is_older([packages, remotes]):
        return document
    new: dict[str, Any] = _renamed({key: value for key, value in document.items() if key != "_meta"})
    detail = document.get("version_detail")
    if "version" not in new and isinstance(detail, dict):
        new["version"] = detail.get("version")
    for package in new["packages"] if isinstance(new.get("packages"), list) else []:
        if isinstance(package, dict) and "identifier" not in package and "name" in package:
            package["identifier"] = package["name"]
    return new


def _is_older(value: Any) -> bool:
    """Whether *value* has an earlier name of a field anywhere: a secret shall not pass for none by one."""
    if isinstance(value, list):
        return any(_is_older(item) for item in value)
    if not isinstance(value, dict):
        return False
    if not _RENAMED.keys().isdisjoint(value):
        return True
    return any(
        any(_is_older(variable) for variable in held.values())
        if key == "variables" and isinstance(held, dict)
        else _is_older(held)
        for key, held in value.items()
    )


def _renamed(value: Any) -> Any:
    """*value* with today's names of fields; the names of variables are their author's."""
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    new: dict[str, Any] = {}
    for key, held in value.items():
        if key == "variables" and isinstance(held, dict):
            new[key] = {name: _renamed(variable) for name, variable in held.items()}
        elif (today := _RENAMED.get(key)) is None or today not in value:
            new[today or key] = _renamed(held)
    return new
