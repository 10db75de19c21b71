# SPDX-License-Identifier: LGPL-2.1-or-later
"""What applications need to be told of a server, ready to paste. A secret is never in it, only where it goes."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from mcpd.bridge.site import Site

TOKEN: Final = "MCPD_TOKEN"  # noqa: S105 -- the name of a variable
PLACE: Final = "PASTE-THE-TOKEN-HERE"
PORT_PLACE: Final = "http://127.0.0.1:PORT"


class Snippet(NamedTuple):
    """For one application."""

    client: str
    place: str
    """Where it goes."""
    text: str
    note: str = ""


def snippets(site: Site, server: str, base: str = "") -> list[tuple[str, list[Snippet]]]:
    """Those for *server* on the bridge of *site*, the simplest way first, each with its name.

    *base* is the base URL on TCP, if one is known by which the bridge can be reached.
    """
    url = f"{base or PORT_PLACE}/mcp/{quote(server, safe='')}"
    name = server
    found = []
    if site.kind != "alone":
        found.append(("Standard input and output", _by_command(site, name)))
    if site.socket is not None:
        found.append(("Unix socket", _by_socket(str(site.socket), name, f"/mcp/{quote(server, safe='')}")))
    found.append(("HTTP", _by_http(name, url, needs_token=site.needs_token)))
    return found


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _word(text: str) -> str:
    """*text* as a string of TOML or YAML, which JSON's are."""
    return json.dumps(text, ensure_ascii=False)


def _by_command(site: Site, name: str) -> list[Snippet]:
    argv = [*site.mcpctl, "run", name]
    plain = {"command": argv[0], "args": argv[1:]}
    args = ", ".join(map(_word, argv[1:]))
    shell = shlex.join(argv)
    return [
        Snippet("Claude Desktop", "~/.config/Claude/claude_desktop_config.json", _json({"mcpServers": {name: plain}})),
        Snippet("Claude Code", "command line", f"claude mcp add {shlex.quote(name)} -- {shell}"),
        Snippet("Cursor", "~/.cursor/mcp.json", _json({"mcpServers": {name: plain}})),
        Snippet("VS Code", ".vscode/mcp.json", _json({"servers": {name: {"type": "stdio", **plain}}})),
        Snippet("Gemini CLI", "~/.gemini/settings.json", _json({"mcpServers": {name: plain}})),
        Snippet(
            "Codex", "~/.codex/config.toml", f"[mcp_servers.{_word(name)}]\ncommand = {_word(argv[0])}\nargs = [{args}]"
        ),
        Snippet(
            "Goose",
            "~/.config/goose/config.yaml",
            f"extensions:\n  {_word(name)}:\n    type: stdio\n    name: {_word(name)}\n    cmd: {_word(argv[0])}\n"
            f"    args: [{args}]\n    enabled: true\n    timeout: 300",
        ),
        Snippet(
            "Zed", "~/.config/zed/settings.json", _json({"context_servers": {name: {"source": "custom", **plain}}})
        ),
        Snippet(
            "opencode",
            "opencode.json",
            _json({"mcp": {name: {"type": "local", "command": argv, "enabled": True}}}),
        ),
        Snippet("Any other application", "standard input and output", shell),
    ]


def _by_http(name: str, url: str, *, needs_token: bool) -> list[Snippet]:
    def headers(value: str) -> dict[str, dict[str, str]]:
        return {"headers": {"Authorization": f"Bearer {value}"}} if needs_token else {}

    from_env = headers(f"${{{TOKEN}}}")
    codex = f"[mcp_servers.{_word(name)}]\nurl = {_word(url)}"
    goose = (
        f"extensions:\n  {_word(name)}:\n    type: streamable_http\n    name: {_word(name)}\n    uri: {_word(url)}\n"
    )
    curl = f"curl {url} \\\n  -H 'Content-Type: application/json' \\\n"
    if needs_token:
        codex += f"\nbearer_token_env_var = {_word(TOKEN)}"
        goose += f"    headers:\n      Authorization: {_word('Bearer ' + PLACE)}\n"
        curl += f"""  -H "Authorization: Bearer ${TOKEN}" \\\n"""
    asked = {
        "inputs": [{"type": "promptString", "id": "token", "description": "Token of the bridge", "password": True}]
    }
    vscode = {
        **(asked if needs_token else {}),
        "servers": {name: {"type": "http", "url": url, **headers("${input:token}")}},
    }
    opencode = {"type": "remote", "url": url, "enabled": True, **headers(f"{{env:{TOKEN}}}")}
    return [
        Snippet("Claude Code", ".mcp.json", _json({"mcpServers": {name: {"type": "http", "url": url, **from_env}}})),
        Snippet(
            "Cursor",
            "~/.cursor/mcp.json",
            _json({"mcpServers": {name: {"url": url, **headers(f"${{env:{TOKEN}}}")}}}),
        ),
        Snippet("VS Code", ".vscode/mcp.json", _json(vscode)),
        Snippet("Gemini CLI", "~/.gemini/settings.json", _json({"mcpServers": {name: {"httpUrl": url, **from_env}}})),
        Snippet("Codex", "~/.codex/config.toml", codex),
        Snippet("Goose", "~/.config/goose/config.yaml", goose + "    enabled: true\n    timeout: 300"),
        Snippet(
            "Zed",
            "~/.config/zed/settings.json",
            _json({"context_servers": {name: {"url": url, **headers(PLACE)}}}),
        ),
        Snippet("opencode", "opencode.json", _json({"mcp": {name: opencode}})),
        Snippet(
            "Any other application",
            "address" + (" and header" if needs_token else ""),
            f"{url}\nAuthorization: Bearer {PLACE}" if needs_token else url,
        ),
        Snippet("curl", "command line", curl + """  -d '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'"""),
    ]


def _by_socket(socket: str, name: str, path: str) -> list[Snippet]:
    return [
        Snippet(
            "VS Code",
            ".vscode/mcp.json",
            _json({"servers": {name: {"type": "http", "url": f"unix://{socket}#{path}"}}}),
            "The kernel tells the bridge who is calling, so no token is needed.",
        ),
        Snippet(
            "Goose",
            "~/.config/goose/config.yaml",
            f"extensions:\n  {_word(name)}:\n    type: streamable_http\n    name: {_word(name)}\n"
            f"    uri: {_word('http://localhost' + path)}\n    socket: {_word(socket)}\n"
            "    enabled: true\n    timeout: 300",
        ),
        Snippet(
            "curl",
            "command line",
            f"curl --unix-socket {shlex.quote(socket)} http://localhost{path} \\\n"
            "  -H 'Content-Type: application/json' \\\n"
            """  -d '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'""",
        ),
    ]
