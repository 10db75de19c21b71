# SPDX-License-Identifier: LGPL-2.1-or-later
"""Validation of a configuration before it is published: its form, the client's limits, secrets and the policy."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from mcpd.clients.dialects import to_client
from mcpd.clients.errors import InvalidInput, PolicyViolation, ValidationFailed
from mcpd.clients.payload import COMMAND
from mcpd.clients.policy import Policy, is_passed_on, runs_mcpctl
from mcpd.clients.secret_values import PLACEHOLDER, literal_secrets, placeholders_of
from mcpd.clients.tree import mark
from mcpd.model import check_json, printable
from mcpd.model.steering import is_steering

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcpd.clients.families import Expandable, Family
    from mcpd.clients.policy import Violation
    from mcpd.clients.servers import Servers
    from mcpd.model import JsonValue
    from mcpd.paths import Paths, Scope

Severity: TypeAlias = Literal["error", "warning"]

MAX_FINDINGS: Final = 100
"""Maximum number of errors, and of warnings, reported for one configuration; a further one says that more exist."""

MAX_NAME: Final = 128
"""Maximum length of a server's name, in characters."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_UPPER: Final = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)
_STDIO: Final = frozenset({"type", "command", "args", "env", "cwd"})
_URL: Final = frozenset({"type", "url", "headers"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One error or warning about a configuration."""

    code: str
    severity: Severity
    """An error prevents publication."""
    message: str
    server_id: str | None = None
    """Name of the server in the configuration; None for the whole configuration."""
    field: str | None = None
    """Path of the field, such as ``args[0]`` or ``env.KEY``."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the fault as tools report it."""
        return asdict(self)


def validate(payload: JsonValue, family: Family | None) -> list[Finding]:
    """Return every fault of *payload* for the clients *family*, by name of server.

    Without a *family*, which is a warning, the client's limits are not checked. Never raises: every fault of *payload*
    is part of the result.
    """
    found = _Findings()
    if family is None:
        found.warning("UNKNOWN_CLIENT", "the client is unknown, so its limits were not checked")
    servers = _servers(payload, found)
    if servers is None:
        return found.all()
    if not servers:
        found.error("EMPTY_CONFIG", "'mcpServers' contains no servers", field="mcpServers")
    if family is not None:
        _check_number(len(servers), family, found)
    for name in sorted(servers):
        if found.is_full:
            break
        _Server(name, family, found).check(servers[name])
    return found.all()


class _Findings:
    """The findings so far; their number is limited, because a hostile configuration may have too many to read."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._count: Counter[Severity] = Counter()

    @property
    def is_full(self) -> bool:
        return self._count["error"] >= MAX_FINDINGS

    def error(self, code: str, message: str, server_id: str | None = None, field: str | None = None) -> None:
        self._add(Finding(code, "error", message, server_id, field))

    def warning(self, code: str, message: str, server_id: str | None = None, field: str | None = None) -> None:
        self._add(Finding(code, "warning", message, server_id, field))

    def _add(self, finding: Finding) -> None:
        self._count[finding.severity] += 1
        if self._count[finding.severity] <= MAX_FINDINGS:
            self._found.append(finding)

    def all(self) -> list[Finding]:
        severities: tuple[Severity, ...] = ("error", "warning")
        for severity in severities:
            if self._count[severity] >= MAX_FINDINGS:
                text = f"there may be more than these {MAX_FINDINGS} {severity}s; fix these first"
                self._found.append(Finding("VALIDATION_ERROR", severity, text))
        return self._found


def _servers(payload: JsonValue, found: _Findings) -> dict[str, JsonValue] | None:
    if not isinstance(payload, dict):
        found.error("VALIDATION_ERROR", "a configuration is an object with 'mcpServers'")
        return None
    try:
        check_json(payload)
    except ValueError as error:
        found.error("VALIDATION_ERROR", f"the configuration cannot be signed: {error}")
        return None
    for key in sorted(payload.keys() - {"mcpServers"}):
        found.error(
            "VALIDATION_ERROR",
            f"{printable(key)!r} is not part of a configuration, which contains only 'mcpServers'; remove it",
        )
    servers = payload.get("mcpServers", {})
    if not isinstance(servers, dict):
        found.error("VALIDATION_ERROR", "'mcpServers' is not an object that maps names to servers", field="mcpServers")
        return None
    return servers


def _check_number(count: int, family: Family, found: _Findings) -> None:
    most = family.limitations.max_servers
    if most is not None and count > most:
        text = f"{family.name} supports at most {most} servers, and there are {count}; remove {count - most}"
        found.error("TOO_MANY_SERVERS", text, field="mcpServers")


class _Server:
    """The checks of one entry."""

    def __init__(self, name: str, family: Family | None, found: _Findings) -> None:
        self.name = name
        self.family = family
        self.found = found
        self.faults = 0

    def check(self, entry: JsonValue) -> None:
        if not (0 < len(self.name) <= MAX_NAME and self.name.isprintable() and self.name == self.name.strip()):
            text = f"its name must be 1 to {MAX_NAME} printable characters, without a space at either end"
            self._error("VALIDATION_ERROR", text, None)
        if not isinstance(entry, dict):
            self._error("VALIDATION_ERROR", "it is not an object", None)
            return
        command, url = entry.get("command"), entry.get("url")
        if command is not None and url is not None:
            self._error("VALIDATION_ERROR", "it has both a command and a url; remove one of them", "url")
        elif url is not None:
            self._check_remote(entry, url)
        elif command in (None, ""):
            self._error("MISSING_COMMAND", "it has neither a command nor a url; give it one", "command")
        else:
            self._check_local(entry, command)
            self._check_steering(entry)
        self._check_secrets(entry)
        if self.family is not None and not self.faults:
            self._check_family(self.family, entry)

    def _check_local(self, entry: Mapping[str, JsonValue], command: JsonValue) -> None:
        self._check_fields(entry, _STDIO)
        if entry.get("type", "stdio") != "stdio":
            self._error("VALIDATION_ERROR", "'type' must be \"stdio\" for a server with a command", "type")
        self._check_line(command, "command")
        if "cwd" in entry:
            self._check_line(entry["cwd"], "cwd")
        if "args" in entry:
            self._check_args(entry["args"])
        else:
            self._warning("MISSING_ARGS", "it has no 'args'; use [] if the command takes none", "args")
        if "env" in entry:
            self._check_env(entry["env"])

    def _check_args(self, args: JsonValue) -> None:
        if not isinstance(args, list):
            self._error("INVALID_ARGS_TYPE", "'args' is not a list of strings", "args")
            return
        for index, arg in enumerate(args):
            if not isinstance(arg, str):
                self._error("INVALID_ARGS_TYPE", "this argument is not a string; put it in quotes", f"args[{index}]")

    def _check_env(self, env: JsonValue) -> None:
        if not isinstance(env, dict):
            self._error("INVALID_ENV_TYPE", "'env' is not an object that maps variables to strings", "env")
            return
        most = self.family.limitations.max_env_vars_per_server if self.family is not None else None
        if self.family is not None and most is not None and len(env) > most:
            text = f"{self.family.name} supports at most {most} variables, and there are {len(env)}"
            self._error("TOO_MANY_ENV_VARS", text, "env")
        for name, value in env.items():
            where = f"env.{printable(name)}"
            if not _VARIABLE.fullmatch(name):
                self._error("VALIDATION_ERROR", "this is not the name of a variable: use A-Z a-z 0-9 _", where)
            if not isinstance(value, str):
                self._error("INVALID_ENV_TYPE", "the value of this variable is not a string; put it in quotes", where)
            elif not value:
                self._warning("EMPTY_ENV_VAR", "this variable is empty; remove it if that is not intended", where)
            else:
                self._check_placeholders(value, "env", where)

    def _check_steering(self, entry: Mapping[str, JsonValue]) -> None:
        """Refuse variables that control ``mcpctl``, which is not confined."""
        env = entry.get("env")
        if not isinstance(env, dict) or not runs_mcpctl(entry):
            return
        for name, value in env.items():
            if is_steering(name) and not is_passed_on(name, value, self.family):
                text = (
                    f"this variable controls {COMMAND} itself, which is not confined; remove it, or install the server"
                    " and configure it there"
                )
                self._error("VALIDATION_ERROR", text, f"env.{printable(name)}")

    def _check_remote(self, entry: Mapping[str, JsonValue], url: JsonValue) -> None:
        self._check_fields(entry, _URL)
        if entry.get("type") not in ("http", "sse"):
            self._error("VALIDATION_ERROR", '\'type\' must be "http" or "sse" for a server with a url', "type")
        if isinstance(url, str):
            self._check_placeholders(url, "url", "url")
        if fault := _url_fault(url, self.family):
            self._error("VALIDATION_ERROR", f"its url {fault}", "url")
        headers = entry.get("headers", {})
        if not isinstance(headers, dict):
            self._error("VALIDATION_ERROR", "'headers' is not an object that maps names to strings", "headers")
            return
        for name, value in headers.items():
            where = f"headers.{printable(name)}"
            if not _HEADER.fullmatch(name):
                self._error("VALIDATION_ERROR", "this is not the name of a header", where)
            if not isinstance(value, str) or _CONTROL.search(value):
                self._error("VALIDATION_ERROR", "the value of this header is not a string of one line", where)
            else:
                self._check_placeholders(value, "headers", where)

    def _check_fields(self, entry: Mapping[str, JsonValue], known: frozenset[str]) -> None:
        for key in sorted(entry.keys() - known):
            text = f"unknown field; such a server has {', '.join(sorted(known))}"
            self._error("VALIDATION_ERROR", text, printable(key))

    def _check_line(self, value: JsonValue, where: str) -> None:
        if not isinstance(value, str) or not value.strip() or _CONTROL.search(value):
            self._error("VALIDATION_ERROR", f"'{where}' is not a string of one line", where)

    def _check_placeholders(self, value: str, kind: Expandable, where: str) -> None:
        """Warn about variables in the syntax of another client, which the server would get literally."""
        if self.family is None:
            return
        own = self.family.variables_in(value, kind)
        for match in PLACEHOLDER.finditer(value):
            text = match[0]
            name = re.sub(r"^\$?\{(?:env:)?|(?::-)?\}$", "", text)
            if text.endswith("}") and _UPPER.fullmatch(name) and name not in own:
                own_way = self.family.placeholder(name, kind)
                instead = f"write {own_way}" if own_way is not None else "it substitutes none there"
                told = f"{self.family.name} does not substitute {text}, and passes it on literally; {instead}"
                self._warning("UNEXPANDED_PLACEHOLDER", told, where)

    def _check_secrets(self, entry: Mapping[str, JsonValue]) -> None:
        for where, why in literal_secrets(entry, placeholders_of(self.family)):
            self._error(
                "SECRET_VALUE",
                f"this looks like a secret ({why}), which a configuration must not contain; write a placeholder"
                " instead, or install the server and set it with 'mcpctl secret set'",
                printable(where),
            )

    def _check_family(self, family: Family, entry: Mapping[str, JsonValue]) -> None:
        """Report an entry that cannot be written in the format of the client."""
        try:
            to_client(family, {self.name: entry})
        except InvalidInput as error:
            self._error("VALIDATION_ERROR", error.message.removeprefix(f"server '{printable(self.name)}': "), None)

    def _error(self, code: str, text: str, where: str | None) -> None:
        self.faults += 1
        self.found.error(code, self._told(text, where), printable(self.name), where)

    def _warning(self, code: str, text: str, where: str | None) -> None:
        self.found.warning(code, self._told(text, where), printable(self.name), where)

    def _told(self, text: str, where: str | None) -> str:
        return f"server '{printable(self.name)}': {f'{where}: ' if where else ''}{text}"


def _url_fault(url: JsonValue, family: Family | None) -> str:
    """Return an error message if *url* is invalid; else empty."""
    if not isinstance(url, str) or not url:
        return "is not a string"
    if not url.isprintable() or " " in url:
        return "contains spaces or control characters"
    if url.startswith(("$", "{", "%")) and family is not None and family.variables_in(url, "url"):
        return ""  # its beginning is known where it is substituted
    try:
        parts = urlsplit(PLACEHOLDER.sub("x", url))
        host = parts.hostname
    except ValueError as error:
        return f"cannot be used: {error}"
    if parts.scheme.lower() not in ("http", "https") or not host:
        return "does not begin with http:// or https:// and a host name"
    return ""


@dataclass(frozen=True, slots=True)
class Report:
    """Findings and policy violations."""

    errors: Sequence[Finding]
    warnings: Sequence[Finding]
    violations: Sequence[Violation]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the result of ``validate_config``, without the client and profile."""
        return {
            "valid": not self.errors and not self.violations,
            "errors": [each.to_json() for each in self.errors],
            "warnings": [each.to_json() for each in self.warnings],
            "violations": [each.to_json() for each in self.violations],
        }

    def require(self, what: str, details: dict[str, JsonValue]) -> None:
        """Raise for *what* if there is an error or a violation; *details* go into the error."""
        if self.errors:
            first, more = self.errors[0], len(self.errors) - 1
            raise ValidationFailed(
                f"{what} cannot be used: {first.message}" + (f" (and {more} more)" if more else ""),
                {**details, "errors": [each.to_json() for each in self.errors]},
            )
        if self.violations:
            worst, more = self.violations[0], len(self.violations) - 1
            raise PolicyViolation(
                f"{what} violates the policy: {worst.message}" + (f" (and {more} more)" if more else ""),
                {**details, "violations": [each.to_json() for each in self.violations]},
            )


class Checks:
    """The checks of one scope."""

    def __init__(self, paths: Paths, scope: Scope, servers: Servers) -> None:
        self._paths, self._scope, self._servers = paths, scope, servers

    def state(self) -> object:
        """Return a value that changes with the policy files; it never repeats if one was changed only just now."""
        files = self._paths.system.policy, self._paths.user.policy
        return [mark(path) or (object() if os.path.lexists(path) else None) for path in files]

    def report(self, payload: JsonValue, family: Family, *, may_be_empty: bool) -> Report:
        """Return the faults of *payload* for *family*; an empty one is only a warning if it *may_be_empty*.

        Raises :class:`~mcpd.errors.InvalidConfig` for an invalid policy.
        """
        findings = validate(payload, family)
        if may_be_empty:
            findings = [replace(each, severity="warning") if each.code == "EMPTY_CONFIG" else each for each in findings]
        errors = [each for each in findings if each.severity == "error"]
        policy = Policy.load(self._paths, self._scope)
        violations = policy.check(payload, self._servers.all(), family) if isinstance(payload, dict) else []
        return Report(errors, [each for each in findings if each.severity == "warning"], violations)
