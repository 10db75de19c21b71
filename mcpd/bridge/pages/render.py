# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTML from the templates. Whatever is put into one is escaped, and cannot change how the rest is read."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from mcpd.bridge.exchange import Headers

_HERE: Final = Path(__file__).parent
_GUARD: Final = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
            b"frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    # With "no-referrer" browsers would not tell the origin of a form either, and it could not be trusted.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
PAGE_HEADERS: Final[Headers] = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"vary", b"Accept, Authorization, Cookie, Origin"),
    *_GUARD,
)
_TYPES: Final = {
    "style.css": b"text/css; charset=utf-8",
    "page.js": b"text/javascript; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that control a terminal, change the direction of text, or are not seen; line breaks and tabs are."""


class Asset(NamedTuple):
    """A file that pages refer to."""

    body: bytes
    headers: Headers


@cache
def asset(name: str) -> Asset | None:
    """The file *name* of those that pages refer to."""
    kind = _TYPES.get(name)
    if kind is None:
        return None
    return Asset(
        (_HERE / "static" / name).read_bytes(), ((b"content-type", kind), (b"cache-control", b"no-cache"), *_GUARD)
    )


def page(template: str, **context: object) -> bytes:
    """The page of *template*."""
    return _environment().get_template(template).render(context).encode()


def harmless(text: str) -> str:
    """*text* with what cannot be seen shown by its number."""
    return _UNSEEN.sub(lambda found: f"‹U+{ord(found.group()):04X}›", text)


def clip(text: object, length: int) -> str:
    """At most *length* characters of *text*, harmless ones."""
    whole = harmless(str(text)[: length + 1])
    return whole if len(whole) <= length else whole[:length] + " …"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_finalize,
    )
    made.filters |= {"path": _path, "clip": clip, "mood": _mood}
    return made


def _finalize(value: object) -> object:
    return harmless(value) if type(value) is str else value


def _path(name: str) -> str:
    """A server's name as a segment of a URL's path."""
    return quote(name, safe="")


def _mood(state: str) -> str:
    return {"installed": "good", "updatable": "good", "running": "good", "broken": "bad", "disabled": "bad"}.get(
        state, ""
    )
