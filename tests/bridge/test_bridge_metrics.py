# SPDX-License-Identifier: LGPL-2.1-or-later
"""What /metrics tells Prometheus, and whom."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from mcpd.bridge import jsonrpc
from mcpd.bridge.callers import Caller
from mcpd.bridge.exchange import Exchange
from mcpd.bridge.http.tokens import Tokens
from mcpd.bridge.observe import metrics
from mcpd.bridge.observe.exposition import render
from mcpd.bridge.observe.metrics import Metrics
from mcpd.bridge.observe.observer import Observer
from mcpd.bridge.observe.watch import Outcome
from mcpd.bridge.upstream.call import Call
from tests.bridge.bridge_harness import BOTH, COMMAND, PATIENCE, ROOT, Bridge, call, eventually, initialize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

ME, OTHER = Caller(os.getuid()), Caller(os.getuid() + 1000)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return "mcpd_bridge_" + name, frozenset(labels.items())


def shown(bridge: Bridge) -> Samples:
    reply = bridge.http().get("/metrics")
    assert reply.status_code == 200
    return samples(reply.text)


# ---------------------------------------------------------------------------------------- a bridge of one user


def test_calls_are_counted_by_server_method_tool_and_outcome(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--call-timeout", "1")
    client = bridge.client().open()
    for tool in ("echo", "echo", "no such tool", "error", "hang"):
        client.ask(call(tool))
    client = bridge.client().open()
    client.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    client.ask({"jsonrpc": "2.0", "id": 2, "method": "made/up"})
    found = shown(bridge)
    called = {"server": "s", "method": "tools/call"}
    assert found[key("calls_total", **called, outcome="result")] == 2
    assert found[key("calls_total", **called, outcome="tool-error")] == 1
    assert found[key("calls_total", **called, outcome="error")] == 1
    assert found[key("calls_total", **called, outcome="timeout")] == 1
    assert found[key("tool_calls_total", server="s", tool="echo", outcome="result")] == 2
    assert found[key("calls_total", server="s", method="tools/list", outcome="result")] == 1
    assert found[key("calls_total", server="s", method="other", outcome="error")] == 1
    assert found[key("call_duration_seconds_count", **called)] == 5
    assert found[key("call_duration_seconds_bucket", **called, le="0.5")] == 4
    assert found[key("call_duration_seconds_bucket", **called, le="+Inf")] == 5
    assert 1 <= found[key("call_duration_seconds_sum", **called)] < 3
    assert found[key("response_bytes_total", server="s")] > 200
    assert found[key("request_bytes_total", server="s")] > 400


def test_processes_sessions_and_crashes_are_counted(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", f"b={COMMAND} --broken")
    client = bridge.client().open()
    assert (found := shown(bridge))[key("server_processes", server="s")] == 1
    assert found[key("sessions", server="s")] == 1
    assert found[key("connections")] >= 1
    assert found[key("server_start_duration_seconds_count", server="s")] == 1
    assert found[key("server_crashes_total", server="s")] == 0
    client.ask(call("crash"))
    client.ask(call("echo"))
    eventually(lambda: shown(bridge)[key("server_processes", server="s")] == 1, "the crash is over")
    assert (found := shown(bridge))[key("server_crashes_total", server="s")] == 1
    assert found[key("server_restarts_total", server="s")] == 1
    assert found[key("server_start_duration_seconds_count", server="s")] == 2
    assert bridge.client("b").post(initialize()).status_code >= 500
    eventually(lambda: shown(bridge)[key("server_processes", server="b")] == 0, "the broken server is gone")
    assert shown(bridge)[key("server_start_failures_total", server="b")] == 1
    client.delete()
    eventually(lambda: shown(bridge).get(key("server_processes", server="s")) == 0, "its session has ended")
    assert key("sessions", server="s") not in shown(bridge)


def test_requests_and_the_process_are_measured(bridge: Bridge) -> None:
    bridge.client().open().ask(call("echo"))
    bridge.http().get("/health")
    bridge.http().get("/nothing")
    found = shown(bridge)
    assert found[key("http_request_duration_seconds_count", route="health", status="200")] == 1
    assert found[key("http_request_duration_seconds_count", route="mcp", status="200")] >= 2
    assert found[key("http_request_duration_seconds_count", route="nothing", status="404")] == 1
    assert found["process_resident_memory_bytes", frozenset()] > 1e6
    assert any(name == "mcpd_bridge_build_info" for name, _ in found)
    assert found[key("audit_lost_records_total")] == 0


def test_prometheus_gets_the_format_it_prefers(bridge: Bridge) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5"
    reply = bridge.http().get("/metrics", headers={"Accept": accept})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert any(family.name == "mcpd_bridge_connections" for family in parse_openmetrics(reply.text))
    assert bridge.http().get("/metrics").headers["content-type"].startswith("text/plain")
    assert bridge.http().post("/metrics").status_code == 405


def test_the_page_needs_a_caller(start_bridge: Callable[..., Bridge], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-test\n")
    token.chmod(0o600)
    bridge = start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token), "--server", f"s={COMMAND}")
    refused = bridge.http().get("/metrics")
    assert refused.status_code == 401
    assert "mcpd_bridge" not in refused.text
    assert bridge.http(headers={"Authorization": "Bearer secret-of-the-test"}).get("/metrics").status_code == 200


def test_a_bridge_that_nobody_asks_does_not_load_the_library() -> None:
    parts = "mcpd.bridge.main, mcpd.bridge.http.server, mcpd.bridge.observe.observer"
    code = f"import sys, {parts}; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


# ---------------------------------------------------------------------------------------- a bridge of many users


class SharedBridge(Bridge):
    """A bridge in which each token is a caller of its own."""

    def __init__(self, place: Path) -> None:
        self.log = place / "log"
        self.tokens = Tokens(place / "tokens")
        argv = [sys.executable, str(Path(__file__).parent / "fixtures" / "shared_bridge.py")]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*argv, str(place / "socket"), str(place / "tokens"), COMMAND],
                stderr=stderr,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self.headers = {}
        self._clients = []

    def as_caller(self, caller: Caller) -> httpx2.Client:
        return self.http(headers={"Authorization": f"Bearer {self.tokens.token(caller.uid)}"})


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedBridge]:
    bridge = SharedBridge(tmp_path)
    yield bridge
    bridge.close()


def test_nobody_is_shown_what_others_do(shared: SharedBridge) -> None:
    for caller, tool in ((ME, "mine"), (OTHER, "theirs")):
        reply = shared.as_caller(caller).post("/mcp/s", json=call(tool), headers=BOTH, timeout=PATIENCE)
        assert reply.status_code == 200
    theirs = samples(shared.as_caller(OTHER).get("/metrics").text)
    assert theirs[key("tool_calls_total", server="s", tool="theirs", outcome="tool-error")] == 1
    assert theirs[key("calls_total", server="s", method="tools/call", outcome="tool-error")] == 1
    assert theirs[key("server_processes", server="s")] == 1
    assert {name for name, _ in theirs} & {"process_cpu_seconds_total", "mcpd_bridge_connections"} == set()
    assert not any("mine" in dict(labels).values() for _, labels in theirs)
    assert not any(name.startswith("mcpd_bridge_http") for name, _ in theirs)
    # Who runs the bridge sees it all, and nobody's name.
    mine = samples(shared.as_caller(ME).get("/metrics").text)
    assert mine[key("calls_total", server="s", method="tools/call", outcome="tool-error")] == 2
    assert mine[key("server_processes", server="s")] == 2
    assert {dict(labels).get("tool") for _, labels in mine} >= {"mine", "theirs"}
    stranger = samples(shared.as_caller(Caller(OTHER.uid + 1)).get("/metrics").text)
    assert {name for name, _ in stranger} == {"mcpd_bridge_build_info"}


# ---------------------------------------------------------------------------------------- labels are bounded


def a_call(tool: str, caller: Caller = ME, method: str = "tools/call") -> Call:
    sink = Exchange(takes_json=True, takes_events=True)
    sink.caller = caller
    params = jsonrpc.Raw(jsonrpc.encode({"name": tool}))
    return Call(sink, b"1", method, params, b"", time.monotonic(), 30, None)


async def test_names_that_clients_make_up_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_TOOLS", 10)
    monkeypatch.setattr(metrics, "MOST_SERIES", 20)
    numbers = Metrics()
    observer = Observer(numbers)
    for number in range(100):
        observer.ended("s", a_call(f"tool {number}"), Outcome.ERROR, b"{}")
        observer.ended("s", a_call("", method=f"method/{number}"), Outcome.RESULT, b"{}")
        observer.refused(ME, f"server {number}", "tools/call", None, "NotFound")
        observer.ended(f"server {number}", a_call("x", Caller(5000 + number)), Outcome.RESULT, b"{}")
    observer.ended("s", a_call("y" * 129), Outcome.RESULT, b"{}")
    body, _ = await render(numbers, ME, "")
    found = samples(body.decode())
    tools = {dict(labels)["tool"] for name, labels in found if name == "mcpd_bridge_tool_calls_total"}
    assert len(tools) <= 10 + 2
    assert found[key("tool_calls_total", server="s", tool="other", outcome="error")] == 90
    assert found[key("tool_calls_total", server="s", tool="other", outcome="result")] == 1
    assert found[key("calls_total", server="s", method="other", outcome="result")] == 100
    assert found[key("refusals_total", server="other", reason="NotFound")] == 100
    assert len(numbers.calls) <= 20 + 2
    assert sum(value for (name, _), value in found.items() if name == "mcpd_bridge_calls_total") == 301


async def test_odd_names_stay_inside_their_label() -> None:
    numbers = Metrics()
    odd = 'a"} 1\nmcpd_bridge_connections 7\n\\'
    Observer(numbers).ended("s", a_call(odd), Outcome.RESULT, b"{}")
    body, _ = await render(numbers, ME, "")
    assert samples(body.decode())[key("tool_calls_total", server="s", tool=odd, outcome="result")] == 1
