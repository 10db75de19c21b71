# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading the servers in a client's configuration file, and changing some of them so that all else stays as it is.

Comments, order, indentation, line breaks, a byte order mark, a missing line break at the end, other settings and other
servers stay byte for byte. What comes out is parsed again and compared with what was meant before it is handed out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

from mcpd.cli.clients.texts import Text, same
from mcpd.errors import InvalidConfig
from mcpd.model import check_json, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcpd.model import JsonValue

Format = Literal["json", "jsonc", "toml", "yaml"]
Shape = Literal["map", "list"]

MAX_BYTES: Final[dict[str, int]] = {"json": 8 << 20, "jsonc": 8 << 20, "toml": 512 << 10, "yaml": 512 << 10}
"""The largest file that is read: its parsers differ in speed by a factor of hundred."""


class Document(Protocol):
    """A parsed file."""

    @property
    def model(self) -> object:
        """What the whole file holds: maps and lists in each other, with the names of all settings."""

    @property
    def servers(self) -> dict[str, JsonValue]:
        """The servers by name, in their order."""

    def edited(self, changes: Mapping[str, JsonValue | None]) -> str:
        """The text with *changes*, each of which changes something."""

    def foreign(self) -> object:
        """Return what the file holds beside servers, to be compared."""


def read(data: bytes, form: Format, key: Sequence[str], shape: Shape, where: str) -> dict[str, JsonValue]:
    """The servers in the file *data*, of format *form*, by name and in the order of the file.

    *key* is the path to them. They are a map, or (*shape* ``list``) a list of objects that each hold their ``name``.
    None at all where the key or all content is missing. ``json`` may hold comments, too, as clients allow that.
    Raises :class:`~mcpd.errors.InvalidConfig`, which names *where*, mostly with the line, for a file that cannot be
    parsed, is larger than :data:`MAX_BYTES`, or holds something other than servers at the key.
    """
    servers = _parse(_text(data, form, where), form, key, shape).servers
    _check(servers, where)
    return servers


def names(data: bytes, form: Format, key: Sequence[str], shape: Shape, where: str) -> set[str]:
    """The names of all settings in the file, at whatever depth. Arguments and errors are those of :func:`read`."""
    found: set[str] = set()
    waiting: list[object] = [_parse(_text(data, form, where), form, key, shape).model]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            found.update(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return found


def edit(
    data: bytes, form: Format, key: Sequence[str], shape: Shape, changes: Mapping[str, JsonValue | None], where: str
) -> bytes:
    """The file *data* with *changes*: entries to put by name, None for those to remove.

    What is as *changes* want it is left alone, what is replaced keeps its place, and what is new comes last. An entry
    of a list is given its ``name`` if it has none. The path to the servers is made if it is missing. Arguments and
    errors are those of :func:`read`; it is an error, too, if the file holds what keeps it from being edited safely.
    """
    text = _text(data, form, where)
    before = _parse(text, form, key, shape)
    wanted = {name: _entry(name, entry, shape, where) for name, entry in changes.items()}
    held = before.servers
    _check(held, where)
    wanted = {
        name: entry
        for name, entry in wanted.items()
        if (name in held if entry is None else name not in held or not same(held[name], entry))
    }
    if not wanted:
        return data
    new = text.with_body(before.edited(wanted))
    if len(result := new.encode()) > MAX_BYTES[form]:
        raise InvalidConfig(f"{where}: would become larger than {MAX_BYTES[form] >> 10} KiB")
    try:
        fault = _difference(before, _parse(new, form, key, shape), wanted)
    except InvalidConfig as error:
        fault = error.message.removeprefix(where).lstrip(":")
    if fault:
        raise InvalidConfig(
            f"{where}: cannot be changed without changing more than was meant ({fault}); edit it by hand"
        )
    return result


def _difference(before: Document, after: Document, changes: Mapping[str, JsonValue | None]) -> str:
    """Return what is not in *after* as it was in *before* but for *changes*; empty if all is."""
    meant = {name: entry for name, entry in before.servers.items() if name not in changes}
    names = [name for name in after.servers if name not in changes]
    wanted = {name: entry for name, entry in changes.items() if entry is not None}
    if names != list(meant) or not same(after.servers, {**meant, **wanted}):
        return "other servers would change"
    return "" if same(after.foreign(), before.foreign()) else "other settings would change"


def _text(data: bytes, form: Format, where: str) -> Text:
    if len(data) > MAX_BYTES[form]:
        raise InvalidConfig(
            f"{where}: larger than {MAX_BYTES[form] >> 10} KiB, which is more than is read; edit it by hand"
        )
    return Text.decode(data, where)


def _entry(name: str, entry: JsonValue | None, shape: Shape, where: str) -> JsonValue | None:
    """*entry* as it is in the file."""
    shown = f"{where}: {printable(name)}"
    _check({name: entry}, where)
    if entry is None or shape == "map":
        return entry
    if not isinstance(entry, dict):
        raise InvalidConfig(f"{shown}: not an object, as the entries of a list have to be")
    if entry.get("name", name) != name:
        raise InvalidConfig(f"{shown}: holds another name, {printable(str(entry['name']))}")
    return entry if "name" in entry else {"name": name, **entry}


def _check(servers: Mapping[str, JsonValue], where: str) -> None:
    """See that the *servers* hold nothing that could not be compared, recorded and shown."""
    for name, entry in servers.items():
        try:
            check_json({name: entry})
        except ValueError as error:
            fault = str(error)
            if fault.startswith(("'", '"')):  # It quotes the text, which may be a secret.
                fault = "a text in it holds a character that cannot be written (NUL or half a surrogate pair)"
            raise InvalidConfig(f"{where}: {printable(name)}: cannot be used: {fault}") from None


def _parse(text: Text, form: Format, key: Sequence[str], shape: Shape) -> Document:
    if form == "toml":
        from mcpd.cli.clients.toml import TomlDocument  # noqa: PLC0415 -- the parsers are slow to import

        return TomlDocument.parse(text, key, shape)
    if form == "yaml":
        from mcpd.cli.clients.yaml import YamlDocument  # noqa: PLC0415

        return YamlDocument.parse(text, key, shape)
    from mcpd.cli.clients.jsonc import JsonDocument  # noqa: PLC0415

    return JsonDocument.parse(text, key, shape)
