# SPDX-License-Identifier: LGPL-2.1-or-later
"""An npm registry on the loopback."""

from __future__ import annotations

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.install.install_parts import tarball
from tests.loopback import Loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SERVER_JS = """#!/usr/bin/env node
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const { id, method } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: { protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "x" } },
    "tools/list": { tools: [{ name: "hello", inputSchema: { type: "object" } }] },
  };
  const answer = results[method] ? { result: results[method] } : { error: { code: -32601, message: "none" } };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...answer }));
});
"""


class Registry(Loopback):
    """Serves the packages that :meth:`add` made."""

    def __init__(self) -> None:
        self.packages: dict[str, dict[str, Any]] = {}
        self.packages_to_pack: dict[str, dict[str, Any]] = {}
        """What ``npm pack`` is told of packages instead."""
        self.tarballs: dict[str, bytes] = {}
        self.asked: list[str] = []
        """The archives that were fetched."""
        self.moved = ""
        """Where the archives are instead."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = unquote(self.path).strip("/")
                known = registry.packages_to_pack if self.headers.get("npm-command") == "pack" else {}
                document = known.get(path) or registry.packages.get(path)
                body = json.dumps(document).encode() if document else registry.tarballs.get(path, b"")
                if path in registry.tarballs:
                    registry.asked.append(path)
                is_moved = registry.moved and path in registry.tarballs
                self.send_response(302 if is_moved else 200 if body else 404)
                if is_moved:
                    self.send_header("Location", registry.moved)
                self.send_header("Content-Length", str(len(body)))
                if path in registry.tarballs:
                    self.send_header("Cache-Control", "public, immutable, max-age=31557600")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.serve(Handler)

    def add(
        self,
        name: str = "fake-server",
        version: str = "1.0.0",
        *,
        files: Mapping[str, str] | None = None,
        integrity: str = "",
        change: Callable[[bytes], bytes] = bytes,
        **fields: Any,
    ) -> bytes:
        """Offer a package; returns its archive, after *change*."""
        description = {"name": name, "version": version, "bin": {name.rpartition("/")[2]: "cli.js"}, **fields}
        members = {"package/package.json": json.dumps(description), "package/cli.js": SERVER_JS, **(files or {})}
        data = change(tarball(members))
        file = f"{name}/-/{version}.tgz"
        self.tarballs[file] = data
        sri = integrity or "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        document = self.packages.setdefault(name, {"name": name, "versions": {}})
        document["versions"][version] = {**description, "dist": {"tarball": f"{self.url}/{file}", "integrity": sri}}
        document["dist-tags"] = {"latest": version}
        return data
