# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configuration: merging and checking values, editing manifests in place, overlays and secrets."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidConfig, InvalidManifest, did_you_mean, from_oserror
from mcpd.files import (
    Signature,
    Staged,
    is_missing,
    make_directory,
    read_file,
    settled,
    signature,
    sync_directory,
    write_atomic,
)
from mcpd.model import ConfigProperty, JsonValue, Manifest, Target, ValueType, check_json, dump_json, load_json
from mcpd.model.placeholders import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MANIFEST: Final = "manifest.json"
MAX_VALUE: Final = 64 * 1024
"""Maximum size of one value as JSON, in bytes."""

_WORDS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """Configuration of a server, without the values of secrets."""

    values: dict[str, JsonValue]
    """Values by key, without sensitive ones; the user's take precedence over the system's, then over defaults."""
    secrets_set: list[str]
    """Keys of the sensitive values that are set."""
    missing: list[ConfigProperty]
    """Required properties without a value."""


def merge(manifest: Manifest, layers: Iterable[Mapping[str, JsonValue]]) -> dict[str, JsonValue]:
    """Return the defaults of *manifest*, overridden by *layers* in order of rising precedence."""
    merged: dict[str, JsonValue] = {p.key: p.default for p in manifest.configurable_properties if p.default is not None}
    for layer in layers:
        merged.update({key: value for key, value in layer.items() if value is not None})
    return merged


def public(manifest: Manifest, merged: Mapping[str, JsonValue], secret_keys: Iterable[str] = ()) -> Configuration:
    """Return the public part of *merged*; *secret_keys* are the keys of sensitive values that are stored elsewhere."""
    sensitive = {p.key for p in manifest.configurable_properties if p.sensitive}
    given = {key for key in sensitive if is_set(merged.get(key))} | (sensitive & set(secret_keys))
    missing = [
        p
        for p in manifest.configurable_properties
        if p.required and not (p.key in given if p.sensitive else is_set(merged.get(p.key)))
    ]
    values = {key: value for key, value in merged.items() if key not in sensitive}
    return Configuration(values, sorted(given), missing)


def is_set(value: JsonValue) -> bool:
    """Return whether *value* satisfies a required property."""
    return value is not None and value not in ("", [])


def for_manifest(manifest: Manifest, merged: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the part of *merged* that goes into the server's ``manifest.json``: all but ``env`` and ``arg`` values."""
    elsewhere = {p.key for p in manifest.configurable_properties if p.target in (Target.ENV, Target.ARG)}
    return {key: value for key, value in merged.items() if key not in elsewhere}


def split(manifest: Manifest, values: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Return *values* as two maps: the values that are not sensitive, and the sensitive ones that are set."""
    sensitive = {p.key for p in manifest.configurable_properties if p.sensitive}
    return (
        {key: value for key, value in values.items() if key not in sensitive},
        {key: value for key, value in values.items() if key in sensitive and is_set(value)},
    )


def checked(manifest: Manifest, changes: Mapping[str, JsonValue | None]) -> dict[str, JsonValue]:
    """Return *changes* with every value converted to the type of its property; None, which unsets a value, is kept.

    Raises :class:`~mcpd.errors.InvalidConfig` for unknown and sensitive keys and for invalid values.
    """
    return {key: _checked(manifest, key, value) for key, value in changes.items()}


def checked_secret(manifest: Manifest, key: str, value: str | None) -> JsonValue:
    """Return *value* converted to the type of the sensitive property *key*; None, which unsets it, is kept.

    Raises :class:`~mcpd.errors.InvalidConfig`.
    """
    found = find_property(manifest, key)
    if found is None or not found.sensitive:
        raise InvalidConfig(f"{manifest.id}: {key!r} is not sensitive; set it with the other values")
    return None if value is None else check_value(found, value, manifest.id)


def find_property(manifest: Manifest, key: str) -> ConfigProperty | None:
    """Return the property *key*; None for a key that is not declared but has a value in the manifest's ``config``.

    Raises :class:`~mcpd.errors.InvalidConfig`, which lists the known keys, for an unknown key.
    """
    found = manifest.property(key)
    if found is None and key not in manifest.config:
        keys = sorted({p.key for p in manifest.configurable_properties} | manifest.config.keys())
        if not keys:
            raise InvalidConfig(f"{manifest.id} has no properties, so {key[:128]!r} cannot be set")
        listed = f"it has {', '.join(keys)}"
        raise InvalidConfig(f"{manifest.id} has no property {key[:128]!r}; {listed}{did_you_mean(key[:128], keys)}")
    return found


def _checked(manifest: Manifest, key: str, value: JsonValue | None) -> JsonValue:
    found = find_property(manifest, key)
    if found is not None and found.sensitive:
        raise InvalidConfig(
            f"{manifest.id}: {key!r} is sensitive; set it as a secret (mcpctl secret set, or install --secret-file)"
        )
    if value is None:
        return None
    return check_value(found or ConfigProperty(key=key), value, manifest.id)


def check_value(found: ConfigProperty, value: JsonValue, server_id: str) -> JsonValue:
    """Return *value* converted to the type of *found*; text is accepted for numbers and booleans.

    Raises :class:`~mcpd.errors.InvalidConfig`, which never quotes the value.
    """
    where = f"{server_id}: {found.key!r}"
    try:
        check_json(value)
    except ValueError:
        raise InvalidConfig(f"{where} cannot contain NUL characters, broken Unicode, NaN or deep nesting") from None
    if len(json.dumps(value)) > MAX_VALUE:
        raise InvalidConfig(f"{where} is larger than {MAX_VALUE // 1024} KiB")
    if isinstance(found.type, ValueType):
        try:
            value = _CONVERTERS[found.type](value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidConfig(f"{where} must be {_EXPECTED[found.type]}") from None
    choices = (found.model_extra or {}).get("choices")
    if isinstance(choices, list) and choices:
        known_texts = [as_text(choice) for choice in choices]
        if any(as_text(item) not in known_texts for item in (value if isinstance(value, list) else [value])):
            raise InvalidConfig(f"{where} must be one of {', '.join(known_texts)}")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    number: int | float = value
    if not math.isfinite(number):
        raise ValueError
    return number


def _integer(value: Any) -> int:
    number = _number(value)
    if int(number) != number:
        raise ValueError
    return int(number)


def _boolean(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if not isinstance(value, bool):
        raise TypeError
    return value


def _path(value: Any) -> str:
    if not isinstance(value, str) or not (value.startswith(("/", "~/")) or value == "~"):
        raise TypeError
    return value


def _list(value: Any) -> list[JsonValue]:
    if not isinstance(value, list) or not all(isinstance(item, (str, int, float, bool)) for item in value):
        raise TypeError
    return value


_CONVERTERS: Final = {
    ValueType.STRING: _string,
    ValueType.NUMBER: _number,
    ValueType.INTEGER: _integer,
    ValueType.BOOLEAN: _boolean,
    ValueType.PATH: _path,
    ValueType.LIST: _list,
}
_EXPECTED: Final = {
    ValueType.STRING: "text",
    ValueType.NUMBER: "a number",
    ValueType.INTEGER: "a whole number",
    ValueType.BOOLEAN: "true or false",
    ValueType.PATH: "an absolute path, or one that begins with ~/",
    ValueType.LIST: "a list of strings, numbers or booleans",
}


def load(path: Path) -> dict[str, Any]:
    """Return the manifest at *path*, unchecked.

    Raises :class:`~mcpd.errors.InvalidManifest`.
    """
    try:
        data = load_json(read_file(path), str(path))
    except OSError as error:
        raise InvalidManifest(f"{path}: {error.strerror}") from error
    if not isinstance(data, dict):
        raise InvalidManifest(f"{path}: not an object")
    return data


def config_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the values in *document*; empty if its ``config`` is not an object."""
    config = document.get("config")
    return dict(config) if isinstance(config, dict) else {}


def origin_of(manifest: Manifest) -> dict[str, Any]:
    """Return the ``origin`` of *manifest*; empty if it is not an object."""
    origin = (manifest.model_extra or {}).get("origin")
    return origin if isinstance(origin, dict) else {}


def with_pin(document: dict[str, Any], *, pinned: bool) -> dict[str, Any]:
    """Return the manifest *document* with the pin of its server set or removed."""
    found = document.get("origin")
    origin = found if isinstance(found, dict) else {}
    if (origin.get("pinned") is True) == pinned:
        return document
    return {**document, "origin": {**origin, "pinned": pinned}}


def dump(document: dict[str, Any]) -> bytes:
    """Return the manifest *document* as the content of its file."""
    return dump_json(document)


def remove_secrets(path: Path, server_id: str) -> None:
    """Remove sensitive values from the manifest of *server_id* at *path*.

    Raises :class:`~mcpd.errors.McpdError` if that fails.
    """
    document = load(path)
    manifest = Manifest.parse({**document, "id": server_id}, str(path))
    shown, hidden = split(manifest, config_of(document))
    if hidden:
        write_atomic(path, dump({**document, "config": shown}))


class ValueFiles:
    """Values of servers in files ``<directory>/<id>.json``, each a map of keys to values. Server ids must be valid."""

    def __init__(self, directory: Path, *, mode: int, directory_mode: int, own: bool = True) -> None:
        """*own* is False for files of another scope, which this process may not be allowed to read."""
        self.directory = directory
        self._own = own
        self._mode = mode
        self._directory_mode = directory_mode
        self._listed: tuple[Signature | None, frozenset[str]] = (None, frozenset())

    def path(self, server_id: str) -> Path:
        """Return the path of the file of *server_id*, which may be missing."""
        return self.directory / f"{server_id}.json"

    def read(self, server_id: str) -> dict[str, Any]:
        """Return the values of *server_id*; empty if there are none or another scope's file is not readable.

        Raises :class:`~mcpd.errors.InvalidConfig` that names the file, never its content.
        """
        path = self.path(server_id)
        try:
            values = load_json(read_file(path), str(path))
        except OSError as error:
            if is_missing(error) or (isinstance(error, PermissionError) and not self._own):
                return {}
            # If the file counted as empty, the next change would overwrite it.
            raise InvalidConfig(f"{path}: {error.strerror}; fix or remove the file") from error
        except InvalidManifest as error:
            raise InvalidConfig(f"{error.message}; fix or remove the file") from None
        if not isinstance(values, dict):
            raise InvalidConfig(f"{path}: not a map of values; fix or remove the file")
        return values

    def stage(self, server_id: str, values: dict[str, Any]) -> Staged:
        """Return a staged file with *values* for *server_id*, which the caller commits."""
        make_directory(self.directory, self._directory_mode)
        return Staged(self.path(server_id), dump_json(values), self._mode)

    def write(self, server_id: str, values: dict[str, Any]) -> None:
        """Store *values* for *server_id*; an empty map removes the file."""
        if not values:
            self.remove(server_id)
            return
        with self.stage(server_id, values) as staged:
            staged.commit()

    def remove(self, server_id: str) -> None:
        """Remove the file of *server_id*."""
        path = self.path(server_id)
        try:
            path.unlink()
            sync_directory(self.directory)
        except OSError as error:
            if not is_missing(error):
                raise from_oserror(error, f"removing {path}") from error

    def signature(self, server_id: str) -> Signature | None:
        """Return a signature that changes whenever the file of *server_id* changes; None if the file is missing."""
        try:
            status = self.path(server_id).stat()
        except OSError:
            return None
        found = signature(status)
        return found if settled(status) else (*found[:3], time.time_ns())

    def ids(self) -> frozenset[str]:
        """Return the ids of servers that have values."""
        try:
            status = self.directory.stat()
            now = signature(status) if settled(status) else None
            if now is None or now != self._listed[0]:
                names = os.listdir(self.directory)  # noqa: PTH208 - names are enough
                self._listed = (now, frozenset(name.removesuffix(".json") for name in names))
        except OSError:
            self._listed = (None, frozenset())
        return self._listed[1]
