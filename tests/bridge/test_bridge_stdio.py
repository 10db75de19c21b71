# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers over the bridge's ``stdio.sock``."""

from __future__ import annotations

import json
import select
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import PATIENCE, call, eventually, initialize, is_alive, records, text_of
from tests.bridge.stdio_machine import INITIALIZED, Talk, mapped_machine, modern, stdio_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bridge.bridge_machine import Machine

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with mapped_machine(tmp_path_factory.mktemp("machine")) as found:
        yield found


# ---------------------------------------------------------------------------------------- the first line


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("nothing", "NotFound"),
        ("off", "Disabled"),
        ("../fix", "NotFound"),
        ("", "NotFound"),
        (b"{}", "InvalidRequest"),
        (b"GET /mcp/fix HTTP/1.1", "InvalidRequest"),
        (b"[" * 10_000, "InvalidRequest"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_with_its_reason(machine: Machine, server: object, name: str) -> None:
    with Talk(machine, server) as talk:
        assert talk.hello["error"]["name"].endswith(f".{name}")
        assert talk.hello["error"]["message"]
        assert talk.read() is None


# ---------------------------------------------------------------------------------------- the handshake era


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_conversation_of_the_handshake_era(machine: Machine, version: str) -> None:
    with Talk(machine, "fix") as talk:
        talk.open(version)
        assert text_of(talk.ask(call("echo", 1, text="x"))) == "x"
        pid = text_of(talk.ask(call("pid", 2)))
        assert text_of(talk.ask(call("pid", 3))) == pid
        assert talk.ask({"jsonrpc": "2.0", "id": 4, "method": "nonsense"})["error"]["code"] == -32601
    eventually(lambda: not is_alive(int(pid)), "the server ended with its client")


def test_what_comes_before_the_session_is_open_waits_for_it(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.write(initialize("i"), INITIALIZED, call("pid", 1), call("pid", 2))
        assert talk.read()["id"] == "i"
        answers = [talk.read() for _ in range(2)]
        assert {answer["id"] for answer in answers} == {1, 2}
        assert len({text_of(answer) for answer in answers}) == 1


def test_the_server_asks_its_client(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open(capabilities={"roots": {}})
        asked = talk.ask(call("ask", "c", method="roots/list"))
        assert asked["method"] == "roots/list"
        answer = talk.ask({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": [{"uri": "file:///x"}]}})
        assert "file:///x" in text_of(answer)


def test_progress_log_messages_and_changes_come_as_lines(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        talk.write(call("progress", 1, {"progressToken": "mine"}, steps=2))
        progress = [talk.read() for _ in range(2)]
        assert [each["params"]["progressToken"] for each in progress] == ["mine", "mine"]
        assert text_of(talk.read()) == "done"
        talk.write(call("change", 2))
        assert {talk.read().get("method", "answer") for _ in range(2)} == {
            "notifications/tools/list_changed",
            "answer",
        }


def test_a_cancelled_request_gets_no_answer(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        talk.write(call("hang", "h"))
        talk.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "h"}})
        assert talk.ask(call("echo", "e", text="x"))["id"] == "e"


def test_two_clients_have_a_server_each(machine: Machine) -> None:
    with Talk(machine, "fix") as one, Talk(machine, "fix") as other:
        assert text_of(one.open().ask(call("pid"))) != text_of(other.open().ask(call("pid")))


def test_a_server_that_was_stopped_unused_is_there_again_for_the_next_message(machine: Machine) -> None:
    with Talk(machine, "sleepy") as talk:
        talk.open()
        pid = int(text_of(talk.ask(call("pid", 1))))
        eventually(lambda: not is_alive(pid), "the server was stopped")
        assert int(text_of(talk.ask(call("pid", 2)))) != pid


# ---------------------------------------------------------------------------------------- the modern era


def test_a_conversation_of_the_modern_era(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        found = talk.ask(modern("server/discover", 1))
        assert "2026-07-28" in found["result"]["supportedVersions"]
        answer = talk.ask(modern("tools/call", 2, name="echo", arguments={"text": "x"}))
        assert (answer["id"], answer["result"]["resultType"], text_of(answer)) == (2, "complete", "x")
        assert talk.ask(modern("ping", 3))["error"]["code"] == -32601


def test_a_request_of_the_modern_era_is_cancelled_by_a_notification(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.write(modern("tools/call", "h", name="hang", arguments={}))
        talk.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "h"}})
        answer = talk.ask(modern("tools/call", "e", name="echo", arguments={"text": "x"}))
        assert (answer["id"], text_of(answer)) == ("e", "x")


def test_changes_are_listened_to_as_lines(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.write(modern("subscriptions/listen", "l", notifications={"toolsListChanged": True}))
        assert talk.read()["method"] == "notifications/subscriptions/acknowledged"
        talk.write(modern("tools/call", "c", name="change", arguments={}))
        messages = [talk.read() for _ in range(2)]
        changed = next(each for each in messages if "method" in each)
        assert changed["method"] == "notifications/tools/list_changed"
        assert changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "l"
        talk.socket.shutdown(socket.SHUT_WR)
        assert talk.read() is None


# ---------------------------------------------------------------------------------------- policy


def test_the_mcps_map_applies(machine: Machine) -> None:
    with Talk(machine, "narrow") as talk:
        talk.open()
        listed = talk.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})["result"]["tools"]
        assert "say" in {tool["name"] for tool in listed}
        assert text_of(talk.ask(call("say", 2, text="mine"))) == "fixed"
        assert talk.ask(call("echo", 3, text="x"))["result"]["isError"] is True
        answer = talk.ask(modern("tools/call", 4, name="echo", arguments={}))
        assert (answer["result"]["isError"], answer["result"]["resultType"]) == (True, "complete")
        assert text_of(talk.ask(modern("tools/call", 5, name="say", arguments={}))) == "fixed"


# ---------------------------------------------------------------------------------------- bad input and ends


def test_broken_lines_cost_themselves_only(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        for line, code in ((b"{", -32700), (b"[]", -32600), (b'{"jsonrpc":"1.0","id":1}', -32600), (b"\xff", -32700)):
            assert talk.ask(line)["error"]["code"] == code
        assert talk.ask(b" " * (5 << 20))["error"]["code"] == -32005
        assert text_of(talk.ask(call("echo", 1, text="x"))) == "x"


def test_a_line_that_is_too_long_is_refused_under_its_id(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        # Of what is larger than any line, and of what only is no line of this bridge.
        for size in (5 << 20, (4 << 20) + 1):
            answer = talk.ask({"jsonrpc": "2.0", "id": "long", "method": "ping", "params": {"x": "x" * size}})
            assert (answer["id"], answer["error"]["code"]) == ("long", -32005)


def test_a_client_that_never_names_a_server_is_turned_away(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as file:
        client.settimeout(PATIENCE)
        client.connect(str(stdio_socket(machine)))
        client.shutdown(socket.SHUT_WR)
        assert json.loads(file.readline())["error"]["name"].endswith(".InvalidRequest")
        assert file.readline() == b""


def test_a_byte_at_a_time_is_a_line_in_the_end(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        for byte in json.dumps(call("echo", 1, text="slow")).encode() + b"\n":
            talk.socket.sendall(bytes([byte]))
        assert text_of(talk.read()) == "slow"


def test_thousands_of_lines_at_once_are_answered(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for start in range(0, 3000, 500):
            talk.write(*({**ping, "id": start + number} for number in range(500)))
            assert {talk.read()["id"] for _ in range(500)} == set(range(start, start + 500))


def test_a_client_that_has_nothing_more_to_say_gets_its_answers_first(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.write(initialize("i"), INITIALIZED, call("echo", 1, text="late", delay=0.5), call("pid", 2))
        talk.socket.shutdown(socket.SHUT_WR)
        answers = {}
        while (message := talk.read()) is not None:
            answers[message["id"]] = message
        assert set(answers) == {"i", 1, 2}
        assert text_of(answers[1]) == "late"
        eventually(lambda: not is_alive(int(text_of(answers[2]))), "the server ended with its client")


def test_a_server_that_asks_who_has_nothing_more_to_say_is_answered_for_it(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open(capabilities={"roots": {}})
        asked = talk.ask(call("ask", "c", method="roots/list"))
        assert asked["method"] == "roots/list"
        talk.write(call("ask", "d", method="roots/list"))
        assert talk.read()["method"] == "roots/list"
        talk.socket.shutdown(socket.SHUT_WR)
        answers = [talk.read(), talk.read()]
        assert {each["id"] for each in answers} == {"c", "d"}
        assert all("-32600" in text_of(each) for each in answers)
        assert talk.read() is None


def test_a_client_that_goes_while_its_last_call_runs_takes_the_server_along(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        pid = int(text_of(talk.open().ask(call("pid", 1))))
        talk.write(call("hang", 2))
        talk.socket.shutdown(socket.SHUT_WR)
    eventually(lambda: not is_alive(pid), "the server ended with its client")


def test_a_call_beyond_those_that_may_wait_is_audited(machine: Machine) -> None:
    waits = [modern("tools/call", f"w{number}", name="hang", arguments={}) for number in range(1024)]
    with Talk(machine, "fix") as talk:
        talk.write(*waits)
        answer = talk.ask(modern("tools/call", "more", name="one too many", arguments={}))
        assert (answer["id"], "requests wait for their answers" in answer["error"]["message"]) == ("more", True)

    def outcomes() -> list[str]:
        return [line["outcome"] for line in records(machine.home / "audit") if line["tool"] == "one too many"]

    eventually(lambda: outcomes() == ["refused:LimitsExceeded"], "the refusal is recorded")


def test_calls_are_audited(machine: Machine) -> None:
    with Talk(machine, "narrow") as talk:
        assert text_of(talk.open().ask(call("say", 1, text="x"))) == "fixed"
        assert talk.ask(call("echo", 2))["result"]["isError"]

    def recorded() -> list[tuple[str, str, str]]:
        return [(line["server"], line["tool"], line["outcome"]) for line in records(machine.home / "audit")]

    eventually(lambda: ("narrow", "say", "result") in recorded(), "the call is on record")
    eventually(lambda: ("narrow", "echo", "tool-error") in recorded(), "what was refused is, too")


def test_a_client_that_does_not_read_costs_itself_only(machine: Machine) -> None:
    with Talk(machine, "fix") as greedy:
        greedy.open()
        # It asks for more than is kept for a client, in answers of which one alone would do no harm.
        for number in range(20):
            greedy.write(call("big", number, size=32 << 20))
        with Talk(machine, "fix") as other:
            assert text_of(other.open().ask(call("echo", 1, text="x"))) == "x"
        eventually(lambda: cut_off(greedy.socket), "it is cut off")


def cut_off(connection: socket.socket) -> bool:
    watch = select.poll()
    watch.register(connection.fileno(), 0)
    return bool(watch.poll(0))
