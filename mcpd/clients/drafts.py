# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configurations that are being edited and not published yet, one for each client and profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from mcpd.clients.canonical import timestamp
from mcpd.clients.faults import InvalidInput
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
"""Bytes of a draft's file; what is larger could be written, and not always read again."""


class _Payload(BaseModel):
    """What every configuration is; whether its entries are right is another question (``validation``)."""

    model_config = ConfigDict(extra="allow", strict=True)

    servers: dict[str, dict[str, JsonValue]] = Field(alias="mcpServers")


def _plausible(moment: datetime) -> datetime:
    if not 1970 <= moment.year < 9000:
        raise ValueError("no time of this age")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_plausible)]
"""A time in a file, which can be reckoned with and told in UTC."""


class _File(BaseModel):
    """A draft on disk."""

    model_config = ConfigDict(frozen=True)

    client_id: str
    profile_id: str
    payload: dict[str, JsonValue]
    base_artifact_id: Annotated[str, Field(pattern=r"^[a-f0-9]{64}$")] | None = None
    created_at: Moment
    updated_at: Moment


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration that is being edited."""

    client_id: str
    profile_id: str
    payload: dict[str, JsonValue]
    base_artifact_id: str | None
    """The release that it began with."""
    created_at: str
    """ISO 8601, in UTC."""
    updated_at: str
    """The same."""


class Drafts:
    """The drafts in one tree."""

    def __init__(self, tree: Tree, clock: Callable[[], datetime]) -> None:
        """*clock* gives the time, with its zone."""
        self._tree = tree
        self._clock = clock

    def get(self, client_id: str, profile_id: str) -> Draft | None:
        """The draft, None if there is none.

        Raises :class:`~mcpd.errors.InvalidConfig` if its file is not what :meth:`put` wrote, another
        :class:`~mcpd.errors.McpdError` if it cannot be read.
        """
        path = self._tree.draft(client_id, profile_id)
        data = self._tree.read(path)
        if data is None:
            return None
        way_out = f"'mcpctl client draft clear {client_id} --profile {profile_id}' removes the draft"
        try:
            found = _File.model_validate(_checked(load_json(data, str(path)), path))
            payload = parse_payload(found.payload, f"{path}: payload")
        except ValidationError as error:
            raise InvalidConfig(f"{path}: {first_fault(error)}; {way_out}") from error
        except (InvalidManifest, InvalidInput) as error:
            raise InvalidConfig(f"{error.message}; {way_out}") from error
        if (found.client_id, found.profile_id) != (client_id, profile_id):
            raise InvalidConfig(f"{path}: holds the draft of another client or profile; {way_out}")
        return Draft(
            client_id,
            profile_id,
            payload,
            found.base_artifact_id,
            timestamp(found.created_at),
            timestamp(found.updated_at),
        )

    def put(self, client_id: str, profile_id: str, payload: JsonValue, base: str | None) -> Draft:
        """Keep *payload* as the draft, which began with the release *base*.

        Raises :class:`~mcpd.clients.faults.InvalidInput` if it is no payload or too large, what
        :meth:`get` raises for the draft that it would replace, and what writing raises.
        """
        checked = parse_payload(payload, "the draft")
        path = self._tree.draft(client_id, profile_id)
        with self._tree.lock():
            old = self.get(client_id, profile_id)
            now = timestamp(self._clock())
            draft = Draft(client_id, profile_id, checked, base, old.created_at if old is not None else now, now)
            data = dump_json(
                {
                    "client_id": client_id,
                    "profile_id": profile_id,
                    "base_artifact_id": base,
                    "created_at": draft.created_at,
                    "updated_at": draft.updated_at,
                    "payload": checked,
                }
            )
            if len(data) > MAX_PAYLOAD:
                raise InvalidInput(f"the draft is larger than {MAX_PAYLOAD} bytes; remove servers from it")
            self._tree.write(path, data)
        return draft

    def clear(self, client_id: str, profile_id: str) -> bool:
        """Remove the draft, also one that cannot be read; says whether there was one.

        Raises :class:`~mcpd.errors.McpdError` if that cannot be done.
        """
        path = self._tree.draft(client_id, profile_id)
        if self._tree.status(path) is None:
            return False
        with self._tree.lock():
            self._tree.prepare(path.parent)
            return self._tree.remove(path)


def parse_payload(value: JsonValue, what: str) -> dict[str, JsonValue]:
    """*value* if it is an object whose ``mcpServers`` is an object of objects; further keys stay.

    *what* names it in messages. Raises :class:`~mcpd.clients.faults.InvalidInput` for anything else, and
    for text, numbers and nesting that no artifact can hold.
    """
    if not isinstance(value, dict):
        raise InvalidInput(f"{what}: not an object with 'mcpServers'")
    try:
        check_json(value)
        _Payload.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise InvalidInput(f"{what}: {first_fault(error)}", {"field": place}) from error
    except ValueError as error:
        raise InvalidInput(f"{what}: {error}") from error
    return value


def _checked(value: JsonValue, path: Path) -> JsonValue:
    try:
        check_json(value)
    except ValueError as error:
        raise InvalidManifest(f"{path}: {error}") from error
    return value
