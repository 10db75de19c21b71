# SPDX-License-Identifier: LGPL-2.1-or-later
"""Media types: by what a file begins with where the answer depends on it, else by its name."""

from __future__ import annotations

import mimetypes
import posixpath
from typing import Final

SNIFFED: Final = 512
"""Bytes from the beginning of a file that tell what it is."""
UNKNOWN: Final = "application/octet-stream"
TEXT: Final = "text/plain"

_NAMES: Final = {
    # Python's own table instead of the machine's, so that the answer is the same everywhere.
    **mimetypes.MimeTypes().types_map[True],
    ".bz2": "application/x-bzip2",
    ".flac": "audio/flac",
    ".gz": "application/gzip",
    ".js": "text/javascript",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".mjs": "text/javascript",
    ".ogg": "audio/ogg",
    ".toml": "application/toml",
    ".wav": "audio/wav",
    ".webp": "image/webp",
    ".xz": "application/x-xz",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".zst": "application/zstd",
}
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"fLaC", "audio/flac"),
)
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_OGG_AUDIO: Final = (b"\x01vorbis", b"OpusHead", b"\x7fFLAC", b"Speex   ")
_SHOWN: Final = frozenset({*(kind for _, kind in _MAGIC), *_RIFF.values(), "audio/mpeg", "audio/ogg"})
_TEXTUAL: Final = frozenset(
    {
        "application/json",
        "application/jsonl",
        "application/n-quads",
        "application/n-triples",
        "application/toml",
        "application/trig",
        "application/x-sh",
        "application/xml",
        "application/yaml",
    }
)


def type_of_name(name: str) -> str:
    """What a file called *name* should be; :data:`UNKNOWN` if the name does not tell."""
    return _NAMES.get(posixpath.splitext(name.lower())[1], UNKNOWN)


def type_of_text(name: str) -> str:
    """The type of the text in a file called *name*."""
    guessed = type_of_name(name)
    is_textual = guessed.startswith("text/") or guessed in _TEXTUAL or guessed.endswith(("+xml", "+json"))
    return guessed if is_textual else TEXT


def type_of_bytes(name: str, head: bytes) -> str:
    """The type of a file called *name*, which is no text and begins with *head*, :data:`SNIFFED` bytes of it.

    An image or a sound of those types that clients show is one only if it begins like one, whatever its name says.
    """
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head.startswith(b"RIFF") and head[8:12] in _RIFF:
        return _RIFF[head[8:12]]
    if head.startswith(b"OggS"):
        return "audio/ogg" if any(each in head for each in _OGG_AUDIO) else "application/ogg"
    if _is_mp3(head):
        return "audio/mpeg"
    guessed = type_of_name(name)
    if guessed in _SHOWN or type_of_text(name) == guessed:
        return UNKNOWN
    return guessed


def is_image(kind: str) -> bool:
    """Whether *kind*, from :func:`type_of_bytes`, is one of the images that clients show."""
    return kind in _SHOWN and kind.startswith("image/")


def is_audio(kind: str) -> bool:
    """Whether *kind*, from :func:`type_of_bytes`, is one of the sounds that clients play."""
    return kind in _SHOWN and kind.startswith("audio/")


def _is_mp3(head: bytes) -> bool:
    """A tag, or the header of a frame of MPEG audio, layer III (ISO 11172-3, 2.4.1.3)."""
    if head[:3] == b"ID3" and head[3:4] in {b"\x02", b"\x03", b"\x04"}:
        return True
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return False
    version, bitrate, rate = (head[1] >> 3) & 3, head[2] >> 4, (head[2] >> 2) & 3
    return version != 1 and bitrate not in {0, 15} and rate != 3
