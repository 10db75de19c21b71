# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detection of literal secrets in the entries of a configuration.

A string counts as a secret if it looks like a known kind of token, or if its name suggests a secret and it is not a
placeholder. Other secrets are not found. Messages never contain a value.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcpd.clients.families import Family
    from mcpd.model import JsonValue

PLACEHOLDER: Final = re.compile(
    r"\$\{\{\s{0,9}(?:secrets|inputs|env)\.[A-Za-z0-9_.-]{1,128}\s{0,9}\}\}"
    r"|\$\{(?:(?:env|input|secret|secrets):)?[A-Za-z_][A-Za-z0-9_.-]{0,127}(?::-)?\}"
    r"|\{(?:env|file):[^{}\s]{1,256}\}"
    r"|(?<![A-Za-z0-9_$])\$[A-Z_][A-Z0-9_]{0,127}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9_%])%[A-Z_][A-Z0-9_]{0,127}%",
    re.ASCII,
)
"""Placeholders of all clients, each in its own syntax."""

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
_TOKEN_IN_URL: Final = re.compile(r"://([^\s/?#@:]{16,1024})(?::[^\s/?#@]{0,256})?@")
_IN_URL: Final = re.compile(r"://[^\s/?#@:]{0,256}:([^\s/?#@]{1,1024})@")
_PARAMETER: Final = re.compile(r"[?&;#]([^=&;#?\s]{1,128})=([^&;#\s]+)")
_HEADER: Final = re.compile(r"-{0,2}([A-Za-z][A-Za-z0-9_-]{0,127}):\s*(\S.*)", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"-{0,2}([A-Za-z][A-Za-z0-9_.-]{0,127})=(.+)", re.DOTALL)
_OPTION: Final = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]{0,127}")
_FILE: Final = re.compile(r"(?:~|\.{1,2})?/")
_MEMBER: Final = re.compile(r'"([^"\\]{1,128})"\s{0,9}:\s{0,9}"([^"]+)"')
_BEARER: Final = re.compile(
    r"\s*bearer\s+(\S+)\s*|\s*(?:basic|token)\s+(?=\S*(?:[0-9=]|(?-i:[a-z][A-Z])))(\S{8,})\s*", re.IGNORECASE
)
"""Header values that are secrets, regardless of the header's name."""
_TURN: Final = re.compile(r"[0-9](?=[A-Za-z])|[A-Za-z](?=[0-9])")
_TURNS: Final = 3
_RUN: Final = re.compile(r"[A-Za-z0-9]{16,}")
_LINE: Final = re.compile(r"-[a-z]{0,3}c|/[ck]|-command", re.IGNORECASE)
"""Option of a shell that is followed by a command line."""
_BETWEEN: Final = re.compile(r"[\s;&|]+")
_LONGEST_ARGUMENT: Final = 128 * 1024
"""Maximum size of one program argument in Linux, in bytes."""
_LONGEST_LINE: Final = 10_000
"""Length of the longest command line whose quotes are parsed, in characters."""
_EXPANDED: Final = re.compile(r"\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\}|\$\(.*|`.*", re.ASCII | re.DOTALL)
"""Expansions of a shell."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAMES: Final = re.compile(
    r"keys?|secrets?|pass|passphrase|passcode|pwd|pw|pat|jwt|otp|auth|authorization|authentication|bearer|cookie|creds"
    r"|credentials?|.*(?:apikey|accesskey|secretkey|privatekey|authkey|token|secret|password|passwd)"
    r"|(?!(?:band|by|com|en|encom|first|high|last|low|max|min|multi|num|one|over|single|sur|tres|two|under)pass).+pass"
    r"|(?!old).+pwd"
)
_ABOUT: Final = re.compile(
    r"file|path|dir|directory|folder|ur[il]|host|port|domain|endpoint|region|names?|user|username|email|type|mode|method"
    r"|scheme|format|version|algorithm|provider|audience|realm|issuer|tenant|scopes?|env|header|prefix|store|command"
    r"|helper|timeout|ttl|expiry|expires|limit|count|length|size|max|min|enabled|disabled|required"
)
"""Last word of names that describe a secret, such as ``TOKEN_FILE``."""
_HARMLESS: Final = re.compile(
    r"|true|false|yes|no|on|off|none|null|auto|default|[01]|basic|bearer|digest|negotiate|oauth2?"
)
_LONGEST_SCHEME: Final = 12
"""Characters of a literal piece that may stand beside a placeholder: ``Bearer``, ``token=``."""


def literal_secrets(
    entry: Mapping[str, JsonValue], placeholder: re.Pattern[str] = PLACEHOLDER
) -> Iterator[tuple[str, str]]:
    """Yield the fields of the canonical *entry* that contain a secret, each once, and the reason.

    *placeholder* matches text that is only substituted where the entry is used.
    """
    for field, name, text in _texts(entry):
        why = secret_in(text, name, placeholder)
        if not why and name:
            why = _bearer(text, placeholder)
        if not why and field == "command":
            why = _secret_in_line(text, placeholder)
        if why:
            yield field, why
    args = entry.get("args")
    if isinstance(args, list):
        for index, why in _arguments([arg if isinstance(arg, str) else "" for arg in args], placeholder):
            yield f"args[{index}]", why


def placeholders_of(family: Family | None) -> re.Pattern[str]:
    """Return :data:`PLACEHOLDER`, extended by the syntax of *family*."""
    if family is None or family.expansion is None:
        return PLACEHOLDER
    prefix, suffix = re.escape(family.expansion.prefix), re.escape(family.expansion.suffix)
    return re.compile(f"{prefix}[A-Za-z_][A-Za-z0-9_]{{0,127}}{suffix}|{PLACEHOLDER.pattern}", re.ASCII)


def secret_in(text: str, name: str = "", placeholder: re.Pattern[str] = PLACEHOLDER) -> str:
    """Return the reason why *text*, the value of the variable or option *name*, is a secret; else empty."""
    if _SHAPES.search(text):
        return "it has the form of an access token or a private key"
    if name and is_secret_name(name) and _is_literal(text, placeholder):
        return "its name is that of a secret, and it is not a placeholder"
    return _secret_in_url(text, placeholder) or _secret_in_json(text, placeholder)


def is_secret_name(name: str) -> bool:
    """Return True if a variable, header, option or parameter called *name* contains a secret."""
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
    """Yield the texts of *entry* except arguments, with their fields and names."""
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


def _arguments(args: list[str], placeholder: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield the positions of those of *args* that contain a secret, and the reasons."""
    option = ""
    for index, arg in enumerate(args):
        name, text, bearer = option, arg, ""
        is_line = index > 0 and bool(_LINE.fullmatch(args[index - 1]))
        option = ""
        if found := _ASSIGNMENT.fullmatch(arg) or _HEADER.fullmatch(arg):
            name, text = found[1], found[2]
            bearer = _bearer(text, placeholder)
        elif _OPTION.fullmatch(arg) and not (name and is_secret_name(name) and _is_random(arg)):
            name, option = "", arg
        # Programs also take keys as files.
        name = "" if _is_file(text) else name
        why = secret_in(text, name, placeholder) or bearer or secret_in(arg, "", placeholder)
        if why := why or (_secret_in_line(arg, placeholder) if is_line else ""):
            yield index, why


def _secret_in_url(text: str, placeholder: re.Pattern[str]) -> str:
    if any(_is_literal(found[1], placeholder) for found in _IN_URL.finditer(text)):
        return "it is a URL with a password"
    if any(_is_random(placeholder.sub(" ", found[1])) for found in _TOKEN_IN_URL.finditer(text)):
        return "it is a URL with a token for a user"
    for found in _PARAMETER.finditer(text):
        if is_secret_name(unquote(found[1])) and _is_literal(found[2], placeholder):
            return "it is a URL with a secret among its parameters"
    return ""


def _secret_in_json(text: str, placeholder: re.Pattern[str]) -> str:
    for found in _MEMBER.finditer(text):
        # Many members of JSON are called "key".
        is_named = is_secret_name(found[1]) and (found[1].lower() not in ("key", "keys") or _is_random(found[2]))
        if is_named and _is_literal(found[2], placeholder):
            return "it is JSON with a secret"
    return ""


def _secret_in_line(text: str, placeholder: re.Pattern[str]) -> str:
    """Return why *text*, a command line, contains a secret; empty if it does not."""
    if len(text) > _LONGEST_ARGUMENT or not _BETWEEN.search(text):
        return ""
    words: list[str] = []
    for word in _line_words(placeholder.sub("${X}", text)):
        name, equals, value = word.partition("=")
        filled_in = _EXPANDED.fullmatch((value if equals else name).strip("'\""))
        words.append("${X}" if filled_in else word)
    return next((why for _, why in _arguments(words, placeholder)), "")


def _line_words(text: str) -> list[str]:
    if len(text) <= _LONGEST_LINE:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            return list(lexer)
        except ValueError:
            pass  # an unmatched quote has no meaning
    return [word.strip("'\"") for word in _BETWEEN.split(text)]


def _bearer(text: str, placeholder: re.Pattern[str]) -> str:
    found = _BEARER.fullmatch(text)
    if found and _is_literal(found[1] or found[2], placeholder):
        return "it is a literal credential"
    return ""


def _is_file(text: str) -> bool:
    """Return True if *text* is the path of a file, and not a secret that begins with a slash."""
    last = text.rpartition("/")[2]
    return bool(_FILE.match(text)) and ("." in last or not _is_random(last))


def _is_random(text: str) -> bool:
    """Return True if *text* looks random, not like a name: it often alternates between letters and digits."""
    return any(len(_TURN.findall(run)) >= _TURNS for run in _RUN.findall(text))
