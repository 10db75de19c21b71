# SPDX-License-Identifier: LGPL-2.1-or-later
"""What all event streams have in common: comments where nothing comes, and clients that do not read."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import call, frames, text_of
from tests.bridge.test_bridge_sse import link

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bridge.bridge_harness import Bridge


@pytest.mark.parametrize("which", ["sse", "GET", "POST"])
def test_a_silent_stream_carries_comments(alone: Callable[..., Bridge], which: str) -> None:
    bridge = alone("--keepalive", "0.2")
    with contextlib.ExitStack() as stack:
        if which == "sse":
            stream = stack.enter_context(link(bridge)).stream
        else:
            client = bridge.client().open(capabilities={"elicitation": {}})
            body = None if which == "GET" else call("ask", method="elicitation/create")
            headers = {**client.headers, "Accept": "text/event-stream"}
            reply = stack.enter_context(client.http.stream(which, client.path, json=body, headers=headers))
            stream = frames(reply)
        comments = [each for each in (next(stream) for _ in range(5)) if each.comment]
    assert len(comments) >= 3
    assert {each.comment for each in comments} == {"keepalive"}
    assert not any(each.data or each.id for each in comments)


def resident(pid: int) -> int:
    """MiB of memory that *pid* has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) >> 10


@pytest.mark.parametrize("which", ["sse", "POST"])
def test_a_client_that_does_not_read_takes_little_and_holds_nobody_up(
    alone: Callable[..., Bridge], tmp_path: Path, which: str
) -> None:
    bridge = alone()
    other = bridge.client().open()
    lines, end = 15_000, tmp_path / "end"
    flood = call("flood", 1, lines=lines, end=str(end))
    with contextlib.ExitStack() as stack:
        if which == "sse":
            client = stack.enter_context(link(bridge))
            client.open()
            before = resident(bridge.pid)
            client.post(flood)
            stream = client.stream
        else:
            mine = bridge.client().open()
            reply = stack.enter_context(mine.http.stream("POST", mine.path, json=flood, headers=mine.headers))
            before = resident(bridge.pid)
            stream = frames(reply)
        asked = 0
        while asked < 50 or not end.exists():
            asked += 1
            assert text_of(other.ask(call("echo", text=str(asked)))) == str(asked)
        seen = [each.message for each in stream if each.data] if which == "POST" else []
        while not seen or "id" not in seen[-1]:
            seen.append(next(each for each in stream if each.data).message)
        assert resident(bridge.pid) - before < 24
    # Of its notifications some were dropped, the answer was not.
    assert text_of(seen[-1]) == "flooded"
    assert 100 < len(seen) < lines
