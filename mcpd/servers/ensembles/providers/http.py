# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests to models' APIs, and their common parts: options, lenient parsing of answers, and errors."""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import http
import json
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from mcpd import __version__
from mcpd.errors import (
    InvalidArgument,
    InvalidConfig,
    InvalidManifest,
    LimitExceeded,
    McpdError,
    NotAuthorized,
    NotFound,
    ServiceUnavailable,
    TooLarge,
)
from mcpd.model import load_json, printable
from mcpd.model.base import first_fault
from mcpd.servers.ensembles.providers.keys import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

    from mcpd.servers.ensembles.format.models import Profile

CONNECT_TIMEOUT: Final = 10.0
"""Seconds to connect; the caller limits the rest."""
CONNECTIONS: Final = 64
MAX_ANSWER: Final = 8 * 1024 * 1024
"""Maximum size of an answer in bytes."""
MAX_REFUSAL: Final = 64 * 1024
"""Bytes to read of an error answer."""
_IDLE: Final = 30.0
"""Seconds after which an unused connection is closed."""
_SPENT: Final = frozenset({"insufficient_quota", "enforced_spend_limit_reached"})
"""Codes of limits that waiting does not lift."""
_FOR_NOW: Final = frozenset({402, 408, 425, 429})
"""Status codes, in addition to 5xx, of errors that may be temporary."""
_FINAL: Final[Mapping[int, tuple[type[McpdError], str]]] = {
    300: (InvalidConfig, "; redirects are not followed, set base_url to where the API is"),
    403: (NotAuthorized, "; check that the key may use this model"),
    404: (NotFound, "; check the model's name and base_url"),
    407: (NotAuthorized, "; the proxy has to let this program through"),
}
_SECONDS: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Call:
    """A POST request to an API."""

    url: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(repr=False)
    key: str | None = field(repr=False, default=None)
    """The key, which is removed from messages."""


class Http:
    """The HTTP client for all APIs. TLS is always verified; redirects are not followed."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def post(self, call: Call) -> Any:
        """Return the JSON answer to *call*.

        Raises the errors of :meth:`mcpd.servers.ensembles.engine.types.Models.complete`; ``data["retryable"]`` says
        whether a retry may help, ``data["retry_after"]`` after how many seconds; it is None for a limit that waiting
        lifts after an unknown time.
        """
        content = _content(call)
        client = await self._opened()
        import httpx2  # see _open

        place = call.url
        try:
            async with client.stream("POST", place, content=content, headers=dict(call.headers)) as response:
                if not response.is_success:
                    raise _refusal(call, response, await _part(response, MAX_REFUSAL))
                return _json(place, response, await _part(response, MAX_ANSWER + 1))
        except httpx2.ConnectTimeout as error:
            raise _unavailable(f"{place}: no connection within {CONNECT_TIMEOUT:g} s") from error
        except httpx2.ConnectError as error:
            why = f"{_reason(error)}; check that it runs, and base_url"
            raise _unavailable(f"{place} cannot be reached: {why}") from error
        except httpx2.InvalidURL as error:
            raise fault(InvalidConfig(f"{words(place)} is no URL that can be asked: {_reason(error)}")) from error
        except (httpx2.HTTPError, OSError) as error:
            raise _unavailable(f"{place}: the connection failed: {_reason(error)}") from error

    async def _opened(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(_open)
            return self._client


def fault(error: McpdError, *, retryable: bool = False, **data: object) -> McpdError:
    """Return *error* with ``data`` set."""
    error.data = {"retryable": retryable, **data}
    return error


def words(text: str) -> str:
    """Return untrusted *text* on one line for a message: at most 280 of its characters."""
    line = " ".join(text[:2000].split())
    return printable(line[:140]) + printable(line[140:280])


def _open() -> httpx2.AsyncClient:
    # The import takes half a second, which only runs with such a model should pay.
    import httpx2

    return httpx2.AsyncClient(
        verify=ssl.create_default_context(),
        headers={
            "User-Agent": f"mcpd-llm-orc/{__version__}",
            "Accept": "application/json",
            "Content-Type": "application/json",
            # The size of an uncompressed answer is bounded by the bytes received.
            "Accept-Encoding": "identity",
        },
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
        limits=httpx2.Limits(
            max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=_IDLE
        ),
        # No proxy for this machine: it would see the keys, as TLS is not required.
        mounts={f"all://{host}": None for host in LOOPBACK},
        follow_redirects=False,
    )


def _content(call: Call) -> bytes:
    try:
        return json.dumps(call.body, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise fault(InvalidConfig(f"the options for {call.url} cannot be written as JSON: {error}")) from error


async def _part(response: httpx2.Response, most: int) -> bytes:
    """Return the body, read until it has at least *most* bytes."""
    found = bytearray()
    async for chunk in response.aiter_raw():
        found += chunk
        if len(found) >= most:
            break
    return bytes(found)


def _json(place: str, response: httpx2.Response, body: bytes) -> Any:
    if len(body) > MAX_ANSWER:
        raise fault(TooLarge(f"{place} answers with more than {MAX_ANSWER} bytes; set max_tokens"))
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise fault(McpdError(f"{place} sends compressed data, which was not asked for"))
    try:
        return load_json(body, f"the answer of {place}")
    except InvalidManifest as error:
        raise fault(
            McpdError(f"{words(error.message)}; check that base_url is that of the API, not of a web page")
        ) from error


def _refusal(call: Call, response: httpx2.Response, body: bytes) -> McpdError:
    """Return the error for an unsuccessful status."""
    status = response.status_code
    said, codes, delay = _said(body)
    # A key shorter than any real one is not secret, and may be part of a word.
    told = words(said.replace(call.key, "…") if call.key and len(call.key) >= 8 else said)
    answers = f"{call.url} answers HTTP {status} ({_phrase(status)}){told and f': {told}'}"
    if status == 401 or "API_KEY_INVALID" in codes:
        # Omit the message, as some APIs repeat parts of the key.
        return fault(NotAuthorized(_unknown_key(call, status)))
    if status >= 500 or status in _FOR_NOW:
        after = _retry_after(response.headers.get("Retry-After", ""), delay)
        if status == 402 or codes & _SPENT:
            return fault(LimitExceeded(answers))
        if status == 429:
            return fault(LimitExceeded(answers), retryable=True, retry_after=after)
        return _unavailable(answers, **({} if after is None else {"retry_after": after}))
    if "content_filter" in codes:
        return fault(McpdError(answers), reason="content_filter")
    final, hint = _FINAL.get(300 if 300 <= status < 400 else status, (InvalidArgument, ""))
    return fault(final(f"{answers}{hint}"))


def _unknown_key(call: Call, status: int) -> str:
    if call.key is None:
        return (
            f"{call.url} wants a key (HTTP {status}), and there is none for it; give one as BASE_URL=KEY:"
            " 'mcpctl secret set llm-orc LLM_ORC_KEYS', or LLM_ORC_KEYS in the environment of llm-orc on its own"
        )
    return f"{call.url} refuses the key that is set for it (HTTP {status}); set a valid one"


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "overloaded" if status == 529 else "an unknown status"


def _said(body: bytes) -> tuple[str, frozenset[str], str]:
    """Return the message, the codes, and the delay in Google's ``RetryInfo``, of an error."""
    try:
        found = load_json(body, "the error")
    except InvalidManifest:
        return "", frozenset(), ""
    # Gemini's compatible API wraps the object in a list.
    found = found[0] if isinstance(found, list) and found else found
    outer = found if isinstance(found, dict) else {}
    error = outer.get("error", outer)
    inner = error if isinstance(error, dict) else {}
    texts = (error, inner.get("message"), inner.get("detail"))
    details = inner.get("details")
    parts = [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    codes = [inner.get("code"), inner.get("type"), *(each.get("reason") for each in parts)]
    delay = next((each["retryDelay"] for each in parts if isinstance(each.get("retryDelay"), str)), "")
    return (
        next((text for text in texts if isinstance(text, str)), ""),
        frozenset(code for code in codes if isinstance(code, str)),
        delay,
    )


def _retry_after(header: str, delay: str) -> float | None:
    """Return the seconds until a retry is useful, from ``Retry-After`` (RFC 9110 §10.2.3) or ``34.5s`` in an error."""
    for text in (header.strip(), delay.strip()):
        if found := _SECONDS.fullmatch(text):
            return float(found[1])
    try:
        then = email.utils.parsedate_to_datetime(header)
        then = then if then.tzinfo is not None else then.replace(tzinfo=dt.UTC)
        return max(0.0, (then - dt.datetime.now(dt.UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def _unavailable(text: str, **data: object) -> McpdError:
    return fault(ServiceUnavailable(text), retryable=True, **data)


def _reason(error: BaseException) -> str:
    return words(str(error)) or type(error).__name__


DEFAULT_MAX_TOKENS: Final = 4096
"""Default for APIs that require a limit if the profile has none: the smallest limit of the models in use."""
JSON_ONLY: Final = "Answer with JSON only: no words before or after it, no code fence."
_OURS: Final = frozenset({
    "model", "messages", "contents", "system", "system_instruction", "systemInstruction", "stream", "key", "api_key",
    "apiKey", "authorization", "headers", "base_url",
})  # fmt: skip
"""Members of the request that options must not set."""
_MOST_TOKENS: Final = 1 << 53


def _text(value: Any) -> Any:
    """Replace single surrogates, which cannot be encoded."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else 0


def _name(value: Any) -> str:
    return printable(value) if isinstance(value, str) else ""


def _object(value: Any) -> Any:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> Any:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else value


Text = Annotated[str, BeforeValidator(_text)]
Count = Annotated[int, BeforeValidator(_count)]
"""A number of tokens; 0 for invalid values."""
Name = Annotated[str, BeforeValidator(_name)]
"""A word for messages and listings; empty for invalid values."""
LAX_OBJECT: Final = BeforeValidator(_object)
"""An object; empty for other values."""
LAX_OBJECTS: Final = BeforeValidator(_objects)
"""A list of objects; other values are ignored."""


class Answer(BaseModel):
    """An object in an answer; other members are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


A = TypeVar("A", bound=Answer)


def parsed(kind: type[A], answer: Any, call: Call) -> A:
    """Return *answer* as a *kind*. Raises :class:`~mcpd.errors.McpdError` with the fault if it is invalid."""
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        raise unusable(call, f"{words(first_fault(error))}{_error_in(answer)}") from error


def unusable(call: Call, why: str) -> McpdError:
    """Return the error for an answer that is not a completion."""
    return fault(McpdError(f"{call.url} answers something else than a completion ({why}); check provider and base_url"))


def refused(call: Call, reason: str, said: str = "") -> McpdError:
    """Return the error for a model that did not answer, for *reason*, a word of its API."""
    more = f": {words(said)}" if said else ""
    return fault(McpdError(f"the model at {call.url} gives no answer ({words(reason)}){more}"), reason=words(reason))


def _error_in(answer: Any) -> str:
    """Return the message of an error that was sent with a successful status."""
    error = answer.get("error") if isinstance(answer, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return f": {words(said)}" if isinstance(said, str) else ""


def options(profile: Profile) -> dict[str, Any]:
    """Return the profile's own options. Raises :class:`~mcpd.errors.InvalidConfig` for those that it must not set."""
    given = dict(profile.options or {})
    if wrong := sorted(given.keys() & _OURS):
        raise InvalidConfig(f"options of a model must not set {', '.join(wrong)}; the profile has keys for what it may")
    return given


def with_json(system: str | None) -> str:
    """Return *system* with the instruction that the answer has to be JSON."""
    return f"{system}\n\n{JSON_ONLY}" if system else JSON_ONLY
