# SPDX-License-Identifier: LGPL-2.1-or-later
"""Seed 004's tests of messages (T2) and of initialize (T3), over a real socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import initialize, text_of
from tests.bridge.facility import request, tool

if TYPE_CHECKING:
    from tests.bridge.bridge_harness import Client

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


def test_T2_1_a_valid_request_is_parsed(fresh: Client) -> None:
    reply = fresh.post(initialize(1))
    assert reply.status_code == 200
    assert (reply.json()["jsonrpc"], reply.json()["id"]) == ("2.0", 1)
    assert reply.json()["result"]["serverInfo"] == {"name": "facility", "version": "1.0.0"}


def test_T2_2_another_jsonrpc_version_is_an_invalid_request(client: Client) -> None:
    reply = client.post({"jsonrpc": "1.0", "id": 1, "method": "test"})
    assert (reply.status_code, reply.json()["error"]["code"], reply.json()["id"]) == (400, -32600, 1)


def test_T2_3_a_missing_method_is_an_invalid_request(client: Client) -> None:
    reply = client.post({"jsonrpc": "2.0", "id": 1})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32600)


def test_T2_4_a_notification_gets_no_response(client: Client) -> None:
    reply = client.post({"jsonrpc": "2.0", "method": "test"})
    assert (reply.status_code, reply.content) == (202, b"")
    assert text_of(client.ask(tool("echo", message="still served"))) == "still served"


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", ""])
def test_T2_5_a_batch_gets_an_array_of_responses(fresh: Client, revision: str) -> None:
    if revision:
        fresh.open(revision)
    batch = [
        tool("echo", 1, message="a"),
        {"jsonrpc": "2.0", "method": "notifications/whatever"},
        request("no/such", "two"),
        tool("echo", 3, message="c"),
    ]
    reply = fresh.post(batch)
    assert reply.status_code == 200
    found = {each["id"]: each for each in reply.json()}
    assert set(found) == {1, "two", 3}
    assert (text_of(found[1]), found["two"]["error"]["code"], text_of(found[3])) == ("a", -32601, "c")


def test_T2_5_later_revisions_refuse_batches(fresh: Client) -> None:
    for revision in ("2025-06-18", "2025-11-25"):
        reply = fresh.open(revision).post([tool("echo", 1, message="a")])
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32600)
        fresh.headers.pop("Mcp-Session-Id")


def test_T3_1_T3_3_initialize_says_who_serves_and_what(fresh: Client) -> None:
    reply = fresh.post(initialize("first"))
    result = reply.json()["result"]
    assert reply.json()["id"] == "first"
    assert {"protocolVersion", "serverInfo", "capabilities"} <= set(result)
    assert {"tools", "resources", "prompts"} <= set(result["capabilities"])


@pytest.mark.parametrize(("wanted", "given"), [*((each, each) for each in REVISIONS), ("1.0", REVISIONS[-1])])
def test_T3_2_the_revision_matches_or_is_one_that_is_served(fresh: Client, wanted: str, given: str) -> None:
    assert fresh.post(initialize(version=wanted)).json()["result"]["protocolVersion"] == given


def test_T3_4_a_second_initialize_has_the_same_state(fresh: Client) -> None:
    fresh.open()
    again = fresh.post(initialize("again", "2024-11-05"))
    assert again.json() == {"jsonrpc": "2.0", "id": "again", "result": fresh.opened["result"]}
    assert again.headers["mcp-session-id"] == fresh.headers["Mcp-Session-Id"]
