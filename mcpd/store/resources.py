# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the content of a script server's resources comes from (``docs/scripts.md``), and why one cannot be read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from mcpd.errors import InvalidManifest
from mcpd.model import check_id
from mcpd.store import contents

if TYPE_CHECKING:
    from mcpd.model.mcps import McpsEntry

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)
"""What RFC 3986 allows in a URI."""
_LONGEST_URI: Final = 8192


def is_uri(text: str) -> bool:
    """Whether *text* is a URI by RFC 3986 (T6.6)."""
    return len(text) <= _LONGEST_URI and _URI.fullmatch(text) is not None


def uri_fault(uri: str) -> str:
    """Return what is wrong with the URI of a resource; empty if nothing."""
    return "" if is_uri(uri) else f"{uri[:100]!a} is no URI (RFC 3986)"


def variable(source: str) -> str:
    """The name in ``variable://NAME``. It is taken as it is written, as hosts of URIs are not: capitals count."""
    return unquote(source.partition("://")[2])


def last_result(server_id: str) -> str:
    """Return the source of a resource that is the result of the last call of a tool of the server."""
    return f"{server_id}://last"


def called_server(source: str) -> str:
    """Return the id of the server that *source*, which has no fault, calls; empty if it calls none."""
    parts = urlsplit(source)
    return parts.netloc if parts.scheme == "server" else ""


def source_fault(source: str, server_id: str, entry: McpsEntry) -> str:
    """Return why the server with *entry* cannot read *source*, as far as that is known before it does; else empty."""
    try:
        parts = urlsplit(source)
    except ValueError:
        return f"{source[:100]!a} is no URI (RFC 3986)"
    fault = ""
    if parts.scheme == "cid":
        fault = "" if contents.is_content_id(source) else f"{source[:100]!a} is no content id"
    elif parts.scheme == "variable":
        name = variable(source)
        fault = "" if name in entry.variables else f"the entry has no variable {name[:100]!a}"
    elif parts.scheme == "server":
        fault = uri_fault(source)
        try:
            check_id(parts.netloc)
        except InvalidManifest as error:
            fault = f"{source[:100]!a}: {error.message}"
    elif source != last_result(server_id):
        fault = (
            f'{source[:100]!a} is nothing that can be read; give the resource a "source": cid://CONTENT, '
            f"server://SERVER/TOOL?ARGUMENT=VALUE, variable://NAME or {last_result(server_id)}"
        )
    elif entry.runtime.run_as == "system":
        fault = f"{source[:100]!a} would show each user what others have called, as runtime.runAs is 'system'"
    return fault
