# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the facility's tests have in common."""

from __future__ import annotations

import sys
from typing import Any

from bridge_harness import FIXTURE

SERVER = FIXTURE.with_name("facility_server.py")
COMMAND = f"{sys.executable} {SERVER}"


def request(method: str, identity: object = 1, /, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def tool(name: str, identity: object = 1, /, **arguments: object) -> dict[str, Any]:
    return request("tools/call", identity, name=name, arguments=arguments)
