# SPDX-License-Identifier: LGPL-2.1-or-later
"""Looks into JSON with jq: picks, filters, counts, sorts and reshapes it.

jq sees what it is given, and nothing else: no files, no modules and no environment variables. Its language is described
at https://jqlang.org/manual/.
"""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import tempfile
from json import dumps
from shutil import which
from typing import Any

MOST_OUTPUT = 4 << 20
MOST_MEMORY = 512 << 20
MOST_SECONDS = 20
# One argument of a program may have 128 KiB.
MOST_WORD = 100_000
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def query(
    filter: str,
    json: Any = None,
    text: str = "",
    variables: dict[str, Any] | None = None,
    raw: bool = False,
    slurp: bool = False,
    raw_input: bool = False,
    pretty: bool = False,
) -> str:
    """Run a jq filter over JSON; each result is a line.

    Args:
        filter: What to do, in jq's language: ".items[] | select(.price > 10) | .name"
        json: The value to work on.
        text: Instead of it a text with any number of JSON values.
        variables: Values that the filter knows as $name.
        raw: Write results that are strings without quotes (jq -r).
        slurp: Make one array of all values of the text (jq -s).
        raw_input: Take each line of the text as a string (jq -R).
        pretty: Write results with indentation, on several lines.
    """
    if text and json is not None:
        raise ValueError("json, text: give one of them")
    if len(filter.encode()) > MOST_WORD:
        raise ValueError(f"filter: it has more than {MOST_WORD} bytes")
    options = {"-r": raw, "-s": slurp, "-R": raw_input, "-c": not pretty}
    argv = [_program(), "-M", "-L", "/nonexistent", *(option for option, chosen in options.items() if chosen)]
    for name, value in (variables or {}).items():
        if not NAME.fullmatch(name) or len(encoded := dumps(value)) > MOST_WORD:
            raise ValueError(f"variables: {name[:100]!r} is no name for one, or has more than {MOST_WORD} bytes")
        argv += ["--argjson", name, encoded]
    # Nothing can be imported behind a definition, and what begins with one is no option.
    given = text if text or (raw_input and json is None) else dumps(json)
    return _run([*argv, f"def _: .; {filter}"], given)


def _program() -> str:
    program = which("jq")
    if program is None:
        raise RuntimeError("jq is not installed on this machine; it is in the package jq")
    return program


def _limit() -> None:
    """What jq may take; a script cannot set it from outside."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_OUTPUT, MOST_OUTPUT))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def _run(argv: list[str], given: str) -> str:
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        with subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env={"HOME": "/nonexistent"},
            preexec_fn=_limit,  # noqa: PLW1509 - there are no threads here
        ) as process:
            try:
                status = process.wait(MOST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise TimeoutError(f"jq was stopped after {MOST_SECONDS} s: give it less, or another filter") from None
        stdout.seek(0)
        stderr.seek(0)
        written = stdout.read(MOST_OUTPUT + 1)
        if status == -signal.SIGXFSZ or len(written) >= MOST_OUTPUT:
            raise ValueError(f"the results have more than {MOST_OUTPUT >> 20} MiB: have the filter pick fewer")
        if status:
            why = stderr.read(2000).decode(errors="replace").replace("def _: .; ", "").strip()
            raise ValueError(why or f"jq ended with {status}")
        return written.decode(errors="replace").removesuffix("\n")
