# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file that lists what was published for one client and profile, the newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.clients.faults import SignatureFault
from mcpd.errors import InvalidManifest
from mcpd.files import MAX_FILE
from mcpd.model import check_json, dump_json, load_json
from mcpd.model.base import first_fault

if TYPE_CHECKING:
    from pathlib import Path

KEPT: Final = 1000
"""Releases that are listed for one client and profile."""
MAX_INDEX: Final = 2 * MAX_FILE
"""Bytes of a list of releases; of one that grows beyond, the oldest are dropped."""


class Entry(BaseModel):
    """One release in a list; fields of later versions survive."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    artifact_id: Annotated[str, Field(pattern=r"^[a-f0-9]{64}$")]
    created_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")]
    signature: str
    signing_key_id: str
    release_signature: str
    generator: str = ""
    generator_version: str = ""
    source: str = ""
    changelog: str = ""


class _Index(BaseModel):
    """The list for one client and profile, the newest first."""

    model_config = ConfigDict(frozen=True, strict=True)

    releases: list[Entry]


def parse_index(data: bytes, path: Path, client_id: str, profile_id: str) -> list[Entry]:
    """The releases in *data*, read from *path*; more than :data:`KEPT` were never written.

    Raises :class:`~mcpd.clients.faults.SignatureFault` for what is no such list.
    """
    try:
        value = load_json(data, str(path))
        check_json(value)
        return _Index.model_validate(value).releases[:KEPT]
    except InvalidManifest as error:
        raise unusable(error.message, client_id, profile_id) from error
    except ValidationError as error:
        raise unusable(f"{path}: {first_fault(error)}", client_id, profile_id) from error
    except ValueError as error:
        raise unusable(f"{path}: {error}", client_id, profile_id) from error


def dump_index(entries: list[Entry]) -> bytes:
    """What :func:`parse_index` reads, of as many *entries* as there is room for."""
    kept = KEPT
    while True:
        data = dump_json(_Index(releases=entries[:kept]).model_dump(mode="json"))
        if len(data) <= MAX_INDEX:
            return data
        kept = min(kept, len(entries)) // 2


def unusable(fault: str, client_id: str, profile_id: str) -> SignatureFault:
    """What to raise for a list with a *fault*, which is never overwritten."""
    again = publish_again(client_id, profile_id)
    return SignatureFault(f"{fault}. Put the right list of releases back; or move it away, then {again}")


def publish_again(client_id: str, profile_id: str) -> str:
    """The way out of a release that cannot be trusted."""
    return f"'mcpctl client publish {client_id} --profile {profile_id}' signs it anew"
