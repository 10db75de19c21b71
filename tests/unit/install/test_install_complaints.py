# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is said about a command that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.errors import BuildFailed, IntegrityMismatch, NoSpace, SourceUnavailable
from mcpd.install.complaints import Program
from mcpd.install.sources.npm import PROGRAM as NPM
from mcpd.install.sources.pypi import PIP, UV
from mcpd.model import strip_credentials

NPM_LOG = """npm warn Unknown user config "nodedir".
npm error code ETARGET
npm error notarget No matching version found for fake-server@9.9.9.
npm error notarget In most cases you or one of your dependencies are requesting
npm error notarget a package version that doesn't exist.
npm error A complete log of this run can be found in: /gen/a/1/.mcpd-build/home/.npm/_logs/1-debug-0.log
"""
NPM_STACK = """npm error code ECONNREFUSED
npm error syscall connect
npm error errno ECONNREFUSED
npm error FetchError: request to http://r.test/x failed, reason: connect ECONNREFUSED
npm error     at ClientRequest.<anonymous> (/usr/lib/node_modules/npm/index.js:130:14)
npm error     at onSocketNT (node:_http_client:904:5) {
npm error   code: 'ECONNREFUSED',
npm error }
npm error
npm error If you are behind a proxy, please make sure that the 'proxy' config is set properly.
npm error A complete log of this run can be found in: /gen/a/1/.mcpd-build/home/.npm/_logs/1-debug-0.log
"""
NPM_404 = """npm error code E404
npm error 404 Not Found - GET https://r.test/x - Not found
npm error 404
npm error 404  'x@*' is not in this registry.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git folder.
"""
NPM_404_NEWER = """npm error code E404
npm error 404 Not Found - GET https://r.test/@a%2fx - Not found
npm error 404
npm error 404  The requested resource '@a/x@1.2' could not be found or you do not have permission to access it.
"""
UV_ABSENT = """error: No solution found when resolving dependencies
  cause: Because nosuch was not found in the package registry and you require nosuch==3, we can conclude that your \
requirements are unsatisfiable.
"""
PIP_ABSENT = """ERROR: Could not find a version that satisfies the requirement nosuch==3 (from versions: none)
ERROR: No matching distribution found for nosuch==3
"""
PIP_OFFLINE = "WARNING: Retrying (Retry(total=0)) after connection broken by 'Refused': /simple/nosuch/\n" + PIP_ABSENT
PIP_BUILD = """  error: subprocess-exited-with-error

  × Preparing metadata (pyproject.toml) did not run successfully.
  ╰─> [15 lines of output]
      Traceback (most recent call last):
        File "/gen/a/1/.mcpd-build/build/source/setup.py", line 1, in <module>
      RuntimeError: no compiler in /gen/a/1/.mcpd-build/build/source
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
error: metadata-generation-failed
hint: See above for details.
"""


@pytest.mark.parametrize(
    ("program", "stderr", "network", "kind"),
    [
        (PIP, "OSError: [Errno 28] No space left on device", True, NoSpace),
        (NPM, "npm error code ENOSPC", True, NoSpace),
        (PIP, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", False, IntegrityMismatch),
        (NPM, "npm error code EINTEGRITY", True, IntegrityMismatch),
        (UV, "error: Hash mismatch for `x`", True, IntegrityMismatch),
        (Program(), "fatal: https://user:secret@h.test/x not found", True, SourceUnavailable),
        (Program(), "error: boom", False, BuildFailed),
    ],
)
def test_what_a_failed_command_means(program: Program, stderr: str, *, network: bool, kind: type[Exception]) -> None:
    error = program.explain("fetching x", Path("/build"), network=network, code=1, stderr=stderr)
    assert type(error) is kind
    assert "fetching x" in error.message
    assert "secret" not in error.message


def test_credentials_are_stripped() -> None:
    assert strip_credentials("see https://a:b@h.test/x and ssh://c@i") == "see https://h.test/x and ssh://i"


@pytest.mark.parametrize(
    ("program", "stderr", "network", "said"),
    [
        (NPM, NPM_LOG, True, "notarget No matching version found for fake-server@9.9.9."),
        (NPM, NPM_STACK, True, "FetchError: request to http://r.test/x failed, reason: connect ECONNREFUSED"),
        (PIP, PIP_OFFLINE, True, PIP_ABSENT.rstrip()),
        (NPM, "npm error code EWEIRD\n", True, "code EWEIRD"),
        (
            PIP,
            "Looking in links: /x\nERROR: No matching distribution found for a==9",
            True,
            "ERROR: No matching distribution found for a==9",
        ),
        (Program(), "".join(f"fatal: {n}\n" for n in range(9)), True, "fatal: 0\nfatal: 1\nfatal: 2\nfatal: 3"),
        (PIP, PIP_BUILD, False, "RuntimeError: no compiler in build/source"),
        (Program(), "one\ntwo\nthree\nfour\nthe end of /gen/a/1", False, "two\nthree\nfour\nthe end of ."),
        (Program(), "", False, "the command exited with status 3"),
    ],
)
def test_a_failed_command_is_quoted_with_the_lines_that_matter(
    program: Program, stderr: str, *, network: bool, said: str
) -> None:
    error = program.explain("fetching x", Path("/gen/a/1"), network=network, code=3, stderr=stderr)
    assert error.message == f"fetching x failed: {said}"


@pytest.mark.parametrize(
    ("program", "stderr", "said"),
    [
        (NPM, NPM_404, "there is no package x in the configured package indexes"),
        (NPM, NPM_404_NEWER, "there is no package @a/x in the configured package indexes"),
        (UV, UV_ABSENT, "there is no package nosuch in the configured package indexes"),
        (
            PIP,
            PIP_ABSENT,
            "there is no package nosuch in the configured package indexes, or it has no wheel for this system",
        ),
    ],
)
def test_a_package_that_no_registry_has_is_said_in_one_sentence(program: Program, stderr: str, said: str) -> None:
    error = program.explain("resolving x", Path("/gen/a/1"), network=True, code=1, stderr=stderr)
    assert error.message == f"resolving x failed: {said}"
