# SPDX-License-Identifier: LGPL-2.1-or-later
"""Telling secrets from placeholders in the entries of a configuration (NFR-5: none is ever signed).

A text is a secret if it has the shape of a known kind of token, or if what holds it is named like a secret and it is
no placeholder. What has neither is not found. No value is ever part of what is said about it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcpd.model import JsonValue
    from mcpd.servers.orchestration.family import Family

PLACEHOLDER: Final = re.compile(
    r"\$\{\{\s{0,9}(?:secrets|inputs|env)\.[A-Za-z0-9_.-]{1,128}\s{0,9}\}\}"
    r"|\$\{(?:(?:env|input|secret|secrets):)?[A-Za-z_][A-Za-z0-9_.-]{0,127}(?::-)?\}"
    r"|\{(?:env|file):[^{}\s]{1,256}\}"
    r"|(?<![A-Za-z0-9_$])\$[A-Z_][A-Z0-9_]{0,127}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9_%])%[A-Z_][A-Z0-9_]{0,127}%",
    re.ASCII,
)
"""What one client or another replaces by a value, in its own syntax."""

_SHAPES: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic, OpenRouter
    r"|gh[opsur]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}|gl(?:pat|dt|rt|soat)-[A-Za-z0-9_-]{20,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"  # Amazon
    r"|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}"  # Google
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9]{20,}"  # Stripe
    r"|npm_[A-Za-z0-9]{36}|pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{30,}|dckr_pat_[A-Za-z0-9_-]{20,}"
    r"|(?:gsk|ntn|r8|sbp|figd|sntrys|sntryu|tvly|pplx|xai|fc|hvs|nvapi|lin_api|dop_v1|doo_v1)[_.-][A-Za-z0-9_-]{24,}"
    r"|BSA[A-Za-z0-9_-]{24,}|ATATT3[A-Za-z0-9_=-]{20,}|dapi[0-9a-f]{32}|PMAK-[A-Za-z0-9-]{40,}"
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{30,}|[0-9]{8,10}:AA[A-Za-z0-9_-]{32,}"  # SendGrid, Telegram
    r"|(?<![_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\."  # JSON Web Token
    r"|AGE-SECRET-KEY-1[A-Z0-9]{40,}"
    r")|-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY",
    re.ASCII,
)
_IN_URL: Final = re.compile(r"://[^\s/?#@:]{0,256}:([^\s/?#@]{1,1024})@")
_PARAMETER: Final = re.compile(r"[?&;#]([^=&;#?\s]{1,128})=([^&;#\s]+)")
_HEADER: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,127}):\s*(\S.*)", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"-{0,2}([A-Za-z][A-Za-z0-9_.-]{0,127})=(.+)", re.DOTALL)
_OPTION: Final = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]{0,127}")
_FILE: Final = re.compile(r"(?:~|\.{1,2})?/")

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAMES: Final = re.compile(
    r"keys?|secrets?|pass|passphrase|passcode|pwd|pw|pat|jwt|otp|auth|authorization|authentication|bearer|cookie|creds"
    r"|credentials?|.*(?:apikey|accesskey|secretkey|privatekey|authkey|token|secret|password|passwd)"
)
_ABOUT: Final = re.compile(
    r"file|path|dir|directory|folder|ur[il]|host|port|domain|endpoint|region|names?|user|username|email|type|mode|method"
    r"|scheme|format|version|algorithm|provider|audience|realm|issuer|tenant|scopes?|env|header|prefix|store|command"
    r"|helper|timeout|ttl|expiry|expires|limit|count|length|size|max|min|enabled|disabled|required"
)
"""The last word of names that say something about a secret, such as ``TOKEN_FILE``."""
_HARMLESS: Final = re.compile(
    r"|true|false|yes|no|on|off|none|null|auto|default|[01]|basic|bearer|digest|negotiate|oauth2?"
)
_LONGEST_SCHEME: Final = 12
"""Characters in one piece that may stand beside a placeholder: ``Bearer``, ``token=``."""


def literal_secrets(
    entry: Mapping[str, JsonValue], placeholder: re.Pattern[str] = PLACEHOLDER
) -> Iterator[tuple[str, str]]:
    """The fields of the canonical *entry* that hold a secret, each once, and why it is taken for one.

    What *placeholder* finds is replaced by a value only where the entry is used.
    """
    for field, name, text in _texts(entry):
        if why := secret_in(text, name, placeholder):
            yield field, why
    args = entry.get("args")
    if isinstance(args, list):
        yield from _arguments([arg if isinstance(arg, str) else "" for arg in args], placeholder)


def placeholders_of(family: Family | None) -> re.Pattern[str]:
    """Finds :data:`PLACEHOLDER`, and what *family* replaces where its description has a syntax of its own."""
    if family is None or family.expansion is None:
        return PLACEHOLDER
    prefix, suffix = re.escape(family.expansion.prefix), re.escape(family.expansion.suffix)
    return re.compile(f"{prefix}[A-Za-z_][A-Za-z0-9_]{{0,127}}{suffix}|{PLACEHOLDER.pattern}", re.ASCII)


def secret_in(text: str, name: str = "", placeholder: re.Pattern[str] = PLACEHOLDER) -> str:
    """Why *text*, the value of something called *name*, is a secret; empty if it is none."""
    if _SHAPES.search(text):
        return "it has the form of an access token or a private key"
    if name and is_secret_name(name) and _is_literal(text, placeholder):
        return "its name is that of a secret, and it is no placeholder"
    if any(_is_literal(found[1], placeholder) for found in _IN_URL.finditer(text)):
        return "it is a URL with a password"
    for found in _PARAMETER.finditer(text):
        if is_secret_name(unquote(found[1])) and _is_literal(found[2], placeholder):
            return "it is a URL with a secret among its parameters"
    return ""


def is_secret_name(name: str) -> bool:
    """Whether a variable, header, option or parameter called *name* holds a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if not words or _ABOUT.fullmatch(words[-1]) or words[-2:] == ["key", "id"] or "public" in words:
        return False
    return any(_NAMES.fullmatch(word) for word in words)


def _is_literal(text: str, placeholder: re.Pattern[str]) -> bool:
    rest, count = placeholder.subn(" ", text)
    if count:
        return any(len(piece) > _LONGEST_SCHEME for piece in rest.split())
    return not _HARMLESS.fullmatch(text.strip().lower())


def _texts(entry: Mapping[str, JsonValue]) -> Iterator[tuple[str, str, str]]:
    """The texts of *entry* but its arguments, with the fields they are in and what these are called."""
    for field in ("command", "cwd", "url"):
        text = entry.get(field)
        if isinstance(text, str):
            yield field, "", text
    for field in ("env", "headers"):
        found = entry.get(field)
        if isinstance(found, dict):
            for name, text in found.items():
                if isinstance(text, str):
                    yield f"{field}.{name}", name, text


def _arguments(args: list[str], placeholder: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    option = ""
    for index, arg in enumerate(args):
        name, text = option, arg
        option = ""
        if found := _ASSIGNMENT.fullmatch(arg) or _HEADER.fullmatch(arg):
            name, text = found[1], found[2]
        elif _OPTION.fullmatch(arg):
            name, option = "", arg
        # Keys are given to programs as files, too.
        if why := secret_in(text, "" if _FILE.match(text) else name, placeholder) or secret_in(arg, "", placeholder):
            yield f"args[{index}]", why
