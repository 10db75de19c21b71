# SPDX-License-Identifier: LGPL-2.1-or-later
"""server.json documents of every published schema, after the examples of its specification."""

from __future__ import annotations

from typing import Any, Final

SCHEMAS: Final = "https://static.modelcontextprotocol.io/schemas/"
HASH: Final = "fe333e598595000ae021bd27117db32ec69af6987f507ba7a63c90638ff633ce"


def of(schema: str, **more: Any) -> dict[str, Any]:
    """A document of *schema* (a date) with the fields that all have."""
    return {
        "$schema": f"{SCHEMAS}{schema}/server.schema.json",
        "name": "io.github.example/weather",
        "description": "Weather of any place",
        "version": "1.0.2",
        **more,
    }


def package(kind: str = "npm", identifier: str = "@example/weather", **more: Any) -> dict[str, Any]:
    """A package as the newest schema has it."""
    return {
        "registryType": kind,
        "identifier": identifier,
        "version": "1.0.2",
        "transport": {"type": "stdio"},
        **more,
    }


def old(**more: Any) -> dict[str, Any]:
    """A document of the first schema."""
    document = of("2025-07-09", **more)
    del document["version"]
    return document | {"status": "active", "version_detail": {"version": "1.0.2"}}


EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "minimal": of("2025-12-11"),
    "npm": of(
        "2025-12-11",
        title="Weather",
        websiteUrl="https://example.com/weather",
        repository={"url": "https://github.com/example/weather", "source": "github", "id": "b9", "subfolder": "x"},
        icons=[{"src": "https://example.com/w.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}],
        packages=[
            package(
                registryBaseUrl="https://registry.npmjs.org",
                runtimeHint="npx",
                runtimeArguments=[{"type": "named", "name": "-y"}],
                environmentVariables=[
                    {"name": "API_KEY", "description": "The key", "isRequired": True, "isSecret": True},
                    {"name": "UNITS", "default": "celsius", "choices": ["celsius", "fahrenheit"]},
                    {"name": "MODE", "value": "stdio"},
                ],
            )
        ],
        _meta={"io.modelcontextprotocol.registry/publisher-provided": {"tool": "ci", "buildInfo": {"commit": "a1"}}},
    ),
    "arguments": of(
        "2025-10-17",
        packages=[
            package(
                packageArguments=[
                    {"type": "positional", "value": "serve"},
                    {"type": "positional", "valueHint": "target_dir", "format": "filepath", "isRepeated": True},
                    {"type": "named", "name": "--port", "description": "Port", "format": "number", "default": "8080"},
                    {"type": "named", "name": "--at", "value": "{host}:{port}", "variables": {"host": {}, "port": {}}},
                    {"type": "named", "name": "--tag", "valueHint": "tag", "isRepeated": True},
                    {"type": "named", "name": "--quiet"},
                ]
            )
        ],
    ),
    "pypi": of("2025-09-29", packages=[package("pypi", "weather-server", runtimeHint="uvx")]),
    "several": of(
        "2025-09-16",
        status="active",
        packages=[
            package("oci", "docker.io/example/weather:1.0.2"),
            package("pypi", "weather-server", registryBaseUrl="https://pypi.org"),
        ],
    ),
    "oci": of("2025-12-11", packages=[package("oci", "ghcr.io/example/weather:1.0.2", runtimeHint="docker")]),
    "nuget": of("2025-10-11", packages=[package("nuget", "Example.Weather", runtimeHint="dnx")]),
    "mcpb": of(
        "2025-12-11",
        packages=[
            {
                "registryType": "mcpb",
                "identifier": "https://example.com/releases/weather.mcpb",
                "fileSha256": HASH,
                "transport": {"type": "stdio"},
            }
        ],
    ),
    "remote": of(
        "2025-12-11",
        remotes=[
            {
                "type": "streamable-http",
                "url": "https://{tenant}.example.com/mcp",
                "variables": {"tenant": {"description": "Who you are", "isRequired": True}},
                "headers": [
                    {"name": "X-API-Key", "isRequired": True, "isSecret": True},
                    {"name": "X-Region", "default": "eu", "choices": ["eu", "us"]},
                    {"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isSecret": True}}},
                ],
            },
            {"type": "sse", "url": "https://example.com/sse"},
        ],
    ),
    "both": of(
        "2025-12-11",
        packages=[package()],
        remotes=[{"type": "sse", "url": "https://example.com/sse", "headers": [{"name": "X-Key", "isRequired": True}]}],
    ),
    "first schema": old(
        packages=[
            {
                "registry_type": "npm",
                "registry_base_url": "https://registry.npmjs.org",
                "identifier": "@example/weather",
                "version": "1.0.2",
                "package_arguments": [
                    {"type": "positional", "value_hint": "place", "is_required": True, "default": "Berlin"}
                ],
                "environment_variables": [{"name": "API_KEY", "is_required": True, "is_secret": True}],
            }
        ],
        remotes=[{"transport_type": "sse", "url": "https://example.com/sse"}],
        _meta={"publisher": {"tool": "npm-publisher", "build_info": {"is_secret": "kept"}}},
    ),
}

_TEXT: Final = {"type": "string"}
_INPUT: Final = {
    "description": _TEXT,
    "default": _TEXT,
    "placeholder": _TEXT,
    "value": _TEXT,
    "isRequired": {"type": "boolean"},
    "isSecret": {"type": "boolean"},
    "choices": {"type": "array", "items": _TEXT},
    "format": {"enum": ["string", "number", "boolean", "filepath"]},
    "variables": {"type": "object", "additionalProperties": {"type": "object"}},
}
_NAMED: Final = {"type": "array", "items": {"required": ["name"], "properties": _INPUT | {"name": _TEXT}}}
_ARGUMENT: Final = {
    "properties": _INPUT | {"isRepeated": {"type": "boolean"}, "name": _TEXT, "valueHint": _TEXT},
    "oneOf": [
        {"properties": {"type": {"const": "named"}}, "required": ["type", "name"]},
        {
            "properties": {"type": {"const": "positional"}},
            "required": ["type"],
            "anyOf": [{"required": ["valueHint"]}, {"required": ["value"]}],
        },
    ],
}
_PACKAGE: Final = {
    "required": ["registryType", "identifier", "transport"],
    "properties": {
        "version": {"type": "string", "minLength": 1, "maxLength": 255, "not": {"const": "latest"}},
        "fileSha256": {"pattern": "^[a-f0-9]{64}$"},
        "transport": {"const": {"type": "stdio"}},
        "packageArguments": {"type": "array", "items": _ARGUMENT},
        "environmentVariables": _NAMED,
    },
}
_REMOTE: Final = {
    "required": ["type", "url"],
    "properties": {
        "type": {"enum": ["streamable-http", "sse"]},
        "url": {"type": "string", "pattern": r"^(https?://[^\s]+|\{[a-zA-Z_][a-zA-Z0-9_]*\}[^\s]*)$"},
        "headers": _NAMED,
    },
}
NEWEST: Final = {
    "type": "object",
    "required": ["$schema", "name", "description", "version"],
    "properties": {
        "name": {"pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "minLength": 3, "maxLength": 200},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": {"type": "string", "minLength": 1, "maxLength": 255},
        "repository": {"required": ["url", "source"]},
        "icons": {"type": "array", "items": {"required": ["src"]}},
        "packages": {"type": "array", "items": _PACKAGE},
        "remotes": {"type": "array", "items": _REMOTE},
    },
}
"""What 2025-12-11 asks of a document."""
