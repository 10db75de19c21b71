# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands for the user: only ``mcpctl`` reads and writes the clients' files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.clients import diff
from mcpd.clients.errors import ArtifactNotFound, SignatureError
from mcpd.errors import InvalidConfig
from mcpd.model import load_json
from mcpd.paths import Scope

if TYPE_CHECKING:
    from mcpd.clients.service import Orchestration
    from mcpd.model import JsonValue


def deploy(service: Orchestration, client_id: str, profile_id: str, artifact_id: str | None) -> dict[str, JsonValue]:
    """Return how a release differs from the last deployment, and the command that deploys it.

    Raises the errors of getting the release, and of :meth:`~mcpd.clients.service.Orchestration.check_deploy`.
    """
    release = (
        service.current(client_id, profile_id)
        if artifact_id is None
        else service.release(client_id, profile_id, artifact_id)
    )
    service.check_deploy(release)
    last = deployed(service, client_id, profile_id)
    before: dict[str, Any] = {"mcpServers": {}}
    if last is not None:
        try:
            # Expired keys are accepted for a comparison, and a missing release does not prevent a deployment.
            artifact = str(last.get("artifact_id"))
            before = service.releases.get(client_id, profile_id, artifact, expired=True).payload
        except ArtifactNotFound:
            last = {**last, "problem": "the release that was deployed is not there any more"}
        except SignatureError as fault:
            last = {**last, "problem": fault.message}
    words = ["deploy", client_id, "--profile", profile_id]
    if artifact_id is not None:
        words += ["--artifact", artifact_id]
    return {
        "client_id": client_id,
        "profile_id": profile_id,
        "artifact_id": release.artifact_id,
        "deployed": last,
        "diff": diff.compare(before, release.payload),
        "command": _command(service, *words),
        "message": "The files of clients are the user's. The command shows the difference, asks, and keeps a backup.",
    }


def drift(service: Orchestration, client_id: str, profile_id: str) -> dict[str, JsonValue]:
    """Return the last deployment, the latest release, and the command that compares the client's file."""
    newest = service.current(client_id, profile_id)
    last = deployed(service, client_id, profile_id)
    if last is None:
        message = _nothing(service, client_id, profile_id)
    elif last.get("artifact_id") == newest.artifact_id:
        message = "The latest release was deployed. The command tells whether the file was changed since."
    elif newest.is_signed:
        message = "There is a newer release than the deployed one."
    else:
        message = "The installed servers have changed since the deployment."
    return {
        "client_id": client_id,
        "profile_id": profile_id,
        "artifact_id": last.get("artifact_id") if last is not None else None,
        "latest_artifact_id": newest.artifact_id,
        "deployed": last,
        "command": _command(service, "drift", client_id),
        "message": message,
    }


def undo(service: Orchestration, client_id: str, profile_id: str) -> dict[str, JsonValue]:
    """Return the last deployment, and the command that undoes it."""
    # Without a release: undo is also the way out of one that cannot be used.
    service.profiles.get(service.families.get(client_id), profile_id)
    last = deployed(service, client_id, profile_id)
    return {
        "client_id": client_id,
        "profile_id": profile_id,
        "artifact_id": last.get("artifact_id") if last is not None else None,
        "deployed": last,
        "command": _command(service, "undo", client_id),
        "message": "The command restores the client's file byte for byte as it was before the last deployment."
        if last is not None
        else _nothing(service, client_id, profile_id),
    }


def _nothing(service: Orchestration, client_id: str, profile_id: str) -> str:
    """Return the message if nothing of a profile is deployed."""
    profiles = service.profiles.available(service.families.get(client_id))
    others = [each for each in profiles if each != profile_id and deployed(service, client_id, each) is not None]
    if others:
        return f"Nothing of this profile is deployed; deployed are: {', '.join(others)}."
    return "Nothing is deployed."


def deployed(service: Orchestration, client_id: str, profile_id: str) -> dict[str, JsonValue] | None:
    """Return the last deployment, as ``mcpctl`` noted it; None if there was none.

    Raises :class:`~mcpd.errors.InvalidConfig` for an invalid note.
    """
    path = service.tree.deployment(client_id, profile_id)
    data = service.tree.read(path)
    if data is None:
        return None
    found = load_json(data, str(path))
    if not isinstance(found, dict):
        raise InvalidConfig(f"{path}: not an object; remove it, and the next deployment writes a new one")
    return found


def _command(service: Orchestration, *words: str) -> list[JsonValue]:
    return ["mcpctl", *(["--system"] if service.scope is Scope.SYSTEM else []), "client", *words]
