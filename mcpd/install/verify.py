# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether what is installed is still what was installed: every file is hashed, and compared with a list of them.

The list, ``.mcpd-files``, has a line for each file, directory and link: ``<sha256> <mode> <path>``,
``dir <mode> <path>`` or ``link <target> <path>``, paths and targets percent-encoded, in the order of
:func:`mcpd.install.walk.walk`. Its own sha256 is in the lock file, as is that of the manifest without what is changed
later: the configuration, and whether it is pinned. Whoever can write the lock file can make all of it fit again, so
this finds accidents, and what was changed by somebody who did not know of it.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import json
import os
import stat
from contextlib import closing, contextmanager
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from mcpd.errors import IntegrityMismatch, InvalidManifest, from_oserror
from mcpd.install.lockfile import LOCK_FILE, read_lock, record_tree
from mcpd.install.walk import open_root, readable, walk
from mcpd.model import load_json
from mcpd.store.files import is_missing, read_file, remove_tree
from mcpd.store.layers import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from io import BufferedReader
    from pathlib import Path

    from mcpd.install.walk import Found
    from mcpd.model import Manifest

LIST: Final = ".mcpd-files"
"""Hidden and named after mcpd, as :data:`~mcpd.install.lockfile.LOCK_FILE`."""
MAX_SHOWN: Final = 20
"""Differences that are named; the others are counted."""
_OWN: Final = frozenset({MANIFEST, LOCK_FILE, LIST})
"""Files of mcpd in the root of a generation, which change for good reasons."""
_CHANGING: Final = frozenset({"config", "installDir", "scope"})
"""Fields of the manifest that are set when it is activated, or later."""
_MAX_LINE: Final = 64 * 1024


def record(root: Path, manifest: Manifest | None = None) -> None:
    """Write down what the generation in *root* holds, which is complete and not active yet; *manifest* is to be its.

    Raises :class:`~mcpd.errors.InvalidManifest` for a tree over the limits and what writing raises.
    """
    digest, files, total = hashlib.sha256(), 0, 0
    try:
        remove_tree(root / LIST)
        with open(root / LIST, "xb") as output, closing(_lines(root)) as found:  # noqa: PTH123 - as below
            for path, what, size in found:
                line = f"{what} {_quoted(path)}\n".encode()
                output.write(line)
                digest.update(line)
                files += size is not None
                total += size or 0
        (root / LIST).chmod(0o644)
    except OSError as error:
        raise from_oserror(error, f"recording what {root} holds") from error
    stable = _manifest_digest(manifest.to_json()) if manifest is not None else ""
    record_tree(root, sha256=digest.hexdigest(), files=files, size=total, manifest=stable)


def verify(root: Path) -> list[str]:
    """What in the generation in *root* is not as it was recorded, one line each; the last one says how many more there
    are than :data:`MAX_SHOWN`.

    Raises :class:`~mcpd.errors.IntegrityMismatch` if the record itself is gone, and another
    :class:`~mcpd.errors.McpdError` for what cannot be read.
    """
    tree = read_lock(root).get("tree")
    if not isinstance(tree, dict) or not isinstance(tree.get("sha256"), str):
        raise IntegrityMismatch(f"{LOCK_FILE} is missing, or does not say what was installed; reinstall the server")
    try:
        changed = _verify_manifest(root, tree.get("manifest"))
        with _open_list(root) as recorded:
            if recorded is None or hashlib.file_digest(recorded, "sha256").hexdigest() != tree["sha256"]:
                return [*changed, f"changed: {LIST}, so that of the other files nothing can be told"]
            recorded.seek(0)
            with closing(_lines(root)) as found:
                differences = _differences(_recorded(recorded), ((path, what) for path, what, _ in found))
                shown = [*changed, *islice(differences, MAX_SHOWN - len(changed))]
                more = sum(1 for _ in differences)
    except OSError as error:
        raise from_oserror(error, f"verifying {root}") from error
    return [*shown, f"and {more:,} more"] if more else shown


def _verify_manifest(root: Path, expected: object) -> list[str]:
    if not expected:
        return []
    try:
        document = load_json(read_file(root / MANIFEST), MANIFEST)
    except InvalidManifest:
        document = None
    except OSError as error:
        if not is_missing(error):
            raise
        return [f"missing: {MANIFEST}"]
    same = isinstance(document, dict) and _manifest_digest(document) == expected
    return [] if same else [f"changed: {MANIFEST}"]


def _manifest_digest(document: dict[str, Any]) -> str:
    stable = {key: value for key, value in document.items() if key not in _CHANGING}
    if isinstance(origin := stable.pop("origin", {}), dict):
        origin = {key: value for key, value in origin.items() if key != "pinned"}
    if origin:
        stable["origin"] = origin
    return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()


@contextmanager
def _open_list(root: Path) -> Iterator[BufferedReader | None]:
    """The list of files; None if it is not a file."""
    try:
        descriptor = os.open(root / LIST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if not is_missing(error) and error.errno != errno.ELOOP:
            raise
        yield None
        return
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        yield None
        return
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        yield file


def _differences(recorded: Iterator[tuple[str, str]], found: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Both come in the same order, so neither has to be kept as a whole."""
    then = ((path, what, "missing") for path, what in recorded)
    now = ((path, what, "added") for path, what in found)
    merged = heapq.merge(then, now, key=lambda item: item[0].split("/"))
    for path, group in groupby(merged, key=lambda item: item[0]):
        states = list(group)
        if len(states) == 1:
            yield f"{states[0][2]}: {readable(path)}"
        elif states[0][1] != states[1][1]:
            yield f"changed: {readable(path)}"


def _recorded(file: BufferedReader) -> Iterator[tuple[str, str]]:
    """Path of each line, and what is said of it. Raises :class:`~mcpd.errors.InvalidManifest`."""
    while line := file.readline(_MAX_LINE):
        what, _, path = line.rstrip(b"\n").rpartition(b" ")
        if not what or not line.endswith(b"\n"):
            raise InvalidManifest(f"{LIST}: it is not a list of files")
        yield os.fsdecode(unquote_to_bytes(path)), what.decode("ascii", "replace")


def _lines(root: Path) -> Generator[tuple[str, str, int | None]]:
    """Path of everything in *root*, what is to be said of it, and for files their size in bytes."""
    directory = open_root(root)
    try:
        with closing(walk(directory, str(root))) as found:
            for item in found:
                if item.relative not in _OWN:
                    yield item.relative, *_described(item)
    finally:
        os.close(directory)


def _described(item: Found) -> tuple[str, int | None]:
    mode = item.status.st_mode
    if stat.S_ISLNK(mode):
        return f"link {_quoted(os.readlink(item.name, dir_fd=item.parent))}", None
    if stat.S_ISDIR(mode):
        return f"dir {stat.S_IMODE(mode):o}", None
    if not stat.S_ISREG(mode):
        return "special", None
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(item.name, flags, dir_fd=item.parent), "rb") as file:  # noqa: PTH123 - a descriptor
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{digest} {stat.S_IMODE(mode):o}", item.status.st_size


def _quoted(path: str) -> str:
    return quote_from_bytes(os.fsencode(path))
