# SPDX-License-Identifier: LGPL-2.1-or-later
"""Drafts of configurations: payloads that are being edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from mcpd.clients.errors import InvalidInput
from mcpd.clients.payload import Moment, parse_payload
from mcpd.errors import InvalidConfig, InvalidManifest
from mcpd.files import MAX_FILE
from mcpd.model import check_json, dump_json, load_json
from mcpd.model.base import first_fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from mcpd.clients.tree import Tree

MAX_PAYLOAD: Final = MAX_FILE // 2
"""Maximum size of a draft's file, in bytes, so that it can always be read again."""


class Draft(BaseModel):
    """A configuration that is being edited, as it is on disk."""

    model_config = ConfigDict(frozen=True)

    client_id: str
    profile_id: str
    base_artifact_id: Annotated[str, Field(pattern=r"^[a-f0-9]{64}$")] | None = None
    """The release that the draft is based on; None if there was none."""
    created_at: Moment
    updated_at: Moment
    payload: dict[str, JsonValue]


class Drafts:
    """The drafts in one tree."""

    def __init__(self, tree: Tree, clock: Callable[[], datetime]) -> None:
        """*clock* returns the time, with its zone."""
        self._tree = tree
        self._clock = clock

    def get(self, client_id: str, profile_id: str) -> Draft | None:
        """Return the draft for the client and profile; None if there is none.

        Raises :class:`~mcpd.errors.InvalidConfig` if its file is not as :meth:`put` wrote it, another
        :class:`~mcpd.errors.McpdError` if it cannot be read.
        """
        path = self._tree.draft(client_id, profile_id)
        data = self._tree.read(path)
        if data is None:
            return None
        way_out = f"'mcpctl client draft clear {client_id} --profile {profile_id}' removes the draft"
        try:
            found = Draft.model_validate(_checked(load_json(data, str(path)), path))
            parse_payload(found.payload, f"{path}: payload")
        except ValidationError as error:
            raise InvalidConfig(f"{path}: {first_fault(error)}; {way_out}") from error
        except (InvalidManifest, InvalidInput) as error:
            raise InvalidConfig(f"{error.message}; {way_out}") from error
        if (found.client_id, found.profile_id) != (client_id, profile_id):
            raise InvalidConfig(f"{path}: contains the draft of another client or profile; {way_out}")
        return found

    def put(self, client_id: str, profile_id: str, payload: JsonValue, base: str | None) -> Draft:
        """Store *payload* as the draft, which is based on the release *base*.

        Raises :class:`~mcpd.clients.errors.InvalidInput` if it is not a payload or too large, and the errors of
        :meth:`get` for the draft that it would replace, and of writing.
        """
        checked = parse_payload(payload, "the draft")
        path = self._tree.draft(client_id, profile_id)
        with self._tree.lock():
            old = self.get(client_id, profile_id)
            now = self._clock()
            draft = Draft(
                client_id=client_id,
                profile_id=profile_id,
                base_artifact_id=base,
                created_at=old.created_at if old is not None else now,
                updated_at=now,
                payload=checked,
            )
            data = dump_json(draft.model_dump(mode="json"))
            if len(data) > MAX_PAYLOAD:
                raise InvalidInput(f"the draft is larger than {MAX_PAYLOAD} bytes; remove servers from it")
            self._tree.write(path, data)
        return draft

    def clear(self, client_id: str, profile_id: str) -> bool:
        """Delete the draft, even an invalid one; return True if there was one.

        Raises :class:`~mcpd.errors.McpdError` if that fails.
        """
        path = self._tree.draft(client_id, profile_id)
        if self._tree.status(path) is None:
            return False
        with self._tree.lock():
            self._tree.prepare(path.parent)
            return self._tree.remove(path)


def _checked(value: JsonValue, path: Path) -> JsonValue:
    try:
        check_json(value)
    except ValueError as error:
        raise InvalidManifest(f"{path}: {error}") from error
    return value
