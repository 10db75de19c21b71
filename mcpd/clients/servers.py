# SPDX-License-Identifier: LGPL-2.1-or-later
"""The installed servers, for client configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.clients.errors import ServerNotFound
from mcpd.model import printable
from mcpd.store import Store

if TYPE_CHECKING:
    from mcpd.model import ConfigProperty, JsonValue
    from mcpd.paths import Paths, Scope
    from mcpd.store import InstalledServer

_SHOWN: Final = {"streamable-http": "http"}


class Servers:
    """The servers in the store of one scope."""

    def __init__(self, paths: Paths, scope: Scope) -> None:
        self._store = Store(paths, scope)

    def all(self) -> dict[str, InstalledServer]:
        """Return every server by id, including broken and disabled ones."""
        return {server.id: server for server in self._store.list()}

    def get(self, server_id: str) -> InstalledServer:
        """Return the server *server_id*. Raises :class:`~mcpd.clients.errors.ServerNotFound`."""
        found = self.all().get(server_id)
        if found is None:
            raise ServerNotFound(f"no server {printable(server_id)!r} is installed; list_available_servers shows all")
        return found

    def tools(self, server_id: str) -> list[str] | None:
        """Return the names of tools in the tool catalog of *server_id*; None if it has no tool catalog.

        Raises :class:`~mcpd.errors.NotFound`.
        """
        tools = self._store.tools(server_id)
        return None if tools is None else [str(tool.get("name", "")) for tool in tools]

    def listing(self, search: str = "", transport: str = "") -> dict[str, JsonValue]:
        """Return the servers that use *transport*, and have all words of *search* in id, name or summary."""
        words = search.casefold().split()
        found = [
            item
            for server in self.all().values()
            if (item := _item(server))["transport"] == (transport or item["transport"])
            and all(
                word in f"{item['server_id']} {item['display_name']} {item['description']}".casefold() for word in words
            )
        ]
        return {"servers": [*found], "count": len(found)}

    def describe(self, server_id: str) -> dict[str, JsonValue]:
        """Return the description of *server_id*. Raises :class:`~mcpd.clients.errors.ServerNotFound`."""
        server = self.get(server_id)
        manifest = server.manifest
        properties = manifest.configurable_properties if manifest is not None else []
        return {
            **_item(server),
            "version": manifest.version if manifest is not None else "",
            "documentation_url": manifest.homepage if manifest is not None else "",
            "permissions": [*(manifest.all_permissions if manifest is not None else ())],
            "parameters": [_parameter(each) for each in properties],
            "command": ["mcpctl", "run", server.id],
        }


def _item(server: InstalledServer) -> dict[str, JsonValue]:
    manifest = server.manifest
    transport = ""
    if manifest is not None:
        way = manifest.remote
        transport = "stdio" if way is None else _SHOWN.get(str(way.type), str(way.type))
    state = "broken" if server.problem or manifest is None else "disabled" if server.entry.disabled else "installed"
    return {
        "server_id": server.id,
        "display_name": (manifest.name if manifest is not None else "") or server.id,
        "description": (manifest.summary or manifest.description) if manifest is not None else "",
        "transport": transport,
        "layer": server.layer,
        "script": server.script is not None,
        "state": state,
        "problem": server.problem,
    }


def _parameter(found: ConfigProperty) -> dict[str, JsonValue]:
    """Return the description of the property *found*, without its value, which never goes into a client's file."""
    return {
        "name": found.key,
        "type": str(found.type),
        "description": found.description or found.label,
        "required": found.required,
        "sensitive": found.sensitive,
    }
