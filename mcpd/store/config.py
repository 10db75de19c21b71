# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configuration: merging and checking values, manifests edited in place, overlays and secrets."""

from __future__ import annotations

import json
import math
import os
import time
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidConfig, InvalidManifest, did_you_mean, from_oserror
from mcpd.model import ConfigProperty, JsonValue, Manifest, Target, ValueType, check_json, dump_json, load_json
from mcpd.model.placeholders import as_text
from mcpd.store.files import (
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
from mcpd.store.records import Configuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_VALUE: Final = 64 * 1024
"""Bytes of one value as JSON."""

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


def merge(manifest: Manifest, layers: Iterable[Mapping[str, JsonValue]]) -> dict[str, JsonValue]:
    """Defaults of *manifest*, then *layers* in order of rising precedence."""
    merged: dict[str, JsonValue] = {p.key: p.default for p in manifest.configurable_properties if p.default is not None}
    for layer in layers:
        merged.update({key: value for key, value in layer.items() if value is not None})
    return merged


def public(manifest: Manifest, merged: Mapping[str, JsonValue], secret_keys: Iterable[str] = ()) -> Configuration:
    """The part of *merged* everybody may see; *secret_keys* are sensitive values known to be set elsewhere."""
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
    """Whether *value* counts for a required property."""
    return value is not None and value not in ("", [])


def for_manifest(manifest: Manifest, merged: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The part of *merged* that the server finds in its ``manifest.json``: all but ``env`` and ``arg`` values."""
    elsewhere = {p.key for p in manifest.configurable_properties if p.target in (Target.ENV, Target.ARG)}
    return {key: value for key, value in merged.items() if key not in elsewhere}


def split(manifest: Manifest, values: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """*values* without the sensitive ones, and those."""
    sensitive = {p.key for p in manifest.configurable_properties if p.sensitive}
    return (
        {key: value for key, value in values.items() if key not in sensitive},
        {key: value for key, value in values.items() if key in sensitive and is_set(value)},
    )


def checked(manifest: Manifest, changes: Mapping[str, JsonValue | None]) -> dict[str, JsonValue]:
    """*changes* with every value as its property wants it; None, to unset, stays.

    Raises :class:`~mcpd.errors.InvalidConfig` for unknown and sensitive keys and for values that do not fit.
    """
    return {key: _checked(manifest, key, value) for key, value in changes.items()}


def checked_secret(manifest: Manifest, key: str, value: str | None) -> JsonValue:
    """*value* as the sensitive property *key* wants it; None stays. Raises :class:`~mcpd.errors.InvalidConfig`."""
    found = known(manifest, key)
    if found is None or not found.sensitive:
        raise InvalidConfig(f"{manifest.id}: {key!r} is not sensitive; set it with the other values")
    return None if value is None else check_value(found, value, manifest.id)


def known(manifest: Manifest, key: str) -> ConfigProperty | None:
    """The property *key*; None for one that only the ``config`` of another tool's manifest knows.

    Raises :class:`~mcpd.errors.InvalidConfig` that lists the known keys.
    """
    found = manifest.property(key)
    if found is None and key not in manifest.config:
        keys = sorted({p.key for p in manifest.configurable_properties} | manifest.config.keys())
        listed = f"it has {', '.join(keys)}" if keys else "it has none at all"
        raise InvalidConfig(f"{manifest.id} has no property {key[:128]!r}; {listed}{did_you_mean(key[:128], keys)}")
    return found


def _checked(manifest: Manifest, key: str, value: JsonValue | None) -> JsonValue:
    found = known(manifest, key)
    if found is not None and found.sensitive:
        raise InvalidConfig(f"{manifest.id}: {key!r} is sensitive; set it as a secret")
    if value is None:
        return None
    return check_value(found or ConfigProperty(key=key), value, manifest.id)


def check_value(found: ConfigProperty, value: JsonValue, server_id: str) -> JsonValue:
    """*value* as *found* wants it; text is read as a number or truth value where one is wanted.

    Raises :class:`~mcpd.errors.InvalidConfig`, which never quotes the value.
    """
    where = f"{server_id}: {found.key!r}"
    try:
        check_json(value)
    except ValueError:
        raise InvalidConfig(f"{where} cannot hold NUL characters, broken Unicode, NaN or deep nesting") from None
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
    ValueType.LIST: "a list of texts, numbers or truth values",
}


def load(path: Path) -> dict[str, Any]:
    """The manifest at *path* as it is.

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
    """A copy of the values in *document*, empty where another tool wrote something else."""
    config = document.get("config")
    return dict(config) if isinstance(config, dict) else {}


def origin_of(manifest: Manifest) -> dict[str, Any]:
    """What *manifest* says of where it came from; empty where another tool wrote something else."""
    origin = (manifest.model_extra or {}).get("origin")
    return origin if isinstance(origin, dict) else {}


def with_pin(document: dict[str, Any], *, pinned: bool) -> dict[str, Any]:
    """*document*, which says that updates pass its server over if *pinned*, and else that they do not."""
    found = document.get("origin")
    origin = found if isinstance(found, dict) else {}
    if (origin.get("pinned") is True) == pinned:
        return document
    return {**document, "origin": {**origin, "pinned": pinned}}


def dump(document: dict[str, Any]) -> bytes:
    """The file for *document*."""
    return dump_json(document)


def remove_secrets(path: Path, server_id: str) -> None:
    """Remove sensitive values from the manifest of *server_id* at *path*.

    Raises :class:`~mcpd.errors.McpdError` if that cannot be done.
    """
    document = load(path)
    manifest = Manifest.parse({**document, "id": server_id}, str(path))
    shown, hidden = split(manifest, config_of(document))
    if hidden:
        write_atomic(path, dump({**document, "config": shown}))


class ValueFiles:
    """``<directory>/<id>.json``, each a map of keys to values. Takes checked ids only."""

    def __init__(self, directory: Path, *, mode: int, directory_mode: int, own: bool = True) -> None:
        """*own* is False for files of another scope, which this process may not be allowed to read."""
        self.directory = directory
        self._own = own
        self._mode = mode
        self._directory_mode = directory_mode
        self._listed: tuple[Signature | None, frozenset[str]] = (None, frozenset())

    def path(self, server_id: str) -> Path:
        """The file of *server_id*, there or not."""
        return self.directory / f"{server_id}.json"

    def read(self, server_id: str) -> dict[str, Any]:
        """The values of *server_id*, empty if there are none or if another scope keeps them to itself.

        Raises :class:`~mcpd.errors.InvalidConfig` that names the file, never its content.
        """
        path = self.path(server_id)
        try:
            values = load_json(read_file(path), str(path))
        except OSError as error:
            if is_missing(error) or (isinstance(error, PermissionError) and not self._own):
                return {}
            # Taken for empty, the next change would write over what is in it.
            raise InvalidConfig(f"{path}: {error.strerror}; mend or remove the file") from error
        except InvalidManifest as error:
            raise InvalidConfig(f"{error.message}; mend or remove the file") from None
        if not isinstance(values, dict):
            raise InvalidConfig(f"{path}: not a map of values; mend or remove the file")
        return values

    def stage(self, server_id: str, values: dict[str, Any]) -> Staged:
        """Prepare to write *values* for *server_id*."""
        make_directory(self.directory, self._directory_mode)
        return Staged(self.path(server_id), dump_json(values), self._mode)

    def write(self, server_id: str, values: dict[str, Any]) -> None:
        """Keep *values* for *server_id*; none at all removes the file."""
        if not values:
            self.remove(server_id)
            return
        with self.stage(server_id, values) as staged:
            staged.commit()

    def remove(self, server_id: str) -> None:
        """Forget the values of *server_id*."""
        path = self.path(server_id)
        try:
            path.unlink()
            sync_directory(self.directory)
        except OSError as error:
            if not is_missing(error):
                raise from_oserror(error, f"removing {path}") from error

    def signature(self, server_id: str) -> Signature | None:
        """What changes when the values of *server_id* change, None while there are none."""
        try:
            status = self.path(server_id).stat()
        except OSError:
            return None
        found = signature(status)
        return found if settled(status) else (*found[:3], time.time_ns())

    def ids(self) -> frozenset[str]:
        """The servers that have values now."""
        try:
            status = self.directory.stat()
            now = signature(status) if settled(status) else None
            if now is None or now != self._listed[0]:
                names = os.listdir(self.directory)  # noqa: PTH208 - names are enough
                self._listed = (now, frozenset(name.removesuffix(".json") for name in names))
        except OSError:
            self._listed = (None, frozenset())
        return self._listed[1]
