# SPDX-License-Identifier: LGPL-2.1-or-later
"""Errors of signed configurations, each with its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.errors import IntegrityMismatch, InvalidArgument, InvalidConfig, McpdError, NotAuthorized, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.model import JsonValue

INTERNAL: Final = "internal_error"


class ClientNotFound(NotFound):
    """There is no client family with that id."""

    code = "client_not_found"

    def __init__(self, client_id: str, available: Iterable[str]) -> None:
        super().__init__(f"Client '{client_id}' not found")
        self.client_id = client_id
        self.members: dict[str, JsonValue] = {"available_clients": list(available)}


class ProfileNotFound(NotFound):
    """The client has no profile with that id."""

    code = "profile_not_found"

    def __init__(self, profile_id: str, client_id: str, available: Iterable[str]) -> None:
        super().__init__(f"Profile '{profile_id}' not found for client '{client_id}'")
        self.members: dict[str, JsonValue] = {"available_profiles": list(available)}


class ArtifactNotFound(NotFound):
    """No configuration with that id was published for the client and profile."""

    code = "artifact_not_found"

    def __init__(self, artifact_id: str, why: str) -> None:
        super().__init__(f"Artifact '{artifact_id}' not found")
        self.members: dict[str, JsonValue] = {"details": {"artifact_id": why}}


class NothingPublished(NotFound):
    """No configuration was published for the client and profile, and the caller may not publish one."""

    code = "artifact_not_found"


class ServerNotFound(NotFound):
    """No server with that id is installed, or in the draft."""

    code = "server_not_found"


class ResourceNotFound(NotFound):
    """There is no resource with that URI."""

    code = "invalid_input"


class InvalidInput(InvalidArgument):
    """The arguments are invalid."""

    code = "invalid_input"

    def __init__(self, message: str, details: dict[str, JsonValue] | None = None) -> None:
        super().__init__(message)
        self.members: dict[str, JsonValue] = {"details": details} if details else {}


class SignatureError(IntegrityMismatch):
    """A key cannot be used, a signature is invalid, or content was changed after it was signed."""

    code = "signature_error"


class ValidationFailed(InvalidConfig):
    """A configuration contains errors, so it cannot be published."""

    code = "validation_failed"

    def __init__(self, message: str, details: dict[str, JsonValue]) -> None:
        super().__init__(message)
        self.members: dict[str, JsonValue] = {"details": details}


class PolicyViolation(NotAuthorized):
    """The policy forbids part of a configuration."""

    code = "policy_violation"

    def __init__(self, message: str, details: dict[str, JsonValue]) -> None:
        super().__init__(message)
        self.members: dict[str, JsonValue] = {"details": details}


def error_object(fault: McpdError) -> dict[str, JsonValue]:
    """Return *fault* as the error object of a tool result: ``error``, ``message`` and further members."""
    members: dict[str, JsonValue] = getattr(fault, "members", {})
    usual = InvalidInput.code if isinstance(fault, InvalidArgument | InvalidConfig) else INTERNAL
    return {"error": str(getattr(fault, "code", usual)), "message": fault.message, **members}
