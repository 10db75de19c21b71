# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compile the Python files below a directory, or copy their byte code from a cache: ``bytecode.py DIRECTORY CACHE``.

Runs in the sandbox, without network. Byte code depends only on the source and the version of Python, so cached files
are named by the SHA-256 of the source; Python corrects the path of the source when it imports them. The byte code is
not checked against the source at import, since a generation never changes.
"""

import contextlib
import hashlib
import importlib.util
import os
import py_compile
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

MODE = py_compile.PycInvalidationMode.UNCHECKED_HASH
CHUNK = 32
"""Number of files passed to a worker process at a time."""


def main(directory: str, cache: str) -> None:
    """Compile everything in *directory*; skip files with syntax errors."""
    known = Path(cache, sys.implementation.cache_tag or "")
    known.mkdir(exist_ok=True)
    sources = [Path(place, name) for place, _, names in os.walk(directory) for name in names if name.endswith(".py")]
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(partial(provide, known), sources, chunksize=CHUNK):
            pass


def provide(known: Path, source: Path) -> None:
    """Write the byte code of *source* to where Python looks for it."""
    cached = known / hashlib.sha256(source.read_bytes()).hexdigest()
    target = Path(importlib.util.cache_from_source(str(source)))
    target.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(cached, target)
        return
    with contextlib.suppress(py_compile.PyCompileError, ValueError, RecursionError):
        py_compile.compile(str(source), str(target), source.name, doraise=True, invalidation_mode=MODE)
        # The process id is not unique: each sandbox has its own, and another job may compile the same file.
        part = cached.with_name(f"{cached.name}.{os.urandom(8).hex()}")
        shutil.copyfile(target, part)
        part.rename(cached)


if __name__ == "__main__":
    main(*sys.argv[1:])
