# SPDX-License-Identifier: LGPL-2.1-or-later
"""Killed at any step, a tree has the old or the new key and release, and goes on from there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from signed_parts import EXAMPLE, Site, payload_of
from signing_process import SCENARIOS

from mcpd.clients.errors import SignatureError
from mcpd.clients.keys import id_of_key, parse_public_key
from mcpd.clients.payload import id_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: hundreds of runs each wait for the disk several times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


def key_of_files(site: Site) -> set[str]:
    return {
        id_of_key(parse_public_key(path.read_bytes(), str(path)))
        for path in (site.tree.verification_key, site.tree.verification_key_raw)
    }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(scenario: str, work: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-W", "error", str(here / "signing_process.py"), "kill", scenario, str(work)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
    runs = int(done.stdout)
    assert runs > 15

    prepare, change = SCENARIOS[scenario]
    has_old = prepare is not SCENARIOS["first"][0]
    old = EXAMPLE if has_old else None
    new = EXAMPLE if scenario in {"rotate", "lost"} else payload_of("new")
    seen = set()
    for number in range(1, runs + 1):
        where = f"killed before step {number}"
        site = Site(work / str(number))
        # What only reads finds a whole release, whose key is known.
        if scenario != "repair":
            latest = site.releases.latest("cursor", "default")
            payload = latest.payload if latest else None
            assert payload in (old, new), where
            seen.add((repr(payload), latest is not None and latest.signing_key_id == site.keys.current()))
        # What signs ends what was begun, with one key that all public files are of.
        if scenario == "lost" and not site.signing_key.exists():
            with pytest.raises(SignatureError, match="missing"):
                site.keys.sign(b"data")
        else:
            _, key = site.keys.sign(b"data")
            assert key == site.keys.current(), where
            assert key_of_files(site) == {key}, where
            assert [record.key_id for record in site.keys.listing() if record.retired_at is None] == [key], where
            assert (site.releases.latest("cursor", "default") is not None) or not has_old, where
        # And the same change again does all of it.
        change(site)
        final = site.again().releases.latest("cursor", "default")
        assert final is not None
        assert final.payload == new, where
        assert final.signing_key_id == site.keys.current(), where
        assert [str(path) for path in site.tree.root.rglob("*~tmp")] == [], where
        known = {id_of(payload) for payload in (old, new) if payload is not None}
        assert {release.artifact_id for release in site.releases.history("cursor", "default")} <= known, where
    assert len(seen) == (0 if scenario == "repair" else 2)
