# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a configuration may be published and deployed: its form, what its client takes, and the policy."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcpd.clients.faults import PolicyViolation, ValidationFailed
from mcpd.clients.policy import Policy
from mcpd.clients.tree import mark
from mcpd.clients.validation import validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.clients.family import Family
    from mcpd.clients.policy import Violation
    from mcpd.clients.servers import Servers
    from mcpd.clients.validation import Finding
    from mcpd.model import JsonValue
    from mcpd.paths import Paths, Scope


@dataclass(frozen=True, slots=True)
class Report:
    """What was found."""

    errors: Sequence[Finding]
    warnings: Sequence[Finding]
    violations: Sequence[Violation]

    def to_json(self) -> dict[str, JsonValue]:
        """The answer of ``validate_config``, without whom it is about."""
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
                f"{what} is against the policy: {worst.message}" + (f" (and {more} more)" if more else ""),
                {**details, "violations": [each.to_json() for each in self.violations]},
            )


class Checks:
    """The checks of one scope."""

    def __init__(self, paths: Paths, scope: Scope, servers: Servers) -> None:
        self._paths, self._scope, self._servers = paths, scope, servers

    def state(self) -> object:
        """Return what changes whenever the files of the policy do; one that is too new is never the same."""
        files = self._paths.system.policy, self._paths.user.policy
        return [mark(path) or (object() if os.path.lexists(path) else None) for path in files]

    def report(self, payload: JsonValue, family: Family, *, may_be_empty: bool) -> Report:
        """What is wrong with *payload* for *family*; that it is empty is a warning only if it *may_be_empty*.

        Raises :class:`~mcpd.errors.InvalidConfig` for a policy that cannot be read.
        """
        findings = validate(payload, family)
        if may_be_empty:
            findings = [replace(each, severity="warning") if each.code == "EMPTY_CONFIG" else each for each in findings]
        errors = [each for each in findings if each.severity == "error"]
        policy = Policy.load(self._paths, self._scope)
        violations = policy.check(payload, self._servers.all(), family) if isinstance(payload, dict) else []
        return Report(errors, [each for each in findings if each.severity == "warning"], violations)
