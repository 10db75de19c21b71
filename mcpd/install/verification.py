# SPDX-License-Identifier: LGPL-2.1-or-later
"""Verification of installed files against the record made at installation."""

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

from mcpd.errors import IntegrityMismatch, InvalidManifest, McpdError, NotFound, NotSupported, from_oserror
from mcpd.files import is_missing, read_file, remove_tree
from mcpd.install.lockfile import LOCK_FILE, read_lock, record_tree
from mcpd.install.trees import open_root, readable, walk
from mcpd.install.updates import recorded_registry
from mcpd.model import load_json
from mcpd.store.config import MANIFEST
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator
    from io import BufferedReader
    from pathlib import Path

    from mcpd.install.trees import TreeItem
    from mcpd.model import Manifest
    from mcpd.store import Store

LIST: Final = ".mcpd-files"
"""Name of the list of files in a generation; hidden, like :data:`~mcpd.install.lockfile.LOCK_FILE`."""
MAX_SHOWN: Final = 20
"""Maximum number of differences that are listed; the others are only counted."""
_OWN: Final = frozenset({MANIFEST, LOCK_FILE, LIST})
"""mcpd's own files in the root of a generation, which may change."""
_CHANGING: Final = frozenset({"config", "installDir", "scope"})
"""Fields of the manifest that are set at activation or later."""
_MAX_LINE: Final = 64 * 1024


def record(root: Path, manifest: Manifest | None = None) -> None:
    """Record the files of the complete, inactive generation in *root*, and *manifest*, which it will get.

    Raises :class:`~mcpd.errors.InvalidManifest` for a tree over the limits, and the errors of writing.
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
        raise from_oserror(error, f"recording the files in {root}") from error
    stable = _manifest_digest(manifest.to_json()) if manifest is not None else ""
    record_tree(root, sha256=digest.hexdigest(), files=files, size=total, manifest=stable)


def verify(root: Path) -> list[str]:
    """Return the differences between the generation in *root* and its record, one per line.

    After :data:`MAX_SHOWN` lines the last one counts the others. Raises
    :class:`~mcpd.errors.IntegrityMismatch` if the record itself is missing, and other
    :class:`~mcpd.errors.McpdError` for files that cannot be read.
    """
    tree = read_lock(root).get("tree")
    if not isinstance(tree, dict) or not isinstance(tree.get("sha256"), str):
        raise IntegrityMismatch(f"{LOCK_FILE} is missing or has no record of the files; reinstall the server")
    try:
        changed = _verify_manifest(root, tree.get("manifest"))
        with _open_list(root) as recorded:
            if recorded is None or hashlib.file_digest(recorded, "sha256").hexdigest() != tree["sha256"]:
                return [*changed, f"changed: {LIST}, so the other files could not be verified"]
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
    """Open the list of files; None if it is missing or not a regular file."""
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
    """Yield the differences. Both iterators have the same order, so neither has to be held in memory."""
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
    """Yield the path and state of each recorded line. Raises :class:`~mcpd.errors.InvalidManifest`."""
    while line := file.readline(_MAX_LINE):
        what, _, path = line.rstrip(b"\n").rpartition(b" ")
        if not what or not line.endswith(b"\n"):
            raise InvalidManifest(f"{LIST}: not a list of files")
        yield os.fsdecode(unquote_to_bytes(path)), what.decode("ascii", "replace")


def _lines(root: Path) -> Generator[tuple[str, str, int | None]]:
    """Yield path, state and, for files, size in bytes of everything in *root*."""
    directory = open_root(root)
    try:
        with closing(walk(directory, str(root))) as found:
            for item in found:
                if item.relative not in _OWN:
                    yield item.relative, *_described(item)
    finally:
        os.close(directory)


def _described(item: TreeItem) -> tuple[str, int | None]:
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


async def verify_servers(store: Store, server_ids: Collection[str], progress: Callable[[float], None]) -> None:
    """Verify *server_ids* (empty: all that mcpd installed in this scope), one after the other.

    *progress* is called with the percentage done. A server that cannot be read does not stop the others.

    Raises :class:`~mcpd.errors.IntegrityMismatch` that lists every server with differences, or that could not be
    verified. Otherwise it raises :class:`~mcpd.errors.NotSupported` if one of *server_ids* was not installed by mcpd,
    and :class:`~mcpd.errors.NotFound` if one has been removed.
    """
    changed: list[str] = []
    unverifiable: list[str] = []
    others: list[McpdError] = []
    wanted = server_ids or await in_thread(_installed_by_mcpd, store)
    for done, server_id in enumerate(wanted):
        progress(100 * done / len(wanted))
        try:
            faults = await in_thread(_faults, store, server_id)
        except (NotFound, NotSupported) as error:
            if server_ids:
                others.append(error)
            continue
        except McpdError as error:
            unverifiable.append(f"{server_id}:\n  could not be verified: {error.message}")
            continue
        if faults:
            changed.append("\n  ".join([f"{server_id}:", *faults]))
    said = [error.message for error in others]
    if changed or unverifiable:
        said = ["'mcpctl install --reinstall' repairs it", *said]
    if unverifiable:
        said = ["could not verify the installed files:", *unverifiable, *said]
    if changed:
        said = ["changed since installation:", *changed, *said]
    if said:
        raise (IntegrityMismatch if changed or unverifiable else type(others[0]))("\n".join(said))


def check_generation(store: Store, server_id: str, number: int) -> None:
    """Verify generation *number*; a generation that mcpd did not install passes. Blocks on the disk.

    Raises :class:`~mcpd.errors.IntegrityMismatch` if it differs or its record is missing, and the errors of reading.
    """
    path = store.generation_path(server_id, number)
    manifest: Manifest | None
    try:
        manifest = store.generation_manifest(server_id, number)
    except InvalidManifest:
        manifest = None  # counts as a difference
    if _is_foreign(path, manifest):
        return
    try:
        faults = verify(path)
    except IntegrityMismatch as error:
        raise IntegrityMismatch(f"could not verify generation {number} of {server_id}: {error.message}") from error
    if faults:
        named = "\n  ".join(faults)
        raise IntegrityMismatch(
            f"generation {number} of {server_id} has changed since installation; 'mcpctl history {server_id}' lists"
            f" the others:\n  {named}"
        )


def _installed_by_mcpd(store: Store) -> list[str]:
    """Return the servers of this scope that mcpd installed."""
    return [
        server.id
        for server in store.list()
        if server.writable and server.script is None and _is_recorded(server.generation, server.manifest)
    ]


def _is_recorded(generation: Path, manifest: Manifest | None) -> bool:
    """Return whether mcpd installed *generation*; *manifest* can show that even if the lock file is missing."""
    known = manifest is not None and recorded_registry(manifest) is not None
    return known or (generation / LOCK_FILE).exists()


def _is_foreign(generation: Path, manifest: Manifest | None) -> bool:
    """Return whether another tool installed *generation*; false if there is no manifest to tell from."""
    return manifest is not None and not _is_recorded(generation, manifest)


def _faults(store: Store, server_id: str) -> list[str]:
    """Return the differences from the record. Raises :class:`~mcpd.errors.McpdError` if they cannot be determined."""
    while True:
        server = store.get(server_id)
        if _is_foreign(server.generation, server.manifest):
            raise NotSupported(
                f"{server_id} was not installed by mcpd, so there is no record to compare it with;"
                " install it with mcpctl to have it verified"
            )
        failure: McpdError | None = None
        faults: list[str] = []
        try:
            faults = verify(server.generation)
        except McpdError as error:
            failure = error
        # The generation may have been replaced or removed in the meantime.
        if (faults or failure) and store.get(server_id).generation != server.generation:
            continue
        if failure is not None:
            raise failure
        return faults
