# SPDX-License-Identifier: LGPL-2.1-or-later
"""The resources: capabilities of the server and of clients, servers, drafts and releases."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from mcpd import __version__
from mcpd.clients.errors import ResourceNotFound, SignatureError
from mcpd.clients.service import DEFAULT_CLIENT
from mcpd.errors import InvalidArgument
from mcpd.model import dump_json, printable
from mcpd.servers.orchestration import commands

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mcpd.clients.service import Orchestration
    from mcpd.servers.orchestration.tools import Tools

VERSION: Final = "0.1.0"
"""Version of the server's interface."""
WAVE: Final = "Wave 1: Foundation"
URL_VARIABLE: Final = "MCP_ORCHESTRATION_URL"
"""Variable with the base URL of the verification key, which mcpd sets if the user's bridge runs.

Without it clients are given the path of the file.
"""
JSON: Final = "application/json"
PEM: Final = "application/x-pem-file"
RAW: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class _Resource:
    uri: str
    title: str
    mime: str
    read: Callable[[Resources], str | bytes]


class Resources:
    """The resources of one service."""

    def __init__(self, service: Orchestration, tools: Tools, revisions: Sequence[str]) -> None:
        """Serve *service* and *tools*; *revisions* are the supported revisions of MCP."""
        self._service, self._tools, self._revisions = service, tools, revisions

    def listing(self) -> list[dict[str, Any]]:
        """Return the result of ``resources/list``."""
        return [{"uri": each.uri, "name": each.uri, "title": each.title, "mimeType": each.mime} for each in _RESOURCES]

    @staticmethod
    def templates() -> list[dict[str, Any]]:
        """Return the result of ``resources/templates/list``."""
        return [
            {"uriTemplate": uri, "name": uri, "title": title, "mimeType": JSON} for uri, title in _TEMPLATES.items()
        ]

    def read(self, uri: str) -> dict[str, Any]:
        """Return the result of ``resources/read`` for *uri*.

        Raises :class:`~mcpd.clients.errors.ResourceNotFound`, and the errors of the service.
        """
        for each in _RESOURCES:
            if each.uri == uri:
                content = each.read(self)
                held = {"text": content} if isinstance(content, str) else {"blob": b64encode(content).decode()}
                return {"contents": [{"uri": uri, "mimeType": each.mime, **held}]}
        if found := _SERVER.fullmatch(uri):
            value: object = self._service.describe_server(unquote(found[1]))
        elif found := _CONFIG.fullmatch(uri):
            value = self._config(unquote(found[1]), unquote(found[2]), found[3])
        else:
            raise _missing(uri)
        return {"contents": [{"uri": uri, "mimeType": JSON, "text": _text(value)}]}

    def complete(self, template: str, argument: str, value: str, known: dict[str, str]) -> list[str]:
        """Return values for *argument* of *template* that begin with *value*, given the *known* other arguments."""
        if template not in _TEMPLATES:
            raise InvalidArgument(f"unknown resource template {printable(template)!r}")
        found = self._ids(argument, known)
        return [quote(each) for each in found if each.startswith(unquote(value))]

    def _ids(self, argument: str, known: dict[str, str]) -> list[str]:
        if argument == "server_id":
            return list(self._service.servers.all())
        if argument == "client_id":
            return [family.id for family in self._service.families.all()]
        if argument == "profile_id":
            client_id = known.get("client_id") or DEFAULT_CLIENT
            return self._service.profiles.available(self._service.families.get(client_id))
        return []

    def _config(self, client_id: str, profile_id: str, what: str) -> object:
        if what == "draft":
            return self._service.view_draft(client_id, profile_id)
        if what == "latest":
            return self._service.get_config(client_id, profile_id)
        return commands.drift(self._service, client_id, profile_id)

    def _server(self) -> str:
        key, raw = self._service.tree.verification_key, self._service.tree.verification_key_raw
        base = os.environ.get(URL_VARIABLE, "").rstrip("/")
        return _text(
            {
                "name": "mcp-orchestration",
                "version": VERSION,
                "wave": WAVE,
                "capabilities": {
                    "tools": [tool["name"] for tool in self._tools.offered],
                    "resources": [*(each.uri for each in _RESOURCES), *_TEMPLATES],
                    "prompts": [],
                },
                "features": {
                    "content_addressing": True,
                    "cryptographic_signing": True,
                    "signature_algorithm": "Ed25519",
                    "diff_reports": True,
                    "profile_support": True,
                },
                "endpoints": {
                    "verification_key_url": f"{base}/keys/verification_key.pem" if base else key.as_uri(),
                    "verification_key_raw_url": f"{base}/keys/verification_key.raw" if base else raw.as_uri(),
                },
                "description": "MCP client configuration orchestration and distribution",
                "mcpd_version": __version__,
                "protocol_versions": list(self._revisions),
                "verification_key": {"resource": _KEY, "file": str(key), "key_id": self._service.keys.current()},
            }
        )

    def _clients(self) -> str:
        return _text({"clients": [family.capabilities() for family in self._service.families.all()]})

    def _registry(self) -> str:
        return _text(self._service.available_servers())

    def _key(self) -> str:
        return self._public(self._service.tree.verification_key).decode("ascii", errors="replace")

    def _raw_key(self) -> bytes:
        return self._public(self._service.tree.verification_key_raw)

    def _public(self, path: Path) -> bytes:
        data = self._service.tree.read(path)
        if data is None:
            raise SignatureError(
                f"{path}: there is no key yet; initialize_keys creates one, as does the first configuration that is"
                " signed"
            )
        return data


_KEY: Final = "keys://verification_key.pem"
_RESOURCES: Final = (
    _Resource("capabilities://server", "What this server can do", JSON, Resources._server),  # noqa: SLF001
    _Resource("capabilities://clients", "What clients can do", JSON, Resources._clients),  # noqa: SLF001
    _Resource("server://registry", "The installed servers", JSON, Resources._registry),  # noqa: SLF001
    _Resource(_KEY, "The key that signatures are verified with", PEM, Resources._key),  # noqa: SLF001
    _Resource("keys://verification_key.raw", "The same as its 32 bytes", RAW, Resources._raw_key),  # noqa: SLF001
)
_TEMPLATES: Final = {
    "server://{server_id}": "An installed server",
    "config://{client_id}/{profile_id}/draft": "The draft of a configuration",
    "config://{client_id}/{profile_id}/latest": "The newest release of a configuration",
    "config://{client_id}/{profile_id}/deployed": "What was deployed last, and whether there is something newer",
}
_SERVER: Final = re.compile(r"server://([^/]+)")
_CONFIG: Final = re.compile(r"config://([^/]+)/([^/]+)/(draft|latest|deployed)")


def _text(value: object) -> str:
    return dump_json(value).decode()


def _missing(uri: str) -> ResourceNotFound:
    return ResourceNotFound(f"unknown resource {printable(uri)!r}; see resources/list and resources/templates/list")
