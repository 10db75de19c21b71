# SPDX-License-Identifier: LGPL-2.1-or-later
"""Base of all models: camelCase names on disk, unknown fields kept, text and ids checked."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel

from mcpd.errors import InvalidManifest

if TYPE_CHECKING:
    from collections.abc import Callable

ID_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
RESERVED_IDS: Final = frozenset({"meta", "sse", "bridge.token", "index.json"})
"""Used by routes of the bridge, and by mcpd's own files in directories with one file per server."""
MAX_DEPTH: Final = 64
"""Levels of nesting in one entry, far more than any real one has and far less than a parser handles."""
MAX_LISTED: Final = 128
"""Members of one list or object of an entry."""
MAX_STRINGS: Final = 1024
"""Members of a list of strings, such as the arguments of a command."""
_FROM_OUTSIDE: Final[dict[str, Any]] = {"from": "outside"}
"""Context of a validation that accepts only the names on disk."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in one entry of a file that is otherwise used."""

    origin: str
    """The file or URL."""
    server_id: str
    """Printable id, if known; empty if the entry has none."""
    message: str


class Document(BaseModel):
    """A JSON object from a file or the network; unknown fields survive reading and writing."""

    model_config = ConfigDict(
        extra="allow",
        alias_generator=to_camel,
        populate_by_name=True,
        coerce_numbers_to_str=True,
        defer_build=True,
    )

    @classmethod
    def parse(cls, data: object, origin: str, *, is_plain: bool = False) -> Self:
        """Validate *data*, read from *origin*; *is_plain* is the result of :func:`is_plain_json` for its JSON.

        Raises :class:`~mcpd.errors.InvalidManifest` that names *origin*, the field and the fault.
        """
        try:
            if not is_plain:
                check_json(data)
            return cls.model_validate(data, context=_FROM_OUTSIDE)
        except ValidationError as error:
            raise InvalidManifest(f"{origin}: {first_fault(error)}") from error
        except ValueError as error:
            raise InvalidManifest(f"{origin}: {error}") from error

    @model_validator(mode="wrap")
    @classmethod
    def _by_alias(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Keep a foreign field such as ``bug_url`` as unknown; only our code uses the Python names."""
        foreign: dict[str, Any] = {}
        if info.context is _FROM_OUTSIDE and isinstance(data, dict) and not cls._python_names().isdisjoint(data):
            foreign = {name: data[name] for name in cls._python_names() & data.keys()}
            data = {key: value for key, value in data.items() if key not in foreign}
        model = handler(data)
        if foreign and model.model_extra is not None:
            model.model_extra.update(foreign)
        return model

    @classmethod
    @cache
    def _python_names(cls) -> frozenset[str]:
        """Return the fields that have another name on disk."""
        return frozenset(name for name, field in cls.model_fields.items() if field.alias != name)

    def to_json(self) -> dict[str, Any]:
        """Return the object as it is written: names as on disk, without fields that were never set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _text(value: Any) -> Any:
    """Convert ``null``, as other tools write it, to an empty text."""
    return "" if value is None else value


def _listed(value: Any) -> Any:
    """Convert a single string or ``null``, as registries write them, to a list."""
    return [value] if isinstance(value, str) and value else (value or [])


def at_most(most: int) -> Callable[[Any], Any]:
    """Return a validator that rejects lists and objects with more than *most* members.

    It runs before the members are parsed, as a few bytes of compressed JSON can be thousands of members.
    """

    def check(value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > most:
            raise ValueError(f"has {len(value)} members; at most {most} are allowed")
        return value

    return check


def as_map(value: Any) -> Any:
    """Convert ``null``, as other tools write it, to an empty object."""
    return {} if value is None else value


def as_list(value: Any) -> Any:
    """Convert ``null``, as other tools write it, to an empty list."""
    return [] if value is None else value


def _flag(value: Any) -> Any:
    return False if value is None else value


Text = Annotated[str, BeforeValidator(_text)]
Strings = Annotated[list[str], FailFast(), BeforeValidator(at_most(MAX_STRINGS)), BeforeValidator(_listed)]
Flag = Annotated[bool, BeforeValidator(_flag)]
NAME: Final = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")
"""A key of the configuration."""


_OBJECT: Final = re.compile(r"a valid dictionary( or (an )?instance of \w+)?")


def first_fault(error: ValidationError) -> str:
    """Return one line for the first fault pydantic found, without the value (it may be a secret)."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    # Use the terms of JSON instead of Python's.
    message = fault["msg"].removeprefix("Value error, ").replace("a valid tuple", "a valid list")
    message = _OBJECT.sub("a valid object", message)
    return f"{where}: {message}" if where else message


def load_json(data: bytes | str, origin: str) -> Any:
    """Parse the JSON *data*, read from *origin*.

    Raises :class:`~mcpd.errors.InvalidManifest` if it is not JSON, is nested too deeply, or holds numbers with
    thousands of digits.
    """
    try:
        return json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidManifest(f"{origin}: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"{origin}: not UTF-8 text (byte {error.start})") from error
    except ValueError as error:
        raise InvalidManifest(f"{origin}: not JSON: {error}") from error


def dump_json(value: object) -> bytes:
    """Return *value* as file content: JSON in UTF-8, indented, with a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def is_plain_json(data: bytes) -> bool:
    """Return whether a quick test shows that :func:`check_json` would accept the parsed *data*.

    JSON without escapes holds neither NUL nor a lone surrogate, and with few brackets it is not deep.
    """
    return data.isascii() and b"\\u" not in data and data.count(b"{") + data.count(b"[") <= MAX_DEPTH


def check_json(value: object) -> None:
    """Raise ValueError if *value* holds text or numbers that D-Bus messages, file names or JSON files cannot carry.

    Not recursive, so *value* may be hostile.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            # Most items are strings.
            if isinstance(item, str):
                if "\0" in item or not item.isascii():
                    _check_text(item)
            elif isinstance(item, dict):
                below += item  # its keys
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError("a number is not finite")
        if not below:
            return
        level = below
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{text[:40]!a} contains a character that cannot be written (NUL or a lone surrogate)")


def check_id(value: str) -> str:
    """Return *value* if it is a valid server id.

    Raises :class:`~mcpd.errors.InvalidManifest` for anything else: an id is used in file names, object paths and URLs,
    so it cannot hold separators, ``..`` or a leading dot.
    """
    if not ID_PATTERN.fullmatch(value):
        raise InvalidManifest(
            f"{value[:140]!a} is not a server id: use 1 to 128 characters from A-Z a-z 0-9 . _ -, beginning with a"
            " letter or digit"
        )
    if value in RESERVED_IDS:
        raise InvalidManifest(f"{value!r} is reserved; give the server another id")
    return value


def id_from_name(name: str) -> str:
    """Return the id for a registry's *name*: characters an id cannot hold become ``.``."""
    return check_id(re.sub(r"[^A-Za-z0-9._-]", ".", name, flags=re.ASCII).lstrip("._-")[:128])


def printable(text: str) -> str:
    """Return *text* for a message or a listing: at most 140 characters, unprintable ones escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:140])
