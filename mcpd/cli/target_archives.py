# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bundles and archives that ``mcpctl install TARGET`` names, as files of this machine or by their URL."""

from __future__ import annotations

import os
import re
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from mcpd.errors import IntegrityMismatch, InvalidArgument, NotFound, from_oserror

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

BUNDLES: Final = (".mcpb", ".dxt")
ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_PIECE: Final = 1 << 18
_VERSIONED: Final = re.compile(r"(?:(.*?)[-_.])?v?([0-9]+(?:\.[0-9]+)+(?:[-.+][A-Za-z0-9.+-]+)?)", re.ASCII)
"""A name with a version behind it, as people call archives."""


def is_bundle(name: str) -> bool:
    """Whether *name* is that of an MCP bundle."""
    return name.lower().endswith(BUNDLES)


def is_archive(name: str) -> bool:
    """Whether *name* is that of an archive."""
    return name.lower().endswith(ARCHIVES)


def remote_source(url: str, sha256: str) -> dict[str, str] | None:
    """The source for the bundle or archive behind *url*, with *sha256*; ``None`` if its name is that of neither.

    Raises :class:`~mcpd.errors.InvalidArgument` if nothing says what it has to hash to.
    """
    parts = urlsplit(url)
    kind = "mcpb" if is_bundle(parts.path) else "archive" if is_archive(parts.path) else ""
    if not kind or parts.scheme.lower() not in {"http", "https"}:
        return None
    if not sha256:
        raise InvalidArgument(
            f"{url!r}: --sha256 has to say what it hashes to, as it was published or as 'sha256sum' says of a copy "
            "that you trust; or fetch it and install the file"
        )
    source = {"type": kind, "url": urlunsplit(parts._replace(fragment="")), "sha256": sha256}
    return source | ({"path": unquote(parts.fragment)} if parts.fragment and kind == "archive" else {})


def local_source(path: Path, sha256: str) -> dict[str, str]:
    """The source for the archive at *path*, pinned to what it is now.

    Raises :class:`~mcpd.errors.IntegrityMismatch` if that is not *sha256*, where one is given.
    """
    with _open(path) as file:
        return {"type": "archive", "url": path.as_uri(), "sha256": _checked(path, file, sha256)}


@contextmanager
def sending(path: Path, sha256: str) -> Iterator[tuple[int, str]]:
    """The reading end of a pipe that the file at *path* comes through, and what that hashes to.

    Raises as :func:`local_source` does.
    """
    with ExitStack() as stack:
        file = stack.enter_context(_open(path))
        digest = _checked(path, file, sha256)
        reader, writer = os.pipe()
        stack.callback(os.close, reader)
        # It ends with what it has to write, or with the last reader; its file is its own from here on.
        threading.Thread(target=_write, args=(os.dup(file.fileno()), writer), daemon=True).start()
        yield reader, digest


def _open(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}") from error
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error


def _checked(path: Path, file: BufferedReader, wanted: str) -> str:
    """What *file* hashes to, from its beginning, where it stands again then."""
    import hashlib  # noqa: PLC0415 - few installations hash anything here

    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    if wanted and found != wanted:
        raise IntegrityMismatch(f"{path} hashes to sha256 {found}, not {wanted}: it is another file than it should be")
    return found


def _write(source: int, sink: int) -> None:
    with suppress(BrokenPipeError), open(sink, "wb") as out, open(source, "rb") as file:
        while piece := file.read(_PIECE):
            out.write(piece)


def name_and_version(file: str) -> tuple[str, str]:
    """What the server in *file* is called, by the name of that: ``time-server-1.2.tar.gz`` is time-server, at 1.2.

    Either is empty if the name does not say it.
    """
    stem = next((file[: -len(end)] for end in (*ARCHIVES, *BUNDLES) if file.lower().endswith(end)), file)
    match = _VERSIONED.fullmatch(stem)
    return (match[1] or "", match[2]) if match else (stem, "")
