# SPDX-License-Identifier: LGPL-2.1-or-later
"""SQLite database of the catalog, which is recreated if it is deleted (ADR 0008)."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from mcpd.catalog.registries import check_url
from mcpd.errors import Busy, McpdError, NoSpace, ReadOnly
from mcpd.files import make_directory
from mcpd.formats.registry import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mcpd.catalog.registries import RegistryLine
    from mcpd.trust.keys import Keys, TrustedKey

T = TypeVar("T")
_log = logging.getLogger(__name__)

_APPLICATION: Final = 0x6D637064
_VERSION: Final = 3
"""Incremented with every change of the schema or of the indexed words of an entry."""
_WAIT: Final = 10.0
"""Seconds to wait for a lock that another process holds."""
_CACHE: Final = 4096
"""Size of SQLite's page cache in KiB."""
_HASH: Final = 4 << 20
"""Bytes of new index words that are collected before they are written; smaller values are slower."""
_SPARE: Final = 4 << 20
"""Bytes that may stay unused in the database file or its write-ahead log; more are released."""
_SCHEMA: Final = f"""
CREATE TABLE copy (
    n INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, part TEXT NOT NULL,
    etag TEXT NOT NULL DEFAULT '', modified TEXT NOT NULL DEFAULT '', digest BLOB NOT NULL DEFAULT x'',
    fetched REAL NOT NULL DEFAULT 0, baseline TEXT NOT NULL DEFAULT '', attested TEXT NOT NULL DEFAULT '',
    since TEXT NOT NULL DEFAULT '',
    signer TEXT NOT NULL DEFAULT '', unsigned TEXT NOT NULL DEFAULT '', tried BLOB NOT NULL DEFAULT x'',
    entries INTEGER NOT NULL DEFAULT 0, faults INTEGER NOT NULL DEFAULT 0,
    place INTEGER,
    UNIQUE (source, part));
CREATE TABLE entry (
    n INTEGER PRIMARY KEY, copy INTEGER NOT NULL, id TEXT NOT NULL, digest BLOB NOT NULL,
    shown INTEGER NOT NULL DEFAULT 0, installable INTEGER NOT NULL, pins INTEGER NOT NULL,
    sha256 TEXT NOT NULL, note TEXT NOT NULL);
CREATE UNIQUE INDEX entry_by_id ON entry (id, copy);
CREATE INDEX entry_by_sha256 ON entry (sha256) WHERE sha256 <> '';
CREATE TABLE body (n INTEGER PRIMARY KEY, label TEXT NOT NULL, key TEXT NOT NULL, fields BLOB NOT NULL, data BLOB);
CREATE TABLE category (name TEXT NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY (name, entry)) WITHOUT ROWID;
CREATE TABLE fault (copy INTEGER NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL, message TEXT NOT NULL,
    PRIMARY KEY (copy, number)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (
    id, name, summary, description, categories,
    content = '', tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2');
INSERT INTO words (words, rank) VALUES ('hashsize', {_HASH});
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
"""  # noqa: S608 - of our own constants
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_REFUSED: Final = frozenset(
    {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
)


class Database:
    """The database at one path, usable from any thread; created when first written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading = _Connection(path, to_write=False)
        self._writing = _Connection(path, to_write=True)

    def ask(self, question: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Return the result of *question*; *otherwise* if there is no readable database.

        *question* sees a consistent snapshot and must not write.
        """
        try:
            return self._reading.run(question, "BEGIN")
        except FileNotFoundError:
            return otherwise
        except sqlite3.DatabaseError as error:
            _log.warning("%s: %s", self._path, error)
            if _is_damaged(error):
                self._discard(self._reading)
            return otherwise

    def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run *work* in one write transaction; *work* may be called twice.

        Raises errors of *work*, and :class:`~mcpd.errors.NoSpace`, :class:`~mcpd.errors.ReadOnly`,
        :class:`~mcpd.errors.Busy` or another :class:`~mcpd.errors.McpdError`.
        """
        try:
            try:
                return self._writing.run(work, "BEGIN IMMEDIATE", _give_back)
            except sqlite3.DatabaseError as error:
                if not _is_damaged(error):
                    raise
                _log.warning("%s: %s; recreating it", self._path, error)
                self._discard(self._writing)
                return self._writing.run(work, "BEGIN IMMEDIATE", _give_back)
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._reading.close()
        self._writing.close()

    def _discard(self, damaged: _Connection) -> None:
        """Remove the file that *damaged* had open, unless another process has already replaced it."""
        inode = damaged.inode
        self.close()
        if inode != _inode(self._path):
            return
        # The database itself last: once it is replaced, the files next to it belong to the new one.
        for suffix in ("-wal", "-shm", "-journal", ""):
            with suppress(OSError):  # if it cannot be removed, the next write reports the error
                Path(f"{self._path}{suffix}").unlink()

    def _translated(self, error: sqlite3.DatabaseError) -> McpdError:
        text = f"writing {self._path}: {error}"
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return NoSpace(f"{text}. Free some space and try again.")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy(f"{text}; another process is changing it, try again when it has finished")
        return ReadOnly(text) if code in _REFUSED else McpdError(text)


class _Connection:
    """A connection that is opened on demand, and used by one thread at a time."""

    def __init__(self, path: Path, *, to_write: bool) -> None:
        self._path = path
        self._to_write = to_write
        self._lock = Lock()
        self._open: sqlite3.Connection | None = None
        self.inode = 0
        """Inode of the file opened last."""

    def __del__(self) -> None:
        self._drop()

    def run(
        self,
        work: Callable[[sqlite3.Connection], T],
        begin: str,
        after: Callable[[sqlite3.Connection], None] | None = None,
    ) -> T:
        """Run *work* in a transaction begun by *begin*, then *after*.

        Raises FileNotFoundError if there is nothing to read.
        """
        with self._lock:
            connection = self._connected()
            try:
                connection.execute(begin)
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.rollback()
                raise
            if after is not None:
                after(connection)
            return result

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _connected(self) -> sqlite3.Connection:
        # If the cache was cleared while mcpd is running, do not keep using the deleted file.
        if self._open is not None and self.inode != _inode(self._path):
            self._drop()
        if self._open is None:
            if self._to_write:
                make_directory(self._path.parent)
            elif not _inode(self._path):
                raise FileNotFoundError(self._path)
            # Even reading creates files next to the database, except with immutable=1 for a directory that is not
            # writable.
            is_fixed = not self._to_write and not os.access(self._path.parent, os.W_OK)
            how = "mode=rwc" if self._to_write else "mode=ro&immutable=1" if is_fixed else "mode=rw"
            self._open = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?{how}", uri=True, timeout=_WAIT,
                isolation_level=None, check_same_thread=False, cached_statements=64,
            )  # fmt: skip
            try:
                _prepare(self._open, self._path, to_write=self._to_write)
            except BaseException:
                self.inode = _inode(self._path)
                self._drop()
                raise
            self.inode = _inode(self._path)
        return self._open


def _prepare(connection: sqlite3.Connection, path: Path, *, to_write: bool) -> None:
    if to_write and _is_empty(connection):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("BEGIN EXCLUSIVE")
        if _is_empty(connection):  # again, as another process may have created it in the meantime
            for statement in _SCHEMA.split(";\n"):
                connection.execute(statement)
        connection.execute("COMMIT")
    if _is_empty(connection):
        raise FileNotFoundError(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if (application, version) != (_APPLICATION, _VERSION):
        _refuse()
    connection.execute(f"PRAGMA cache_size = -{_CACHE}")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA trusted_schema = OFF")
    if not to_write:
        connection.execute("PRAGMA query_only = ON")
        return
    with suppress(sqlite3.OperationalError):  # a current reader prevents the switch until the file is opened again
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA journal_size_limit = {_SPARE}")


def _give_back(connection: sqlite3.Connection) -> None:
    """Release unused space of the database file and its write-ahead log, unless others are reading them."""

    def value(name: str) -> int:
        (found,) = connection.execute(f"PRAGMA {name}").fetchone()
        return int(found)

    with suppress(sqlite3.OperationalError):
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        is_large = _size(Path(f"{path}-wal")) > _SPARE
        if value("freelist_count") * value("page_size") > _SPARE:
            connection.executescript("PRAGMA incremental_vacuum")  # execute would free one page
            is_large = True
        if is_large:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute(f"PRAGMA busy_timeout = {_WAIT * 1000:.0f}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether the database has no tables yet: it is being created, or its creation was interrupted."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return not tables and not version


def _refuse() -> None:
    error = sqlite3.DatabaseError("created by another version of mcpd, or by another program")
    error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
    raise error


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    """Return whether the file can never be used; a missing table counts as damage."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in _DAMAGED or (code == sqlite3.SQLITE_ERROR and "no such" in str(error))


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - called for every query
    except OSError:
        return 0


_COLUMNS: Final = (
    "n, source, part, etag, modified, digest, fetched, baseline, attested, since, signer, unsigned, tried, entries,"
    " faults"
)


@dataclass(frozen=True, slots=True)
class Copy:
    """The stored copy of one file of a registry; an official API as a whole counts as one file."""

    n: int
    source: str
    """Normalized URL of the registry."""
    part: str
    """Name of the file in a directory, otherwise empty."""
    etag: str
    modified: str
    digest: bytes
    """Digest of the file's bytes."""
    fetched: float
    """Unix time at which the copy was last found to be current."""
    baseline: str
    """Newest ``updated`` seen; for a date in the future, the time at which it was seen."""
    attested: str
    """Newest ``updated`` signed by a trusted key; an unsigned date says nothing about later files.

    These two and :attr:`signer`, by which older and unsigned files are refused, are stored only in this database:
    clearing the cache, or removing and adding the registry, resets them.
    """
    since: str
    """Newest ``updatedAt`` seen in an official API."""
    signer: str
    """Fingerprint of the key that signed the file; empty if no key that was trusted at that time did."""
    unsigned: str
    """Reason why there is no signer."""
    tried: bytes
    """Digest of the signature and of the keys that it was checked with, if there is no signer."""
    entries: int
    faults: int


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The current status of a copy."""

    copy: Copy
    line: RegistryLine
    signer: str
    """Name of the trusted key that signed the copy; empty if the copy is not verified."""
    usable: bool
    lacks_key: bool = False
    """True if the registry requires a key that is missing."""

    @property
    def problem(self) -> str:
        """Reason why the copy is not verified; empty if it is, or if it need not be."""
        if self.signer or self.line.signature == "off" or self.line.type == "official":
            return ""
        name = f"{self.copy.part}: " if self.copy.part else ""
        asked = f"the key {self.line.key!r}" if self.line.key else "a trusted key"
        if self.lacks_key:
            return f"{name}{no_key(self.line.key)}"
        if self.copy.signer:
            return f"{name}signed by {self.copy.signer}, which is not trusted; 'mcpctl key list' lists the trusted keys"
        return f"{name}{self.copy.unsigned or f'not signed by {asked}'}"

    @property
    def undated(self) -> str:
        """Warning about a signed copy without a date, which an older one could replace; otherwise empty."""
        if not self.signer or self.copy.attested:
            return ""
        return (
            f"{self.copy.part or self.copy.source}: signed, but without an 'updated' date, so an older signed copy"
            " could replace it"
        )


def copies(connection: sqlite3.Connection) -> list[Copy]:
    """Return all copies."""
    return [Copy(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM copy ORDER BY source, part")]  # noqa: S608


def copy_of(connection: sqlite3.Connection, source: str, part: str) -> Copy | None:
    """Return the copy of *part* of the registry *source*, None if there is none."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM copy WHERE source = ? AND part = ?",  # noqa: S608
        (source, part),
    ).fetchone()
    return Copy(*row) if row else None


def make_copy(connection: sqlite3.Connection, source: str, part: str) -> int:
    """Return the number of the copy of *part* of *source*; create the copy if it does not exist."""
    connection.execute("INSERT OR IGNORE INTO copy (source, part) VALUES (?, ?)", (source, part))
    found: int = connection.execute("SELECT n FROM copy WHERE source = ? AND part = ?", (source, part)).fetchone()[0]
    return found


def confirm(connection: sqlite3.Connection, copy: int) -> None:
    """Record that the copy with the number *copy* was found to be current."""
    connection.execute("UPDATE copy SET fetched = ? WHERE n = ?", (time.time(), copy))


def statuses(found: Iterable[Copy], lines: Iterable[RegistryLine], keys: Keys) -> list[CopyStatus]:
    """Return the status of the copies *found* in order of precedence, without those of unlisted registries."""
    by_source: dict[str, list[Copy]] = {}
    for copy in found:
        by_source.setdefault(copy.source, []).append(copy)
    trusted = cache(keys.trusted)  # once for all the files of a directory
    has = cache(keys.has)
    order: list[CopyStatus] = []
    for line in lines:
        if line.state == "invalid":
            continue
        own = [
            replace(status_of(copy, line, trusted), lacks_key=bool(line.key) and not has(line.key))
            for copy in by_source.get(check_url(line.url), ())
            # Skip copies from a time when the registry had another type.
            if bool(copy.part) == (line.type == "directory")
        ]
        order += sorted(own, key=_rank)
    return order


def _rank(each: CopyStatus) -> tuple[bool, float]:
    """Return a sort key: verified copies first, the newest of them first, so that an old signed file never wins."""
    signed = parse_time(each.copy.attested) if each.signer else None
    return not each.signer, -signed.timestamp() if signed is not None else 0.0


def status_of(copy: Copy, line: RegistryLine, trusted: Callable[[str, str], TrustedKey | None]) -> CopyStatus:
    """Return the status of *copy* of the registry *line*.

    *trusted* (of :class:`~mcpd.trust.keys.Keys`) is called each time, so that removing a key takes effect at once.
    """
    may = copy.signer and line.signature != "off" and line.type != "official"
    key = trusted(copy.signer, line.key) if may else None
    return CopyStatus(copy, line, key.name if key else "", key is not None or line.signature != "required")


def no_key(name: str) -> str:
    """Return a message for a registry that requires the missing key *name*."""
    return f"it must be signed by the key {name!r}, which is not in keys.d; add it with 'mcpctl key add'"


def is_placed(connection: sqlite3.Connection, order: list[CopyStatus]) -> bool:
    """Return whether the precedence in the database is that of *order*."""
    placed = connection.execute("SELECT n FROM copy WHERE place IS NOT NULL ORDER BY place").fetchall()
    return [n for (n,) in placed] == [each.copy.n for each in order if each.usable]


def place(connection: sqlite3.Connection, order: list[CopyStatus]) -> None:
    """For each id, show only the entry of the first usable copy in *order*."""
    connection.execute("UPDATE copy SET place = NULL")
    for number, each in enumerate(each for each in order if each.usable):
        connection.execute("UPDATE copy SET place = ? WHERE n = ?", (number, each.copy.n))
    show(connection)


def show(connection: sqlite3.Connection) -> None:
    """Update the column ``shown`` of the entries to the places of their copies."""
    placed = [n for (n,) in connection.execute("SELECT n FROM copy WHERE place IS NOT NULL")]
    if len(placed) <= 1:
        only = placed[0] if placed else -1
        connection.execute("UPDATE entry SET shown = (copy = ?) WHERE shown <> (copy = ?)", (only, only))
        return
    connection.execute(
        "WITH best AS (SELECT e.n AS n, row_number() OVER (PARTITION BY e.id ORDER BY c.place) AS rank"
        " FROM entry e JOIN copy c ON c.n = e.copy WHERE c.place IS NOT NULL)"
        " UPDATE entry SET shown = NOT shown"
        " WHERE shown <> (n IN (SELECT n FROM best WHERE rank = 1))"
    )
