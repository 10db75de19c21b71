# SPDX-License-Identifier: LGPL-2.1-or-later
"""Archives made to write elsewhere, to fill the disk, or to be something else than they look like."""

from __future__ import annotations

import io
import lzma
import os
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.install import unpack
from mcpd.install.unpack import Refused, checked_name, extract, leads_outside, member

pytestmark = pytest.mark.process

PROGRAM = Path(unpack.__file__)
MIB = 1 << 20


def tar(*members: tuple[str, bytes | dict[str, Any]], mode: str = "w") -> bytes:
    """A tar file of files, or of what the attributes of a ``TarInfo`` say."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, what in members:
            info = tarfile.TarInfo(name)
            content = what if isinstance(what, bytes) else b""
            info.size = len(content)
            for key, value in (what if isinstance(what, dict) else {}).items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(*members: tuple[str, bytes] | tuple[str, bytes, int], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file of files, each with the mode that Unix has for it, if one is given."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content, *mode in members:
            info = zipfile.ZipInfo(name)
            info.orig_filename = info.filename = name
            info.compress_type = method
            info.external_attr = (mode[0] if mode else 0o644) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def unpacked(tmp_path: Path, data: bytes) -> Path:
    """Where *data* was unpacked to."""
    archive, target = tmp_path / "archive", tmp_path / "place/target"
    archive.write_bytes(data)
    target.parent.mkdir(exist_ok=True)
    extract(str(archive), str(target))
    return target


def refused(tmp_path: Path, data: bytes) -> str:
    """Why *data* is not unpacked; nothing came out beside the target."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Refused) as caught:
        unpacked(tmp_path, data)
    (place,) = (tmp_path / "place").iterdir()
    assert place.name == "target"
    assert {*tmp_path.iterdir()} - {*before} == {tmp_path / "archive", tmp_path / "place"}
    return str(caught.value)


BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
LINK = {"type": tarfile.SYMTYPE}
HARD = {"type": tarfile.LNKTYPE}
DIRECTORY = {"type": tarfile.DIRTYPE}
ORDINARY = (
    ("project/", DIRECTORY),
    ("project/server.py", b"print()"),
    ("project/a/b/data", b"\0" * 9000),
)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar_files_in_every_compression(tmp_path: Path, mode: str) -> None:
    target = unpacked(tmp_path, tar(*ORDINARY, mode=mode))
    assert (target / "project/server.py").read_bytes() == b"print()"
    assert (target / "project/a/b/data").stat().st_size == 9000


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_files_in_every_compression(tmp_path: Path, method: int) -> None:
    members = (("project/", b""), ("project/server.py", b"print()"), ("project/a/b/data", b"\0" * 9000))
    target = unpacked(tmp_path, zipped(*members, method=method))
    assert (target / "project/server.py").read_bytes() == b"print()"
    assert (target / "project/a/b/data").stat().st_size == 9000


def test_modes_are_those_of_programs_and_of_files(tmp_path: Path) -> None:
    by_tar = tar(
        ("run", {"mode": 0o7711}), ("read", {"mode": 0o4666}), ("d", {"type": tarfile.DIRTYPE, "mode": 0o1777})
    )
    by_zip = zipped(("run", b"", stat.S_IFREG | 0o6755), ("read", b"", 0o600), ("d/", b"", stat.S_IFDIR | 0o700))
    for number, data in enumerate((by_tar, by_zip)):
        (tmp_path / str(number)).mkdir()
        target = unpacked(tmp_path / str(number), data)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()}
        assert modes == {"run": 0o755, "read": 0o644, "d": 0o755}


def test_links_inside_stay(tmp_path: Path) -> None:
    data = tar(
        ("./", DIRECTORY),
        ("./bin/tool", LINK | {"linkname": "../lib/tool.js"}),
        ("./lib/tool.js", b"//"),
        ("./lib/same.js", HARD | {"linkname": "./lib/tool.js"}),
        ("./lib/", DIRECTORY),
    )
    target = unpacked(tmp_path, data)
    assert (target / "bin/tool").readlink() == Path("../lib/tool.js")
    assert (target / "lib/same.js").read_bytes() == b"//"
    assert (target / "lib/same.js").stat().st_nlink == 1


TARS = {
    "absolute": ([("/etc/passwd", b"x")], "absolute"),
    "climbing": ([("../escaped", b"x")], "leads outside"),
    "climbing inside": ([("a/b/../../../escaped", b"x")], "leads outside"),
    "climbing in the end": ([("a/..", DIRECTORY)], "leads outside"),
    "backslashes": ([("..\\escaped", b"x")], "backslashes"),
    "control characters": ([("a\x1b[2Jb", b"x")], "control characters"),
    "newline": ([("a\nerror: b", b"x")], "control characters"),
    "no UTF-8": ([("a\udcffb", b"x")], "not in UTF-8"),
    "empty parts": ([("a//b", b"x")], "empty parts"),
    "dots": ([("a/./b", b"x")], "empty parts"),
    "a file that is the target": ([("./", b"x")], "without a name"),
    "too long a name": ([("a" * 256, b"x")], "too long"),
    "too long a path": ([("/".join(["a" * 200] * 6), b"x")], "too long"),
    "too deep": ([("/".join("a" * 65), b"x")], "too deep"),
    "a pipe": ([("pipe", {"type": tarfile.FIFOTYPE})], "neither"),
    "a device": ([("zero", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5})], "neither"),
    "a disk": ([("disk", {"type": tarfile.BLKTYPE, "devmajor": 8})], "neither"),
    "holes": ([("holes", {"type": tarfile.GNUTYPE_SPARSE})], "neither"),
    "of a type nobody knows": ([("odd", {"type": b"Z"})], "neither"),
    "an absolute link": ([("away", LINK | {"linkname": "/etc"})], "leads outside"),
    "a climbing link": ([("a/away", LINK | {"linkname": "../../x"})], "leads outside"),
    "a link that climbs behind a name": ([("away", LINK | {"linkname": "a/../../x"})], "leads outside"),
    "a link without an end": ([("away", LINK)], "leads outside"),
    "a hard link outside": ([("away", HARD | {"linkname": "../../archive"})], "leads outside"),
    "an absolute hard link": ([("away", HARD | {"linkname": "/etc/passwd"})], "absolute"),
    "a hard link to what comes later": ([("b", HARD | {"linkname": "a"}), ("a", b"x")], "not an earlier file"),
    "a hard link to a link": (
        [("b", LINK | {"linkname": "c"}), ("a", HARD | {"linkname": "b"})],
        "not an earlier file",
    ),
    "a hard link to itself": ([("a", HARD | {"linkname": "a"})], "not an earlier file"),
    "twice": ([("a", b"1"), ("a", b"2")], "listed twice"),
    "twice by another name": ([("a", b"1"), ("./a", b"2")], "listed twice"),
    "a directory that is a file": ([("a", b"1"), ("a", DIRECTORY)], "listed twice"),
    "a file that is a directory": ([("a/b", b"1"), ("a", b"2")], "listed twice"),
    "a link in the place of a directory": ([("a/b", b"1"), ("a", LINK | {"linkname": "c"})], "listed twice"),
    "below a file": ([("a", b"1"), ("a/b", b"2")], "not a directory"),
    "below a link": ([("c/d", b"1"), ("a", LINK | {"linkname": "c"}), ("a/b", b"2")], "not a directory"),
    "below what is below a link": ([("a", LINK | {"linkname": "c"}), ("a/b/e", b"2")], "not a directory"),
}


@pytest.mark.parametrize("which", TARS)
def test_hostile_tar_files(tmp_path: Path, which: str) -> None:
    members: Any
    members, fault = TARS[which]
    said = refused(tmp_path, tar(*members))
    assert fault in said
    assert said.isprintable()


ZIPS = {
    "absolute": ([("/etc/passwd", b"x")], "absolute"),
    "climbing": ([("a/../../escaped", b"x")], "leads outside"),
    "backslashes": ([("..\\escaped", b"x")], "backslashes"),
    "control characters": ([("a\x07b", b"x")], "control characters"),
    "an absolute link": ([("away", b"/etc", stat.S_IFLNK | 0o777)], "leads outside"),
    "a climbing link": ([("a/away", b"../../x", stat.S_IFLNK | 0o777)], "leads outside"),
    "an endless link": ([("away", b"a" * 2 * MIB, stat.S_IFLNK | 0o777)], "larger than"),
    "below a link": ([("c/d", b""), ("a", b"c", stat.S_IFLNK | 0o777), ("a/b", b"x")], "not a directory"),
    "a pipe": ([("pipe", b"", stat.S_IFIFO | 0o644)], "neither"),
    "a socket": ([("socket", b"", stat.S_IFSOCK | 0o644)], "neither"),
    "a device": ([("zero", b"", stat.S_IFCHR | 0o644)], "neither"),
    "below a file": ([("a", b"1"), ("a/b", b"2")], "not a directory"),
    "too deep": ([("/".join("a" * 65), b"x")], "too deep"),
}


@pytest.mark.parametrize("which", ZIPS)
def test_hostile_zip_files(tmp_path: Path, which: str) -> None:
    members: Any
    members, fault = ZIPS[which]
    assert fault in refused(tmp_path, zipped(*members))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["manifest.json", "./manifest.json"])
def test_a_file_that_is_there_twice_is_not_read_either(tmp_path: Path, second: str) -> None:
    data = zipped(("manifest.json", b"{}"), (second, b"[]"))
    assert "manifest.json: listed twice" in refused(tmp_path, data)
    with pytest.raises(Refused, match="listed twice"):
        member(str(tmp_path / "archive"), "manifest.json")


def test_encrypted_files_are_named(tmp_path: Path) -> None:
    data = bytearray(zipped(("open", b"x"), ("closed", b"y")))
    entry = data.rindex(b"PK\1\2")
    data[entry + 8] |= 1
    assert "closed: is encrypted" in refused(tmp_path, bytes(data))


def test_a_name_behind_nul_does_not_count(tmp_path: Path) -> None:
    data = zipped(("harmless-name", b"x")).replace(b"harmless-name", b"harm\0/../name")
    assert "control characters" in refused(tmp_path, data)


def test_files_that_share_their_bytes(tmp_path: Path) -> None:
    """One kernel of zeros that many entries of the central directory name."""
    data = zipped(*((f"{number:04}", b"\0" * MIB) for number in range(3)))
    start = data.index(b"PK\1\2")
    table = bytearray(data[start:])
    for found in range(len(table) - 46):
        if table[found : found + 4] == b"PK\1\2":
            table[found + 42 : found + 46] = bytes(4)
    assert "overlaps" in refused(tmp_path, data[:start] + bytes(table))


def test_a_file_that_reaches_into_the_table_of_contents(tmp_path: Path) -> None:
    data = bytearray(zipped(("a", b"x" * 100), method=zipfile.ZIP_STORED))
    entry = data.index(b"PK\1\2")
    data[entry + 20 : entry + 28] = struct.pack("<II", 150, 150)
    assert "central directory" in refused(tmp_path, bytes(data))


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MODEST_BYTES", MIB)
    zeros = bytes(20 * MIB)
    bombs = {
        "one.zip": zipped(("zeros", zeros)),
        "many.zip": zipped(*((str(number), bytes(MIB)) for number in range(20))),
        "one.tar.gz": tar(("zeros", zeros), mode="w:gz"),
        "one.tar.xz": tar(("zeros", zeros), mode="w:xz"),
        "many.tar.bz2": tar(*((str(number), bytes(MIB)) for number in range(20)), mode="w:bz2"),
        "links.tar.gz": tar(
            ("0", os.urandom(MIB // 2)), *((str(n), HARD | {"linkname": "0"}) for n in range(1, 200)), mode="w:gz"
        ),
    }
    for name, data in bombs.items():
        (tmp_path / name).mkdir()
        assert "the limit for its size" in refused(tmp_path / name, data)
        written = sum(path.stat().st_size for path in (tmp_path / name / "place").rglob("*") if path.is_file())
        assert written <= max(MIB, unpack.MAX_RATIO * len(data))


def test_a_size_that_is_a_lie(tmp_path: Path) -> None:
    data = bytearray(zipped(("zeros", bytes(5 * MIB))))
    entry = data.index(b"PK\1\2")
    data[entry + 24 : entry + 28] = struct.pack("<I", 10)
    with pytest.raises((Refused, zipfile.BadZipFile)):
        unpacked(tmp_path, bytes(data))
    assert (tmp_path / "place/target/zeros").stat().st_size <= 10


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_MEMBERS", 40)
    hosts = {
        "files.tar": tar(*((str(number), b"") for number in range(50))),
        "same.tar": tar(*(("d", DIRECTORY) for _ in range(50))),
        "deep.tar": tar(("/".join("abcdefghijklmnopqrst"), b""), ("/".join("bbcdefghijklmnopqrstuv"), b"")),
        "files.zip": zipped(*((str(number), b"") for number in range(50))),
        "deep.zip": zipped(("/".join("abcdefghijklmnopqrst"), b""), ("/".join("bbcdefghijklmnopqrstuv"), b"")),
    }
    for name, data in hosts.items():
        (tmp_path / name).mkdir()
        assert "more than 40" in refused(tmp_path / name, data)


def test_what_ends_like_a_zip_file_is_read_by_how_it_begins(tmp_path: Path) -> None:
    target = unpacked(tmp_path, tar(("from-tar", b"")) + zipped(("from-zip", b"")))
    assert [path.name for path in target.iterdir()] == ["from-tar"]


def test_one_member_is_read(tmp_path: Path) -> None:
    archive = tmp_path / "bundle"
    archive.write_bytes(zipped(("manifest.json", b"{}"), ("big", bytes(2 * MIB)), ("d/", b"")))
    assert member(str(archive), "manifest.json") == b"{}"
    for name, fault in {
        "big": "larger than",
        "none": "not contain none",
        "d": "not contain d",
        "../big": "not contain",
    }.items():
        with pytest.raises(Refused, match=fault):
            member(str(archive), name)
    archive.write_bytes(tar(("manifest.json", b"{}")))
    with pytest.raises(Refused, match="not a zip file"):
        member(str(archive), "manifest.json")


def run(*arguments: str | Path) -> tuple[int, bytes, str]:
    """How the program ends, by the interpreter that every system has."""
    command = ["/usr/bin/python3", "-IS", str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


def test_the_program_unpacks_and_reads(tmp_path: Path) -> None:
    archive = tmp_path / "bundle.mcpb"
    archive.write_bytes(zipped(("manifest.json", b'{"name": "x"}')))
    assert run("member", archive, "manifest.json") == (0, b'{"name": "x"}', "")
    assert run("extract", archive, tmp_path / "out") == (0, b"", "")
    assert (tmp_path / "out/manifest.json").is_file()


NO_ARCHIVES = {
    "empty": b"",
    "text": b"hello, this is no archive at all\n" * 100,
    "zip": b"PK\3\4" + bytes(100),
    "zip without a table": zipped(("a", b"b"))[:-30],
    "gzip that ends": tar(("a", os.urandom(90_000)), mode="w:gz")[:40_000],
    "xz that ends": tar(("a", os.urandom(90_000)), mode="w:xz")[:40_000],
    "tar that ends": tar(("a", os.urandom(90_000)))[:40_000],
    "unknown compression": zipped(("a", b"b")).replace(b"\x14\0\0\0\x08\0", b"\x14\0\0\0\x63\0"),
}


@pytest.mark.parametrize("which", NO_ARCHIVES)
def test_the_program_says_in_one_line_what_is_wrong(tmp_path: Path, which: str) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(NO_ARCHIVES[which])
    code, _, said = run("extract", archive, tmp_path / "out")
    assert code == 1
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_the_program_has_so_much_memory_and_no_more(tmp_path: Path) -> None:
    """An attribute of a tar file may be of any size, and is read whole."""
    data = bytearray(tar(("a", {"pax_headers": {"comment": "é"}}), mode="w"))
    data[124:136] = b"%011o\0" % (7 << 30)
    data[148:156] = b"        "
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / "archive").write_bytes(bytes(data))
    code, _, said = run("extract", tmp_path / "archive", tmp_path / "out")
    assert (code, said) == (1, "error: reading it takes too much memory\n")


PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "a\\b", "x\n"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE]
)
MODES = st.sampled_from([0, 0o755, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO])


@given(st.lists(st.tuples(NAMES, KINDS, NAMES), min_size=1, max_size=8))
def test_whatever_a_tar_file_says_nothing_leaves_the_target(members: list[tuple[str, bytes, str]]) -> None:
    stays_inside(tar(*((name, {"type": kind, "linkname": target}) for name, kind, target in members)))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@given(st.lists(st.tuples(NAMES, MODES, NAMES), min_size=1, max_size=8))
def test_whatever_a_zip_file_says_nothing_leaves_the_target(members: list[tuple[str, int, str]]) -> None:
    stays_inside(zipped(*((name, target.encode(), mode) for name, mode, target in members)))


def stays_inside(data: bytes) -> None:
    """Unpack *data*, or not, and look at what is there then."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with suppress(Refused):
            unpacked(place, data)
        assert {path.name for path in place.iterdir()} == {"archive", "place"}
        assert [path.name for path in (place / "place").iterdir()] == ["target"]
        root = place / "place/target"
        for path in root.rglob("*"):
            if path.is_symlink():
                assert Path(os.path.normpath(path.parent / path.readlink())).is_relative_to(root)


@given(st.sampled_from([zipped, tar]), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6))
def test_a_damaged_archive_is_an_error_of_a_known_kind(make: Any, changes: list[tuple[int, int]]) -> None:
    data = bytearray(make(("a/b", b"content"), ("c", b"more")))
    for place, value in changes:
        data[place % len(data)] = value
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "archive").write_bytes(bytes(data))
        with suppress(Refused, OSError, EOFError, ValueError, NotImplementedError, *BROKEN):
            extract(f"{directory}/archive", f"{directory}/target")
        assert {path.name for path in Path(directory).iterdir()} <= {"archive", "target"}


@given(st.text(st.characters(codec=None), max_size=30))
def test_a_name_that_passes_is_a_path_below(name: str) -> None:
    with suppress(Refused):
        found = checked_name(name)
        assert not found.startswith("/")
        assert not {"..", "."} & set(found.split("/"))
        assert found.encode() or name.strip("./") == ""
        assert os.path.normpath(f"/target/{found}") == f"/target/{found}".removesuffix("/")


def test_links_are_judged_by_where_they_are() -> None:
    assert not leads_outside("a/b", "../c")
    assert leads_outside("a", "../c")
    assert leads_outside("a/b", "c/../../../d")


if sys.version_info >= (3, 14):

    def test_zstd(tmp_path: Path) -> None:
        assert (unpacked(tmp_path, tar(*ORDINARY, mode="w:zst")) / "project/server.py").is_file()
