# SPDX-License-Identifier: LGPL-2.1-or-later
"""Streams whose clients are cut off: what they missed waits for them (2025-03-26 to 2025-11-25)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import pytest
from mcp import Client as SdkClient

from mcpd.bridge.handshake.resume import KEPT_EVENTS
from tests.bridge.bridge_harness import PATIENCE, Client, Frame, call, descendants, eventually, frames, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

    from tests.bridge.bridge_harness import Bridge

ELICIT: dict[str, Any] = {"elicitation": {}}
QUESTION = call("ask", "q", method="elicitation/create", params={})


@contextlib.contextmanager
def post(client: Client, message: object) -> Iterator[Iterator[Frame]]:
    """The stream that answers *message*."""
    with client.http.stream("POST", client.path, json=message, headers=client.headers) as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        yield frames(reply)


@contextlib.contextmanager
def get(client: Client, last_event_id: str = "") -> Iterator[Iterator[Frame]]:
    """The stream that goes on after *last_event_id*, or the session's own."""
    headers = {**client.headers, "Accept": "text/event-stream"}
    if last_event_id:
        headers["Last-Event-ID"] = last_event_id
    with client.http.stream("GET", client.path, headers=headers) as reply:
        assert reply.status_code == 200, reply.read()
        yield frames(reply)


def refused(client: Client, last_event_id: str) -> httpx2.Response:
    return client.http.get(client.path, headers={**client.headers, "Last-Event-ID": last_event_id})


def answer(client: Client, question: Frame, result: object) -> None:
    reply = {"jsonrpc": "2.0", "id": question.message["id"], "result": result}
    assert client.post(reply).status_code == 202


# ---------------------------------------------------------------------------------------- ids and priming


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
def test_only_clients_of_2025_11_25_get_an_event_without_data_first(bridge: Bridge, version: str) -> None:
    client = bridge.client().open(version)
    with post(client, call("progress", 1, {"progressToken": "t"}, steps=2)) as stream:
        posted = list(stream)
    with get(client) as stream:
        client.post(call("change"))
        heard = [next(stream)]
        if version == "2025-11-25":
            heard.append(next(stream))
    assert heard[-1].message["method"] == "notifications/tools/list_changed"
    for seen in (posted, heard):
        if version == "2025-11-25":
            assert (seen[0].data, seen[0].retry) == ("", "1000")
        else:
            assert all(each.data and not each.retry for each in seen)
    ids = [each.id for each in posted + heard]
    assert all(ids)
    assert len(set(ids)) == len(ids)


def test_ids_tell_nothing_of_other_sessions(bridge: Bridge) -> None:
    tags = set()
    for _ in range(5):
        with post(bridge.client().open(), call("log", text="x")) as stream:
            tags.add(next(stream).id.split("-")[0])
    assert len(tags) == 5
    assert all(re.fullmatch("[0-9a-f]{16}", tag) for tag in tags)


def test_a_call_without_a_session_has_no_ids(bridge: Bridge) -> None:
    reply = bridge.client().post(call("progress", 1, {"progressToken": "t"}, steps=2))
    assert reply.headers["content-type"] == "text/event-stream"
    assert "id:" not in reply.text


# ---------------------------------------------------------------------------------------- streams of calls


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
def test_the_answer_of_a_call_waits_for_a_client_that_was_cut_off(bridge: Bridge, version: str) -> None:
    client = bridge.client().open(version, ELICIT)
    with post(client, QUESTION) as stream:
        question = next(each for each in stream if each.data)
    answer(client, question, "while it was away")
    with get(client, question.id) as stream:
        missed = list(stream)
    assert [each.message["id"] for each in missed] == ["q"]
    assert "while it was away" in text_of(missed[0].message)
    with get(client, missed[0].id) as stream:
        assert list(stream) == []


def test_a_client_that_only_saw_the_first_event_gets_all_others(bridge: Bridge) -> None:
    client = bridge.client().open(capabilities=ELICIT)
    with post(client, QUESTION) as stream:
        first = next(stream)
    assert not first.data
    with get(client, first.id) as stream:
        question = next(stream)
        answer(client, question, "late")
        assert "late" in text_of(next(stream).message)
        assert list(stream) == []


def test_a_call_goes_on_with_the_client_that_came_back(bridge: Bridge) -> None:
    client = bridge.client().open(capabilities=ELICIT)
    with post(client, QUESTION) as old:
        question = next(each for each in old if each.data)
        with get(client, question.id) as new:
            # The new one has taken over: nothing comes twice.
            assert list(old) == []
            answer(client, question, "taken over")
            assert [each.message["id"] for each in new] == ["q"]


def test_only_the_stream_that_was_cut_off_is_replayed(bridge: Bridge) -> None:
    client = bridge.client().open(capabilities=ELICIT)
    with post(client, QUESTION) as stream:
        question = next(each for each in stream if each.data)
    with post(client, call("log", "other", text="of another call")) as stream:
        others = list(stream)
    with get(client) as own:
        next(own)
        client.post(call("change"))
        assert next(own).message["method"] == "notifications/tools/list_changed"
    answer(client, question, "mine")
    with get(client, question.id) as stream:
        assert [each.message.get("id") for each in stream] == ["q"]
    with get(client, others[0].id) as stream:
        assert [each.message.get("id") for each in stream] == [None, "other"]


def test_batches_are_resumed_too(bridge: Bridge) -> None:
    client = bridge.client().open("2025-03-26", ELICIT)
    with post(client, [QUESTION, call("echo", "e", text="x")]) as stream:
        seen = [next(stream)]
        while "method" not in seen[-1].message:
            seen.append(next(stream))
    answer(client, seen[-1], "b")
    with get(client, seen[-1].id) as stream:
        missed = list(stream)
    assert sorted(each.message["id"] for each in seen + missed if "method" not in each.message) == ["e", "q"]


def test_a_cancelled_call_ends_its_stream_for_who_comes_back(bridge: Bridge) -> None:
    client = bridge.client().open(capabilities=ELICIT)
    with post(client, QUESTION) as stream:
        question = next(each for each in stream if each.data)
    with get(client, question.id) as stream:
        client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "q"}})
        assert list(stream) == []


def test_the_error_of_a_server_that_died_waits_as_well(bridge: Bridge) -> None:
    client = bridge.client().open()
    with post(client, call("progress", 2, {"progressToken": "t"}, steps=1000, delay=0.01)) as stream:
        last = next(each for each in stream if each.data)
    client.post(call("crash", 3))
    with get(client, last.id) as stream:
        *_, end = stream
    assert end.message["id"] == 2
    assert "ended before it answered" in end.message["error"]["message"]


# ---------------------------------------------------------------------------------------- the session's own stream


def test_the_sessions_stream_goes_on_where_it_was_cut_off(bridge: Bridge) -> None:
    client = bridge.client().open()
    seen = []
    with get(client) as stream:
        primed = next(stream)
        client.post(call("change"))
        seen.append(next(stream))
    for _ in range(2):
        client.post(call("change"), Accept="application/json")
    with get(client, seen[0].id) as stream:
        seen += [next(stream), next(stream)]
        client.post(call("change"))
        seen.append(next(stream))
    assert len({each.id for each in seen}) == 4
    with get(client, primed.id) as stream:
        assert [next(stream).id for _ in seen] == [each.id for each in seen]


def test_without_an_id_what_was_sent_already_does_not_come_again(bridge: Bridge) -> None:
    client = bridge.client().open()
    with get(client) as stream:
        primed = next(stream)
        client.post(call("change"))
        first = next(stream)
    with get(client) as stream:
        again = next(stream)
        client.post(call("change"))
        second = next(stream)
    assert (primed.data, again.data) == ("", "")
    assert again.id == first.id
    assert second.id not in {first.id, primed.id}


# ---------------------------------------------------------------------------------------- ids that lead nowhere


@pytest.mark.parametrize(
    "last_event_id",
    ["nonsense", "0", "-1", "00000000000000000-0-0", "0123456789abcdef-0-0", "x" * 5000, "9" * 5000, "a-b-c", "²-²-²"],
)
def test_an_unknown_id_is_400_and_the_session_stays(bridge: Bridge, last_event_id: str) -> None:
    client = bridge.client().open()
    with get(client) as stream:
        next(stream)
    headers: Any = {**client.headers, "Last-Event-ID": last_event_id.encode("latin-1")}
    reply = client.http.get(client.path, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32600)
    assert "Last-Event-ID" in reply.json()["error"]["message"]
    assert text_of(client.ask(call("echo", text="still here"))) == "still here"


def test_an_id_leads_to_nothing_of_another_session(bridge: Bridge) -> None:
    mine, other = (bridge.client().open(capabilities=ELICIT) for _ in range(2))
    with post(mine, QUESTION) as stream:
        question = next(each for each in stream if each.data)
    with post(other, QUESTION) as stream:
        next(each for each in stream if each.data)
    assert refused(other, question.id).status_code == 400
    tag = question.id.split("-")[0]
    assert refused(mine, f"{tag}-1-99").status_code == 400
    assert refused(mine, f"{tag}-7-1").status_code == 400
    # Nor does knowing it without the session.
    assert mine.http.get(mine.path, headers={"Accept": "text/event-stream", "Last-Event-ID": question.id}).is_error


def test_an_old_id_is_400_and_memory_stays_bounded(bridge: Bridge) -> None:
    client = bridge.client().open()
    with post(client, call("log", "old", text="x")) as stream:
        old = list(stream)
    with post(client, call("flood", lines=2 * KEPT_EVENTS)) as stream:
        new = list(stream)
    assert refused(client, old[0].id).status_code == 400
    assert refused(client, old[-1].id).status_code == 400
    with get(client, new[10].id) as stream:
        late = list(stream)
    assert 0 < len(late) <= KEPT_EVENTS
    assert [each.id for each in late] == [each.id for each in new[-len(late) :]]


def test_after_the_session_there_is_nothing(bridge: Bridge) -> None:
    client = bridge.client().open(capabilities=ELICIT)
    with post(client, QUESTION) as stream:
        question = next(each for each in stream if each.data)
    with get(client, question.id) as stream:
        assert client.delete().status_code in {200, 204}
        ended = list(stream)
    assert all("error" in each.message for each in ended)
    assert refused(client, question.id).status_code == 404


# ---------------------------------------------------------------------------------------- the official client


class Cable:
    """A TCP proxy that can be cut."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._ends: set[asyncio.StreamWriter] = set()
        self.accepted = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        up_reader, up_writer = await asyncio.open_connection(self._to.hostname, self._to.port)
        self._ends |= {writer, up_writer}
        await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))
        self._ends -= {writer, up_writer}

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_the_official_client_survives_a_cut_in_the_middle_of_a_call(bridge: Bridge) -> None:
    async with Cable(bridge.url) as cable:
        seen: list[float] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)
            if progress == 2:
                cable.cut()

        async with asyncio.timeout(PATIENCE), SdkClient(f"{cable.url}/mcp/s", mode="legacy") as client:
            arguments = {"steps": 8, "delay": 0.02}
            result: Any = await client.call_tool("progress", arguments, progress_callback=on_progress)
            before = cable.accepted
            again: Any = await client.call_tool("echo", {"text": "on"})
        assert (result.content[0].text, seen) == ("done", list(range(8)))
        assert again.content[0].text == "on"
        assert before > 2


# ---------------------------------------------------------------------------------------- many, and none left


def test_a_session_whose_stream_was_cut_off_waits_for_its_client(alone: Callable[..., Bridge]) -> None:
    client = alone("--idle-timeout", "5", "--sharing", "caller").client().open()
    with get(client) as stream:
        primed = next(stream)
        # Longer than a session without a listener lives.
        time.sleep(6)
    time.sleep(1)
    with get(client, primed.id) as stream:
        client.post(call("change"))
        assert next(stream).message["method"] == "notifications/tools/list_changed"


def test_many_clients_of_one_process_hear_of_a_change_and_none_is_left(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--idle-timeout", "10", "--sharing", "caller")
    bridge.client().open().http.close()
    fds = bridge.fds()
    with contextlib.ExitStack() as stack:
        http = bridge.http()
        streams = []
        for _ in range(60):
            client = Client(http, "s").open()
            streams.append(stack.enter_context(get(client)))
            assert not next(streams[-1]).data
        client.post(call("change"))
        assert len(descendants(bridge.pid)) == 1
        for stream in streams:
            assert next(stream).message["method"] == "notifications/tools/list_changed"
    http.close()
    eventually(lambda: not descendants(bridge.pid), "all sessions end, and the process with them")
    eventually(lambda: bridge.fds() <= fds, "all descriptors are closed")


def test_nothing_is_left_of_clients_that_vanish(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--idle-timeout", "8")

    def vanish() -> None:
        client = bridge.client().open(capabilities=ELICIT)
        with get(client) as own:
            next(own)
            with post(client, QUESTION) as stream:
                question = next(each for each in stream if each.data)
            with get(client, question.id):
                pass
            answer(client, question, "x")
        client.http.close()

    vanish()
    eventually(lambda: not descendants(bridge.pid), "the first session ends")
    fds = bridge.fds()
    threads = [threading.Thread(target=vanish) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    eventually(lambda: not descendants(bridge.pid), "all sessions end")
    eventually(lambda: bridge.fds() <= fds, "all descriptors are closed")
    assert "internal error" not in bridge.said()
