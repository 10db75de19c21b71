# SPDX-License-Identifier: LGPL-2.1-or-later
"""The keys of models' APIs, each for one base URL and paths below it, and the base URLs that may be used.

A project's profile, which anybody may have written, can use only the APIs in :data:`DEFAULTS` and those that the user's
keys or profiles name. Otherwise a cloned project could make this program send requests to any service of the local
network, or of the machine itself.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from mcpd.errors import ConfigMissing, InvalidConfig, McpdError, NotAuthorized
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from mcpd.servers.ensembles.format.models import Profile

OPENAI: Final = "https://api.openai.com/v1"
ANTHROPIC: Final = "https://api.anthropic.com"
GEMINI: Final = "https://generativelanguage.googleapis.com"
OLLAMA: Final = "http://localhost:11434/v1"

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
"""Names of this machine: no proxy is used for them, and only they get a key without TLS."""

MAX_URL: Final = 2048
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[\w.~!$&'()*+,;=:@-]+)*)/?",
    re.IGNORECASE | re.ASCII,
)
_PORTS: Final = {"http": 80, "https": 443}
_KEY: Final = re.compile(r"[!-~]{1,4096}")
_WORDS: Final = (
    ("OPENAI_API_KEY", "OPENAI_BASE_URL", OPENAI),
    ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", ANTHROPIC),
    ("GEMINI_API_KEY", "", GEMINI),
    ("GOOGLE_API_KEY", "", GEMINI),
)
"""Variable of a key, variable of the base URL that it is for, and default base URL."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base URL in normal form: no default port, no slash at the end, lower-case scheme and host."""

    scheme: str
    host: str
    """In brackets if it is an IPv6 address."""
    port: int
    path: str

    @classmethod
    def parse(cls, text: str, whose: str) -> Self:
        """Parse the base URL *text*, which messages call *whose*. Raises :class:`~mcpd.errors.InvalidConfig`."""
        authority = text.partition("://")[2].partition("/")[0]
        if "@" in authority:
            # The part before "@" may be a password.
            raise InvalidConfig(f"{whose} has a user name or password in it; give the key on its own")
        found = _URL.fullmatch(text) if len(text) <= MAX_URL else None
        if found is None:
            raise InvalidConfig(
                f"{whose} is {printable(text)!r}, which is not like https://HOST[:PORT][/PATH]; query, fragment and"
                " escapes have no place in it"
            )
        scheme, path = found["scheme"].lower(), found["path"]
        port = int(found["port"] or _PORTS[scheme])
        if not 0 < port < 65536 or {".", ".."} & set(path.split("/")):
            raise InvalidConfig(f"{whose} is {printable(text)!r}, whose port or path cannot be used")
        return cls(scheme, _host(found["host"].lower(), whose), port, path)

    def __str__(self) -> str:
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}{self.path}"

    def covers(self, other: Base) -> bool:
        """Return True if *other* is the same, or below it."""
        return (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port) and (
            f"{other.path}/".startswith(f"{self.path}/")
        )


def _host(text: str, whose: str) -> str:
    if not text.startswith("["):
        if not all(0 < len(label) < 64 for label in text.split(".")) or len(text) > 253:
            raise InvalidConfig(f"{whose} has the host {printable(text)!r}, which is no name of a host")
        return text
    try:
        return f"[{ipaddress.IPv6Address(text[1:-1]).compressed}]"
    except ValueError:
        raise InvalidConfig(f"{whose} has the host {printable(text)!r}, which is no IPv6 address") from None


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of a key that was ignored."""

    base: Base | None
    """The base URL that it is for; None if unknown."""
    message: str


class Keys(Mapping[str, str]):
    """Keys by base URL. The repr contains no keys."""

    def __init__(
        self,
        given: Mapping[str, str],
        bases: Mapping[str, str] = MappingProxyType({}),
        faults: Sequence[Fault] = (),
    ) -> None:
        """Replace some of the built-in base URLs, such as :data:`OPENAI`, by *bases*. *faults* are reported when
        one of these keys is needed.

        Raises :class:`~mcpd.errors.InvalidConfig` for an invalid base URL or key, and for a key that would be sent over
        a network without TLS.
        """
        self._keys: dict[Base, str] = {}
        for url, key in given.items():
            base = Base.parse(url, "the base URL of a key")
            self._keys[base] = _checked(base, key)
        self.faults = tuple(faults)
        self._bases = {old: str(Base.parse(new, "a base URL of the environment")) for old, new in bases.items()}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return keys from ``OPENAI_API_KEY``, ``ANTHROPIC_API_KEY``, ``GEMINI_API_KEY``, ``GOOGLE_API_KEY``, and from
        ``LLM_ORC_KEYS``: pairs ``BASE_URL=KEY`` separated by white space.

        ``OPENAI_BASE_URL`` and ``ANTHROPIC_BASE_URL`` replace the base URLs of these APIs, and their keys are sent only
        there. Invalid values are ignored and listed in ``faults``, which name the variable.
        """
        keys: dict[str, str] = {}
        bases: dict[str, str] = {}
        faults: list[Fault] = []
        for name, where, default in _WORDS:
            place = Base.parse(default, name)
            try:
                if url := environ.get(where, "").strip():
                    # The key may be meant for that URL, and is sent nowhere else.
                    place = Base.parse(url, where)
                    bases[default] = str(place)
                if key := environ.get(name, "").strip():
                    keys.setdefault(str(place), _checked(place, key, name))
            except InvalidConfig as fault:
                faults.append(Fault(place, fault.message))
        for at, pair in enumerate(environ.get("LLM_ORC_KEYS", "").split(), start=1):
            found = _pair(pair, f"LLM_ORC_KEYS, entry {at}")
            if isinstance(found, Fault):
                faults.append(found)
            else:
                keys[str(found[0])] = found[1]
        return cls(keys, bases, [each for each in faults if each.base is None or str(each.base) not in keys])

    def __getitem__(self, url: str) -> str:
        try:
            return self._keys[Base.parse(url, "the base URL")]
        except InvalidConfig:
            raise KeyError(url) from None

    def __iter__(self) -> Iterator[str]:
        return map(str, self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"Keys({sorted(self)})"

    def base(self, default: str) -> Base:
        """Return the base URL of the API whose default is *default*."""
        return Base.parse(self._bases.get(default, default), "the base URL")

    def key(self, base: Base) -> str | None:
        """Return the key for *base*: that of the nearest base URL that covers it; None if that was ignored."""
        nearest = self._nearest(base)
        return None if nearest is None or self.fault(base) is not None else self._keys[nearest]

    def fault(self, base: Base) -> str | None:
        """Return the fault of the key for *base*; None if it is valid, or there is none."""
        nearest = self._nearest(base)
        covering = [each for each in self.faults if each.base is not None and each.base.covers(base)]
        found = max(covering, key=lambda each: len(each.base.path) if each.base else 0, default=None)
        if found is None or found.base is None or (nearest is not None and len(nearest.path) > len(found.base.path)):
            return None
        return found.message

    def _nearest(self, base: Base) -> Base | None:
        return max((each for each in self._keys if each.covers(base)), key=lambda each: len(each.path), default=None)


def _pair(text: str, whose: str) -> tuple[Base, str] | Fault:
    """Return the base URL and the key in *text*, or the fault in it."""
    url, equals, key = text.partition("=")
    if not equals or "://" not in url:
        return Fault(None, f"{whose}: not BASE_URL=KEY, such as https://models.example.com/v1=KEY")
    base = None
    try:
        base = Base.parse(url, f"{whose}: the base URL")
        return base, _checked(base, key, whose)
    except InvalidConfig as fault:
        return Fault(base, fault.message)


def _checked(base: Base, key: str, whose: str = "") -> str:
    """Return *key* if it may be sent to *base*. Raises :class:`~mcpd.errors.InvalidConfig`."""
    prefix = f"{whose}: " if whose else ""
    if not _KEY.fullmatch(key):
        raise InvalidConfig(f"{prefix}the key for {base} is empty, too long, or has characters that no key has")
    if base.scheme == "http" and base.host not in LOOPBACK:
        raise InvalidConfig(
            f"{prefix}the key for {base} would go over the network in the clear; use https, or give no key for it"
            f" (without TLS a key goes to {', '.join(LOOPBACK)} only)"
        )
    return key


DEFAULTS: Final = {
    "openai-compatible": OPENAI,
    "openai": OPENAI,
    "ollama": OLLAMA,
    "anthropic": ANTHROPIC,
    "anthropic-api": ANTHROPIC,
    "google-gemini": GEMINI,
    "google": GEMINI,
}
"""Base URLs of providers, for profiles without ``base_url``."""
VARIABLES: Final = {OPENAI: "OPENAI_API_KEY", ANTHROPIC: "ANTHROPIC_API_KEY", GEMINI: "GEMINI_API_KEY"}
"""Variables of the keys without which these APIs do not answer."""


class Access:
    """The base URLs that may be used, and their keys."""

    def __init__(self, keys: Keys, allowed: Callable[[], Collection[str]] = tuple) -> None:
        """Use *keys*; *allowed* returns the base URLs of the user's own profiles."""
        self._keys = keys
        self._allowed = allowed

    def fault(self, profile: Profile, *, trusted: bool) -> str | None:
        """Return why the model of *profile* cannot be used, or None; see :meth:`base`."""
        if profile.provider not in DEFAULTS:
            return None
        try:
            self.key(self.base(profile, trusted=trusted))
        except McpdError as fault:
            return fault.message
        return None

    def base(self, profile: Profile, *, trusted: bool) -> Base:
        """Return the base URL of *profile*; with *trusted*, its ``base_url`` was configured by the user.

        Raises :class:`~mcpd.errors.NotAuthorized` if requests to it are not permitted.
        """
        if profile.base_url is None:
            return self._keys.base(DEFAULTS[profile.provider])
        base = Base.parse(profile.base_url, "base_url of the profile")
        if trusted or self._keys.key(base) is not None or any(known.covers(base) for known in self._known()):
            return base
        raise NotAuthorized(
            f"the project's profile names the base_url {base}, which you have not allowed; if you trust it, add a"
            " profile with this base_url to ~/.config/llm-orc/config.yaml"
        )

    def _known(self) -> list[Base]:
        known = [self._keys.base(default) for default in DEFAULTS.values()]
        for url in self._allowed():
            try:
                known.append(Base.parse(url, "base_url"))
            except InvalidConfig:
                # It permits nothing; the fault is reported where its profile is used.
                continue
        return known

    def key(self, base: Base) -> str | None:
        """Return the key that is sent to *base*. Raises :class:`~mcpd.errors.McpdError` if it is missing or invalid."""
        if (fault := self._keys.fault(base)) is not None:
            raise InvalidConfig(fault)
        key = self._keys.key(base)
        variable = next((name for url, name in VARIABLES.items() if Base.parse(url, url).covers(base)), None)
        if key is None and variable is not None:
            # A key whose base URL is unknown may be the missing one.
            unclear = "".join(f"; {each.message}" for each in self._keys.faults if each.base is None)
            raise ConfigMissing(
                f"there is no key for {base}: set one with 'mcpctl secret set llm-orc {variable}', or {variable} in"
                f" the environment where llm-orc runs on its own{unclear}"
            )
        return key
