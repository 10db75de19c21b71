# SPDX-License-Identifier: LGPL-2.1-or-later
"""What all models share: camelCase names on disk, unknown fields kept, text and ids checked."""

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
"""Taken by routes of the bridge, and by files of mcpd's own in directories that hold one of each server's."""
MAX_DEPTH: Final = 64
"""Levels of nesting in one entry, far above any real one and far below what a parser survives."""
MAX_LISTED: Final = 128
"""Members of one list or object of an entry."""
MAX_STRINGS: Final = 1024
"""Members of a list of strings, as the arguments of a command are."""
_FROM_OUTSIDE: Final[dict[str, Any]] = {"from": "outside"}
"""The context of a validation that knows a field by its name on disk only."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in one entry of a file that is otherwise used."""

    origin: str
    """The file or URL."""
    server_id: str
    """The id as far as it is known, printable; empty when the entry has none."""
    message: str


class Document(BaseModel):
    """A JSON object from a file or the network; fields it does not know survive a read-modify-write."""

    model_config = ConfigDict(
        extra="allow",
        alias_generator=to_camel,
        populate_by_name=True,
        coerce_numbers_to_str=True,
        defer_build=True,
    )

    @classmethod
    def parse(cls, data: object, origin: str, *, is_plain: bool = False) -> Self:
        """Validate *data*, read from *origin*; *is_plain*: :func:`is_plain_json` said so of what it was decoded from.

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
        """A field somebody else calls ``bug_url`` is not ours and stays as it is; our code uses the Python names."""
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
        """The fields that have another name on disk."""
        return frozenset(name for name, field in cls.model_fields.items() if field.alias != name)

    def to_json(self) -> dict[str, Any]:
        """The object as it is written: names as on disk, fields that were never set left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _text(value: Any) -> Any:
    """Other tools write ``null`` for a text they do not have."""
    return "" if value is None else value


def _listed(value: Any) -> Any:
    """Registries write one string where the format has a list (``categories``), or ``null``."""
    return [value] if isinstance(value, str) and value else (value or [])


def at_most(most: int) -> Callable[[Any], Any]:
    """What refuses lists and objects with more than *most* members, before anything is made of them.

    A few bytes of a compressed registry are thousands of members, each of which takes far more when it is made, and
    one of a thousand faults is enough.
    """

    def check(value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > most:
            raise ValueError(f"has {len(value)} members; it may have {most}")
        return value

    return check


def as_map(value: Any) -> Any:
    """Other tools write ``null`` for an object that they do not have."""
    return {} if value is None else value


def as_list(value: Any) -> Any:
    """The same of a list."""
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
    """One line for the first fault pydantic found, without the value (it may be a secret)."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    # Whoever wrote the file knows the words of JSON only.
    message = fault["msg"].removeprefix("Value error, ").replace("a valid tuple", "a valid list")
    message = _OBJECT.sub("a valid object", message)
    return f"{where}: {message}" if where else message


def load_json(data: bytes | str, origin: str) -> Any:
    """Parse *data*, read from *origin*.

    Raises :class:`~mcpd.errors.InvalidManifest` for everything that is not JSON, nested beyond reason, or holds
    numbers of thousands of digits.
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
    """The bytes in which files are written: UTF-8, indented, with a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def is_plain_json(data: bytes) -> bool:
    """Whether :func:`check_json` finds no fault in what a strict parser makes of *data*, told at a glance.

    Without escapes JSON holds neither NUL nor half of a pair, and with few brackets it is not deep.
    """
    return data.isascii() and b"\\u" not in data and data.count(b"{") + data.count(b"[") <= MAX_DEPTH


def check_json(value: object) -> None:
    """Raise ValueError if *value* holds text or numbers that no D-Bus message, file name or JSON file can carry.

    Nothing here recurses, so that *value* may be hostile.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            # Entries are texts for the most part.
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
        raise ValueError(f"{text[:40]!a} holds a character that cannot be written (NUL or half a surrogate pair)")


def check_id(value: str) -> str:
    """Return *value* if it is a server id.

    Raises :class:`~mcpd.errors.InvalidManifest` for anything else: an id becomes a file name, an object path
    and part of a URL, so it can hold nothing that climbs, hides or separates.
    """
    if not ID_PATTERN.fullmatch(value):
        raise InvalidManifest(
            f"{value[:140]!a} is not a server id: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or digit"
        )
    if value in RESERVED_IDS:
        raise InvalidManifest(f"{value!r} is reserved; give the server another id")
    return value


def id_from_name(name: str) -> str:
    """The id for a registry's *name*: characters an id cannot hold become ``.``."""
    return check_id(re.sub(r"[^A-Za-z0-9._-]", ".", name, flags=re.ASCII).lstrip("._-")[:128])


def printable(text: str) -> str:
    """*text* for a message or a listing: at most 140 characters, whatever cannot be shown escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:140])
