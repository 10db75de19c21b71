# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is opened below a directory, and what is refused."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.beneath import open_beneath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("path", "links", "number"),
    [
        ("../secret", True, errno.EXDEV),
        ("/etc/passwd", True, errno.EXDEV),
        ("out", True, errno.EXDEV),
        ("in", False, errno.ELOOP),
        ("missing", True, errno.ENOENT),
        ("file\0.yaml", True, errno.EINVAL),
    ],
)
def test_what_is_not_below_is_refused(tmp_path: Path, path: str, links: bool, number: int) -> None:
    (tmp_path / "secret").write_text("")
    base = tmp_path / "base"
    base.mkdir()
    (base / "file").write_text("")
    (base / "out").symlink_to("../secret")
    (base / "in").symlink_to("file")
    with _directory(base) as directory, pytest.raises(OSError, match=re.escape(os.strerror(number))) as refused:
        open_beneath(directory, path, os.O_RDONLY, links=links)
    assert refused.value.errno == number


def test_a_symlink_that_stays_below_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "in").symlink_to("file")
    with _directory(tmp_path) as directory:
        descriptor = open_beneath(directory, "in", os.O_RDONLY)
    with open(descriptor) as file:  # noqa: PTH123 - a descriptor
        assert file.read() == "text"
        assert not os.get_inheritable(descriptor)
