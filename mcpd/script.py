# SPDX-License-Identifier: LGPL-2.1-or-later
# A script that is a call takes a few milliseconds; pathlib and contextlib would be most of them:
# ruff: noqa: PTH100, PTH123, SIM105
"""What a script can use to talk to its client beyond returning a value; all of it is optional.

A script that is a server of mcpd may import this; it also works where the script is run by hand::

    from mcpd.script import Image, progress

    def render(pages: int) -> list:
        \"\"\"Renders the pages.\"\"\"
        images = []
        for page in range(pages):
            progress(page, pages, f"page {page + 1}")
            images.append(Image(f"/srv/pages/{page}.png"))
        return images
"""

from __future__ import annotations

import base64
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Audio", "Content", "File", "Image", "Redirect", "progress"]

_TYPES = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
    "svg": "image/svg+xml", "wav": "audio/wav", "mp3": "audio/mpeg", "ogg": "audio/ogg", "flac": "audio/flac",
    "txt": "text/plain", "md": "text/markdown", "html": "text/html", "csv": "text/csv", "json": "application/json",
    "pdf": "application/pdf",
}  # fmt: skip


def progress(current: float, total: float | None = None, message: str = "") -> None:
    """Tell the client how far the call is: *current* of *total* (None: unknown), in any unit, and what is going on.

    *current* has to grow; what does not is ignored, and so is all of it where nobody listens.
    """
    fd = os.environ.get("MCP_PROGRESS_FD", "")
    if fd.isdigit():
        words = " ".join(str(message).split())[:1000]
        line = f"{float(current)} {'-' if total is None else float(total)} {words}\n"
        try:
            os.write(int(fd), line.encode(errors="replace"))
        except OSError:
            pass  # Nobody listens any more.


class Content:
    """Something to return, alone or in a list, that becomes a content block of MCP."""

    def block(self) -> dict[str, Any]:
        """The content block."""
        raise NotImplementedError


class _Data(Content):
    """Bytes, or the file at a path, with their MIME type; without one, what the file's name says."""

    kind = "resource"
    default = "application/octet-stream"

    def __init__(self, data: bytes | str | os.PathLike[str], mime_type: str = "") -> None:
        if isinstance(data, (bytes, bytearray, memoryview)):
            self.data, self.path = bytes(data), ""
        else:
            self.path = os.path.abspath(data)
            with open(self.path, "rb") as file:
                self.data = file.read()
        self.mime_type = mime_type or _TYPES.get(self.path.rpartition(".")[2].lower(), self.default)

    def block(self) -> dict[str, Any]:
        """An image or a sound."""
        return {"type": self.kind, "data": base64.b64encode(self.data).decode(), "mimeType": self.mime_type}


class Image(_Data):
    """An image: its bytes, or the path of its file. Without *mime_type* it is what the file's name says, or PNG."""

    kind, default = "image", "image/png"


class Audio(_Data):
    """A sound: its bytes, or the path of its file. Without *mime_type* it is what the file's name says, or WAV."""

    kind, default = "audio", "audio/wav"


class File(_Data):
    """A file, by its path: it becomes an embedded resource, as text if its type is text, else as bytes."""

    def __init__(self, path: str | os.PathLike[str], mime_type: str = "") -> None:
        if isinstance(path, (bytes, bytearray, memoryview)):
            raise TypeError("a File has a path; of bytes alone make an Image or an Audio, or return them as they are")
        super().__init__(path, mime_type)

    def block(self) -> dict[str, Any]:
        """An embedded resource."""
        from urllib.parse import quote  # noqa: PLC0415 -- most scripts return no file

        resource = {"uri": "file://" + quote(self.path), "mimeType": self.mime_type}
        if self.mime_type.startswith("text/") or self.mime_type == "application/json":
            resource["text"] = self.data.decode(errors="replace")
        else:
            resource["blob"] = base64.b64encode(self.data).decode()
        return {"type": "resource", "resource": resource}


class Redirect(Content):
    """Where the result is: *uri* becomes a link to a resource, called *name*; a path is a server's of this machine."""

    def __init__(self, uri: str, name: str = "") -> None:
        self.uri, self.name = uri, name

    def block(self) -> dict[str, Any]:
        """A link to a resource."""
        inner = self.uri.startswith("/") and not self.uri.startswith("//")
        uri = f"server:/{self.uri}" if inner else self.uri
        return {"type": "resource_link", "uri": uri, "name": self.name or self.uri}
