# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes tools of jq filters that are often wanted, so that nobody has to write them.

More come from the variable ``filters`` of the server's entry in the mcps map: from names of tools to jq filters.
"""

from __future__ import annotations

from typing import Any

READY = {
    "keys": ("keys_unsorted", "List the keys of an object, or the indices of an array."),
    "length": ("length", "Count the members of an object, the items of an array, or the characters of a string."),
    "flatten": ("flatten", "Make one array of an array of arrays, however deep they are nested."),
    "paths": (
        '[paths(type != "object" and type != "array") | map(tostring) | join(".")] | unique',
        "List the paths of all values in a document, such as items.0.name.",
    ),
    "types": ("map_values(type)", "Tell the type of each member of an object, or of each item of an array."),
}


def generate_tools(server_name: str, context: dict[str, Any]) -> list[dict[str, Any]]:
    """A tool for each filter, which calls ``query`` with it."""
    filters = dict(READY)
    for name, program in (context["variables"].get("filters") or {}).items():
        filters[name] = (program, f"Run the {server_name} filter {program}")
    return [_tool(name, program, description) for name, (program, description) in filters.items()]


def _tool(name: str, program: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "function": "query",
        "inputSchema": {
            "type": "object",
            "properties": {
                "json": {"description": "The value to work on."},
                # Whoever calls the tool leaves it out, and cannot give another one.
                "filter": {"const": program, "default": program, "description": "What is run."},
            },
            "required": ["json"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }
