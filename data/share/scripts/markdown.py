# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turns Markdown into HTML that is safe to show, into plain text, or into a table of contents.

Markdown is CommonMark with tables and strikethrough.
"""

from __future__ import annotations

import itertools
from html import unescape
from typing import TYPE_CHECKING, TypedDict

import nh3
from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

MOST_CHARACTERS = 1_000_000

ATTRIBUTES = {tag: set(names) for tag, names in nh3.ALLOWED_ATTRIBUTES.items()}
for _cell in ("th", "td"):
    ATTRIBUTES[_cell] = ATTRIBUTES.get(_cell, set()) | {"style"}
ATTRIBUTES["code"] = {"class"}


class Heading(TypedDict):
    """A heading of a document."""

    level: int
    title: str


def convert(markdown: str) -> str:
    """Convert Markdown to HTML without scripts, styles, forms and frames.

    HTML in the text stays as far as it is harmless. Links are relative, or lead to http, https, mailto and tel
    addresses.

    Args:
        markdown: The text to convert, at most a million characters.
    """
    return nh3.clean(
        _parser().render(_checked(markdown)),
        attributes=ATTRIBUTES,
        attribute_filter=_attribute,
        filter_style_properties={"text-align"},
        url_schemes={"http", "https", "mailto", "tel"},
    )


def plain(markdown: str) -> str:
    """Take the markup away: the words of a document, a block to a paragraph.

    Args:
        markdown: The text to convert, at most a million characters.
    """
    return "\n\n".join(_blocks(_parser().parse(_checked(markdown))))


def toc(markdown: str, depth: int = 6) -> list[Heading]:
    """List the headings of a document in their order.

    Args:
        markdown: The text to look at, at most a million characters.
        depth: Levels of headings to list, 1 to 6.
    """
    if not 1 <= depth <= 6:
        raise ValueError(f"depth: {depth} is not between 1 and 6")
    tokens = _parser().parse(_checked(markdown))
    found = [
        Heading(level=int(token.tag[1:]), title=_words(text.children or []))
        for token, text in itertools.pairwise(tokens)
        if token.type == "heading_open"
    ]
    return [heading for heading in found if heading["level"] <= depth]


def _attribute(tag: str, name: str, value: str) -> str | None:
    """The languages of code are classes; others are for the page that shows it."""
    return None if (tag, name) == ("code", "class") and not value.startswith("language-") else value


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _checked(markdown: str) -> str:
    if len(markdown) > MOST_CHARACTERS:
        raise ValueError(f"markdown: {len(markdown)} characters are more than {MOST_CHARACTERS}; convert it in parts")
    return markdown


def _blocks(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type in {"fence", "code_block"}:
            yield token.content.rstrip("\n")
        elif token.type == "html_block":
            yield unescape(nh3.clean(token.content, tags=set())).strip()
        elif token.children:
            yield _words(token.children)


def _words(tokens: Sequence[Token]) -> str:
    """The text of inline *tokens*; of an image its description."""
    parts = []
    for token in tokens:
        if token.type in {"softbreak", "hardbreak"}:
            parts.append("\n")
        elif token.type == "image":
            parts.append(_words(token.children or []))
        elif token.type in {"text", "code_inline"}:
            parts.append(token.content)
    return "".join(parts)
