# SPDX-License-Identifier: LGPL-2.1-or-later
"""YAML for what is added to an ensemble, in the style that the file has."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from mcpd.errors import InvalidArgument, InvalidConfig
from mcpd.servers.ensembles.format.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Style:
    """How a file is indented."""

    mapping: int = 2
    offset: int = 2
    """Of the dash of a list from the key that has it."""
    block_lists: bool = False
    """Whether lists of names have a line for each."""

    def block(self, value: Any, column: int) -> str:
        """*value*, with all lines but the first indented to *column*.

        Raises :class:`~mcpd.errors.InvalidArgument` for what YAML has no like of.
        """
        for write in (_literal, _plain, _quoted):
            text = self._dumped(self._styled(value, write))
            if reads_as(text, value):
                first, *rest = text.removesuffix("\n").split("\n")
                return "\n".join([first, *(" " * column + line if line else line for line in rest)])
        raise _unwritable()

    def flow(self, value: Any) -> str:
        """*value* on one line. Raises :class:`~mcpd.errors.InvalidArgument` for what YAML has no like of."""
        for write in (_plain, _quoted):
            # A scalar alone is written otherwise than one in a list.
            text = self._dumped(_flow([value], write)).removesuffix("\n").removeprefix("[").removesuffix("]")
            if "\n" not in text and reads_as(f"[{text}]", [value]):
                return text
        raise _unwritable()

    def _dumped(self, value: Any) -> str:
        yaml = YAML(pure=True)
        yaml.width = sys.maxsize
        yaml.indent(mapping=self.mapping, sequence=self.offset + 2, offset=self.offset)
        stream = StringIO()
        try:
            yaml.dump(value, stream)
        except (YAMLError, RecursionError, ValueError, TypeError):
            raise _unwritable() from None
        return stream.getvalue().removesuffix("...\n")

    def _styled(self, value: Any, write: Callable[[str], str]) -> Any:
        if isinstance(value, dict):
            return CommentedMap({_key(key, write): self._styled(each, write) for key, each in value.items()})
        if isinstance(value, list | tuple):
            if not self.block_lists and not any(isinstance(each, dict | list) or _long(each) for each in value):
                return _flow(value, write)
            return CommentedSeq([self._styled(each, write) for each in value])
        return write(value) if isinstance(value, str) else value


def _flow(value: Any, write: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        mapping = CommentedMap({_key(key, write): _flow(each, write) for key, each in value.items()})
        mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list | tuple):
        sequence = CommentedSeq([_flow(each, write) for each in value])
        sequence.fa.set_flow_style()
        return sequence
    return write(value) if isinstance(value, str) else value


def _key(key: str, write: Callable[[str], str]) -> str:
    return key if write is _literal else write(key)


def _literal(text: str) -> str:
    written: str = LiteralScalarString(text) if _long(text) else text
    return written


def _plain(text: str) -> str:
    return text


def _quoted(text: str) -> str:
    written: str = DoubleQuotedScalarString(text)
    return written


def _long(value: Any) -> bool:
    return isinstance(value, str) and "\n" in value


def reads_as(text: str, value: Any) -> bool:
    """Whether *text* is YAML for *value*."""
    try:
        return bool(read(text, "agent")[0] == value)
    except InvalidConfig:
        return False


def _unwritable() -> InvalidArgument:
    return InvalidArgument("what is to be added holds something that YAML cannot: characters that are no text, or NaN")
