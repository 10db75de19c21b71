# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generator that turns ``mcps.source.json`` into an mcps map, with content ids in place of file names.

The source file has the format of the map (``docs/mcps.md``), except that ``definition_cid``, the three
``*_transform_cid`` and the ``source`` of a resource may name a file, relative to the directory of the source file.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import stat
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from mcpd.errors import InvalidManifest, McpdError, from_oserror
from mcpd.files import MAX_FILE
from mcpd.model import check_id, load_json, printable
from mcpd.model.mcps import parse_entry
from mcpd.scripts import contents
from mcpd.scripts.inspection import SUFFIXES, inspect, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from mcpd.model.mcps import McpsEntry

FILE: Final = "file:"
"""Prefix that marks a value as a file name, in fields that also take other values."""
TRANSFORMS: Final = {
    "tools_transform_cid": "generate_tools",
    "resources_transform_cid": "generate_resources",
    "prompts_transform_cid": "generate_prompts",
}
"""The fields of an entry that name a transform, and the function that each transform has to define."""
DEFINITION: Final = "definition_cid"
_MOST_LINKS: Final = 40
"""Maximum number of symlinks that are followed to reach a file, the same as in Linux."""


class Stored(NamedTuple):
    """A file whose name the build replaced with its content id."""

    field: str
    """Server id and field, such as ``jq.tools_transform_cid``."""
    path: Path
    id: str


@dataclass(frozen=True, slots=True)
class Built:
    """Result of a build."""

    map: dict[str, Any]
    stored: list[Stored]
    text: str = dataclass_field(default="", compare=False, repr=False)
    """Text of the source file."""


class _Reference(NamedTuple):
    """A field of an entry that refers to content, by content id or file name."""

    holder: dict[str, Any]
    key: str
    field: str
    value: str


def build(
    source: Path, directory: Path, others: Sequence[Path] = (), rule: Callable[[str, McpsEntry], object] | None = None
) -> Built:
    """Build the map from the file *source* and, if it has no errors, store the files it names in *directory*.

    Content that *source* names by id may also be in one of *others*. *rule* may report a further error in an entry by
    raising :class:`~mcpd.errors.McpdError`. Raises :class:`~mcpd.errors.InvalidManifest` with one line per error that
    names file, line, entry and field; then nothing is written. Raises :class:`~mcpd.errors.McpdError` if *source*
    cannot be read or *directory* cannot be written. Files outside the directory of *source* are refused, even if
    somebody changes that directory during the build.
    """
    with ExitStack() as stack:
        try:
            below = stack.enter_context(_Directory(source.parent))
            text = below.read(source.name, MAX_FILE)
        except OSError as error:
            raise from_oserror(error, f"reading {source}") from error
        data = load_json(text, str(source))
        if not isinstance(data, dict):
            raise InvalidManifest(f"{source}:1: the map must be an object of server ids and entries")
        builder = _Builder(source, below, (directory, *others), rule)
        decoded = text.decode(errors="replace")
        for server_id, raw in data.items():
            builder.entry(server_id, raw, line_of(decoded, server_id))
    if builder.faults:
        raise InvalidManifest("\n".join(builder.faults))
    for content in builder.contents.values():
        contents.write(directory, content)
    return Built(data, builder.stored, decoded)


def content_faults(raw: Mapping[str, Any], entry: McpsEntry, directories: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield each field of an entry whose content is missing or invalid, with the error message.

    *raw* is the entry as written, *entry* the parsed one.
    """
    for reference in _references(dict(raw), entry):
        if reference.value.startswith(FILE):
            advice = "a map cannot refer to files; put the file name in a *.source.json, and run 'mcpctl mcps build'"
            yield reference.field, _no_file(reference.value) if reference.key == "uri" else advice
            continue
        if reference.key not in _FIELDS and not reference.value.startswith(contents.SCHEME):
            continue
        try:
            _check(reference.key, contents.read(reference.value, directories), reference.value)
        except McpdError as error:
            yield reference.field, error.message


def line_of(text: str, key: str) -> int:
    """Return the line number where the member *key* begins in the JSON *text*; 1 if it is not found."""
    found = re.search(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)
    return text.count("\n", 0, found.start()) + 1 if found is not None else 1


class _Builder:
    """Build of one source file. Entries are changed in place; contents are collected, to be stored by the caller."""

    def __init__(
        self,
        source: Path,
        below: _Directory,
        known: Sequence[Path],
        rule: Callable[[str, McpsEntry], object] | None,
    ) -> None:
        self._source, self._below = source, below
        self._known, self._rule = known, rule
        self.faults: list[str] = []
        self.stored: list[Stored] = []
        self.contents: dict[str, bytes] = {}

    def entry(self, server_id: str, raw: object, line: int) -> None:
        where = f"{self._source}:{line}"
        try:
            check_id(server_id)
            entry = parse_entry(server_id, raw, where)
        except InvalidManifest as error:
            named = error.message.startswith(where)
            self.faults.append(error.message if named else f"{where}: entry {printable(server_id)!r}: {error.message}")
            return
        assert isinstance(raw, dict)  # noqa: S101 - parse_entry accepts nothing else
        if self._rule is not None:
            try:
                self._rule(server_id, entry)
            except McpdError as error:
                bare = error.message.removeprefix(f"{server_id}: ")
                self.faults.append(f"{where}: entry {server_id!r}: {bare}")
        for reference in _references(raw, entry):
            try:
                self._reference(server_id, reference)
            except McpdError as error:
                self.faults.append(f"{where}: entry {server_id!r}: {reference.field}: {error.message}")

    def _reference(self, server_id: str, reference: _Reference) -> None:
        key, value = reference.key, reference.value
        if key == "uri" and value.startswith(FILE):
            raise InvalidManifest(_no_file(value))
        if value.startswith(contents.SCHEME) or (key in _FIELDS and contents.is_content_id(value)):
            data = contents.read(value, self._known)
            _check(key, data, value)
            name = contents.content_id(data)
            if not any((directory / name).exists() for directory in self._known):
                # The id itself contains the content; script servers need it as a file.
                self.contents[name] = data
        elif key in _FIELDS or (key == "source" and value.startswith(FILE)):
            path = value.removeprefix(FILE)
            data = self._below.content(path)
            if key == DEFINITION:
                _check_name(path, data)
            _check(key, data, path)
            name = contents.content_id(data)
            self.contents[name] = data
            reference.holder[key] = contents.SCHEME + name
            self.stored.append(Stored(f"{server_id}.{reference.field}", self._source.parent / path, name))


_FIELDS: Final = frozenset({DEFINITION, *TRANSFORMS})


def _references(raw: dict[str, Any], entry: McpsEntry) -> Iterator[_Reference]:
    for field in (DEFINITION, *TRANSFORMS):
        if value := getattr(entry, field):
            yield _Reference(raw, field, field, value)
    if isinstance(entry.resources, dict):
        for name, resource in entry.resources.items():
            key = "source" if resource.source else "uri"
            field = f"resources.{printable(name)}.{key}"
            yield _Reference(raw["resources"][name], key, field, resource.source or resource.uri)


def _no_file(uri: str) -> str:
    return (
        f"{printable(uri)} is not a URI that clients can read; to serve a file, make it the resource's source:"
        f' {{"uri": "logo://…", "source": "{FILE}…"}}'
    )


def _check_name(path: str, data: bytes) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` if the suffix of *path* contradicts *data*; only that is kept."""
    kind = kind_of(data)
    if SUFFIXES.get(f".{path.rpartition('.')[2]}", kind) == kind:
        return
    if kind == "shell":
        raise InvalidManifest(
            f"{printable(path)}: has a Python file name, but its #! line specifies another interpreter"
        )
    raise InvalidManifest(
        f"{printable(path)}: the map does not keep the name of a script, so a shell script needs a #! line;"
        " begin it with #!/bin/sh"
    )


def _check(key: str, data: bytes, origin: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` if *data*, from *origin*, is invalid for the field *key*."""
    if key not in _FIELDS:
        return
    kind = kind_of(data) if key == DEFINITION else "python"
    if problem := inspect(data, kind).problem:
        raise InvalidManifest(f"{printable(origin)}:{problem}")
    if key in TRANSFORMS and not _defines(data, TRANSFORMS[key]):
        raise InvalidManifest(f"{printable(origin)} defines no function {TRANSFORMS[key]}(server_name, context)")


def _defines(data: bytes, name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(data)
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in tree.body)


class _Directory:
    """The directory of a source file, opened before anything in it is read.

    Only files in it are read, even if it is replaced in the meantime: ``..`` and symlinks cannot lead outside.
    """

    def __init__(self, path: Path) -> None:
        """Open the directory. Raises OSError."""
        self._path = path
        self._handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    def read(self, relative: str, limit: int) -> bytes:
        """Return the content of the regular file *relative*.

        Raises :class:`~mcpd.errors.InvalidManifest` if it is outside the directory or has more than *limit* bytes, and
        OSError or ValueError if it cannot be read.
        """
        shown = printable(relative)
        try:
            descriptor = _open(self._handle, relative)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise InvalidManifest(
                f"{shown} is not below {self._path}; copy it there, and use relative names and links"
            ) from error
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            data = file.read(limit + 1)
        if len(data) > limit:
            raise InvalidManifest(f"{shown} is larger than {limit} bytes")
        return data

    def content(self, relative: str) -> bytes:
        """Return the content of the file *relative*. Raises :class:`~mcpd.errors.InvalidManifest` for every failure."""
        try:
            return self.read(relative, contents.MAX_CONTENT)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidManifest(f"{printable(relative)}: {reason}, looked for in {self._path}") from error


def _open(root: int, relative: str) -> int:
    """Open the regular file with the path *relative* below the directory *root* for reading.

    Each path component is opened in a directory that is already open, and ``..`` returns to the directory opened
    before, so concurrent changes cannot lead outside. Raises OSError, with ``EXDEV`` for a file not below *root*.
    """
    way = [root]
    waiting = _steps(relative)
    links = 0
    try:
        while waiting:
            name = waiting.pop()
            if name == "..":
                if len(way) == 1:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
                os.close(way.pop())
            elif (target := _target(way[-1], name)) is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                waiting += _steps(target)
            elif waiting:
                way.append(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=way[-1]))
            else:
                return _open_file(way[-1], name)
    finally:
        for descriptor in way[1:]:
            os.close(descriptor)
    raise IsADirectoryError(None, "not a regular file")


def _steps(path: str) -> list[str]:
    """Return the components of the relative *path*, the last one first."""
    if path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _target(directory: int, name: str) -> str | None:
    """Return the target of the symlink *name* in *directory*; None if it is not a symlink."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None


def _open_file(directory: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(None, "not a regular file")
    return descriptor
