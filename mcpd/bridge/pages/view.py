# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pages and their contents, as HTML from the templates.

Values in a template are escaped, and cannot change how the rest is read.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mcpd import __version__
from mcpd.bridge import eras
from mcpd.bridge.pages.snippets import PORT_PLACE, snippets
from mcpd.bridge.pages.survey import Answered, Memory, Offer, Way, known, survey
from mcpd.bridge.upstream.source import Listed
from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.handshake.serve import Handshake
    from mcpd.bridge.http.endpoint import Endpoint
    from mcpd.bridge.http.request import Request
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.source import ServerInfo

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
MOST_LISTED: Final = 1000
"""Servers on one page."""
_TITLES: Final = {
    400: "This request makes no sense",
    401: "Please sign in",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed here",
    406: "Nothing acceptable",
    410: "This link is of no use any more",
    421: "Wrong host",
    429: "Too many requests",
    503: "Not available",
}


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


class Pages:
    """Makes the pages of one bridge."""

    def __init__(self, parts: Parts, endpoint: Endpoint, handshake: Handshake) -> None:
        self._parts = parts
        self._way = Way(parts, endpoint, handshake)
        self._memory = Memory(parts.budget)

    async def overview(self, request: Request, caller: Caller) -> None:
        """``/mcp``."""
        fault = ""
        servers: list[Listed] = []
        try:
            servers = await self._parts.source.listing()
        except McpdError as error:
            fault = error.message
        servers.sort(key=lambda each: (each.name or each.id).casefold())
        await self._show(
            request, 200, "instruction.html",
            servers=servers[:MOST_LISTED], more=len(servers[MOST_LISTED:]), fault=fault,
        )  # fmt: skip

    async def server(self, request: Request, caller: Caller, name: str) -> None:
        """``/mcp/meta/{server}``, which only a POST makes ask the server itself.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.Disabled` or what else forbids to use it.
        """
        info = await self._parts.source.describe(name)
        listed = next((each for each in await self._parts.source.listing() if each.id == name), Listed(name))
        if request.reads:
            offer = self._memory.recall(caller, info) or await known(self._way, info)
        else:
            offer = await self._ask(name, caller)
            self._memory.keep(caller, info, offer)
        site = self._parts.site
        base = _own_url(request) or (site.urls[0] if site.urls else "")
        await self._show(
            request, 200, "meta.html",
            server=listed,
            endpoint=f"{base or PORT_PLACE}/mcp/{quote(name, safe='')}" if base or site.socket is None
            else f"unix://{site.socket}#/mcp/{quote(name, safe='')}",
            offer=offer,
            diagnostics=list(self._diagnostics(listed, info, caller, offer)),
            snippets=snippets(site, name, base),
        )  # fmt: skip

    async def error(
        self, request: Request, status: int, message: str, *, hint: str = "", command: str = "", headers: Headers = ()
    ) -> None:
        """A page that says *message*, and what helps."""
        title = _TITLES.get(status, "This did not work")
        await self._show(
            request, status, "error.html", headers,
            title=title, code=status, message=message, hint=hint, command=command,
        )  # fmt: skip

    async def _ask(self, name: str, caller: Caller) -> Offer:
        try:
            return await survey(self._way, name, caller)
        except (Answered, McpdError) as error:
            text = error.message if isinstance(error, McpdError) else str(error)
            return Offer(asked=time.time(), faults=[f"The server could not be asked: {text}"])

    def _diagnostics(
        self, listed: Listed, info: ServerInfo, caller: Caller, offer: Offer | None
    ) -> Iterable[tuple[str, str]]:
        options = self._parts.options
        if listed.state:
            yield "State", listed.state
        if listed.problem:
            yield "Problem", listed.problem
        yield "Revisions", _eras(info)
        yield "Processes", _sharing(info.sharing or options.sharing)
        sessions, processes = self._way.handshake.sessions.count(info.id, caller)
        yield "Running for you", f"{_number(processes, 'process', 'processes')}, {_number(sessions, 'session')}"
        yield "Time for a call", f"{info.call_timeout or options.call_timeout:g} s without an answer or progress"
        yield "Stopped", f"after {info.idle_timeout or options.idle_timeout:g} s without a call"
        if listed.sandboxed is not None:
            yield "Sandbox", "on" if listed.sandboxed else "off: it has all rights of the user it runs as"
        if listed.permissions:
            yield "Permissions", ", ".join(listed.permissions)
        if listed.homepage:
            yield "Homepage", listed.homepage
        if offer is not None and offer.asked:
            when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(offer.asked))
            about = " ".join(filter(None, (offer.name, offer.version)))
            spoke = f"; it is {about} and spoke {offer.revision}" if offer.revision else ""
            yield "Last asked", when + spoke
            yield "Last error", "; ".join(offer.faults) or "none"

    async def _show(
        self, request: Request, status: int, template: str, headers: Headers = (), **context: object
    ) -> None:
        site = self._parts.site
        about = {
            "kind": site.kind,
            "shell": site.shell,
            "version": __version__,
            "signed_in": request.peer.uid is None and b"authorization" not in request.headers and site.needs_token
            and status != 401,
            "needs_token": site.needs_token,
            "urls": site.urls,
            "port_changes": site.port_changes,
            "socket": site.socket,
            "mcps": site.mcps,
        }  # fmt: skip
        # Much of it takes its time, and other clients wait.
        body = await asyncio.to_thread(page, template, site=about, **context)
        await request.reply_as(status, body, (*PAGE_HEADERS, *headers))


def _own_url(request: Request) -> str:
    """The base URL by which the page was asked for, on TCP."""
    if request.peer.uid is not None:
        return ""
    return f"{request.scope['scheme']}://{request.headers.get(b'host', b'').decode('latin-1')}"


def _eras(info: ServerInfo) -> str:
    known = []
    if info.handshake is not False:
        known.append(f"{eras.HANDSHAKE[0]} to {eras.LATEST_HANDSHAKE}" + ("" if info.handshake else " (not checked)"))
    if info.modern:
        known.append(eras.MODERN)
    translated = (
        " The bridge translates for clients of other revisions." if not (info.modern and info.handshake) else ""
    )
    return f"{' and '.join(known) or 'none'}.{translated}"


def _sharing(sharing: str) -> str:
    return {
        "session": "one for each session",
        "caller": "one for all sessions of a user",
        "all": "one for all users",
    }.get(sharing, sharing)


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
