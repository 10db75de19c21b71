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
"""Ids that would clash with routes of the bridge, or with mcpd's own files in directories with one file per server."""
MAX_DEPTH: Final = 64
"""Maximum levels of nesting in one entry: far more than any real entry has, and far fewer than a parser handles."""
MAX_LISTED: Final = 128
"""Maximum members of one list or object of an entry."""
MAX_STRINGS: Final = 1024
"""Maximum members of a list of strings, such as the arguments of a command."""
_FROM_OUTSIDE: Final[dict[str, Any]] = {"from": "outside"}
"""Validation context that makes a model accept field names only as they are spelled on disk."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in one entry of a file whose other entries are used."""

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
        """Treat a field of a file as unknown if it is spelled like a Python name (``bug_url``)."""
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
        """Return the Python names of the fields that have another name on disk."""
        return frozenset(name for name, field in cls.model_fields.items() if field.alias != name)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for the file: field names as on disk, without fields that were never set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _text(value: Any) -> Any:
    """Convert ``null``, which other tools write, to an empty string."""
    return "" if value is None else value


def _listed(value: Any) -> Any:
    """Convert a single string or ``null``, which some registries contain, to a list."""
    return [value] if isinstance(value, str) and value else (value or [])


def at_most(most: int) -> Callable[[Any], Any]:
    """Return a validator that rejects lists and objects with more than *most* members.

    It must run before the members are parsed, because a few bytes of compressed JSON can expand to thousands of them.
    """

    def check(value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > most:
            raise ValueError(f"has {len(value)} members; at most {most} are allowed")
        return value

    return check


def as_map(value: Any) -> Any:
    """Convert ``null``, which other tools write, to an empty object."""
    return {} if value is None else value


def as_list(value: Any) -> Any:
    """Convert ``null``, which other tools write, to an empty list."""
    return [] if value is None else value


def _flag(value: Any) -> Any:
    return False if value is None else value


Text = Annotated[str, BeforeValidator(_text)]
Strings = Annotated[list[str], FailFast(), BeforeValidator(at_most(MAX_STRINGS)), BeforeValidator(_listed)]
Flag = Annotated[bool, BeforeValidator(_flag)]
NAME: Final = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")
"""Pydantic field with the pattern of configuration keys."""


_OBJECT: Final = re.compile(r"a valid dictionary( or (an )?instance of \w+)?")


def first_fault(error: ValidationError) -> str:
    """Return a one-line message for the first fault in *error*, without the value, which may be a secret."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    # Use the terms of JSON instead of Python's.
    message = fault["msg"].removeprefix("Value error, ").replace("a valid tuple", "a valid list")
    message = _OBJECT.sub("a valid object", message)
    return f"{where}: {message}" if where else message


def load_json(data: bytes | str, origin: str) -> Any:
    """Parse the JSON *data*, read from *origin*.

    Raises :class:`~mcpd.errors.InvalidManifest` if it is not JSON, is nested too deeply, or contains numbers with
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
    """Return *value* as the content of a file: JSON in UTF-8, indented, with a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def is_plain_json(data: bytes) -> bool:
    """Return whether a quick test shows that :func:`check_json` would accept the parsed *data*.

    ASCII JSON without ``\\u`` escapes contains neither NUL nor lone surrogates, and few brackets mean shallow nesting.
    """
    return data.isascii() and b"\\u" not in data and data.count(b"{") + data.count(b"[") <= MAX_DEPTH


def check_json(value: object) -> None:
    """Raise ValueError if *value* contains text or numbers that D-Bus messages, file names or JSON files cannot hold.

    Not recursive, so deep nesting in hostile input cannot exhaust the stack.
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

    Raises :class:`~mcpd.errors.InvalidManifest` otherwise. Ids are used in file names, object paths and URLs, so they
    must not contain separators or begin with a dot.
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
    """Return the server id for *name* in a registry; characters that are invalid in ids are replaced with ``.``."""
    return check_id(re.sub(r"[^A-Za-z0-9._-]", ".", name, flags=re.ASCII).lstrip("._-")[:128])


def printable(text: str) -> str:
    """Return *text* for a message or a listing: at most 140 characters, unprintable ones escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:140])
