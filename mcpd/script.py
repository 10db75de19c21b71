# SPDX-License-Identifier: LGPL-2.1-or-later
# A call of a script takes a few milliseconds; importing pathlib and contextlib would take most of them:
# ruff: noqa: PTH100, PTH123, SIM105
"""Optional API for script servers: progress, images, sounds, files and links.

Scripts that mcpd serves may import this; it also works when the script is run by hand::

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
    """Report progress to the client: *current* of *total* (None: unknown), in any unit, with a *message*.

    *current* must increase with every report; other reports are ignored, as are all if the client wants none.
    """
    fd = os.environ.get("MCP_PROGRESS_FD", "")
    if fd.isdigit():
        words = " ".join(str(message).split())[:1000]
        line = f"{float(current)} {'-' if total is None else float(total)} {words}\n"
        try:
            os.write(int(fd), line.encode(errors="replace"))
        except OSError:
            pass  # The client does not listen any more.


class Content:
    """A return value, alone or in a list, that becomes a content block of MCP."""

    def block(self) -> dict[str, Any]:
        """Return the content block."""
        raise NotImplementedError


class _Data(Content):
    """Bytes, or the file at a path. The MIME type is derived from the file's name unless it is given."""

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
        """Return an image or audio block."""
        return {"type": self.kind, "data": base64.b64encode(self.data).decode(), "mimeType": self.mime_type}


class Image(_Data):
    """An image: its bytes, or the path of its file. The default *mime_type* follows the file's name, else PNG."""

    kind, default = "image", "image/png"


class Audio(_Data):
    """A sound: its bytes, or the path of its file. The default *mime_type* follows the file's name, else WAV."""

    kind, default = "audio", "audio/wav"


class File(_Data):
    """A file, by its path. It becomes an embedded resource: text if its MIME type is text, else bytes."""

    def __init__(self, path: str | os.PathLike[str], mime_type: str = "") -> None:
        if isinstance(path, (bytes, bytearray, memoryview)):
            raise TypeError("File takes a path; for bytes use Image or Audio, or return the bytes themselves")
        super().__init__(path, mime_type)

    def block(self) -> dict[str, Any]:
        """Return an embedded resource."""
        from urllib.parse import quote  # most scripts return no file

        resource = {"uri": "file://" + quote(self.path), "mimeType": self.mime_type}
        if self.mime_type.startswith("text/") or self.mime_type == "application/json":
            resource["text"] = self.data.decode(errors="replace")
        else:
            resource["blob"] = base64.b64encode(self.data).decode()
        return {"type": "resource", "resource": resource}


class Redirect(Content):
    """A link to the result: *uri* with the title *name*; an absolute path refers to a server on this machine."""

    def __init__(self, uri: str, name: str = "") -> None:
        self.uri, self.name = uri, name

    def block(self) -> dict[str, Any]:
        """Return a resource link."""
        inner = self.uri.startswith("/") and not self.uri.startswith("//")
        uri = f"server:/{self.uri}" if inner else self.uri
        return {"type": "resource_link", "uri": uri, "name": self.name or self.uri}
