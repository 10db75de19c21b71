# SPDX-License-Identifier: LGPL-2.1-or-later
"""An HTTP server on 127.0.0.1 that speaks the APIs of models: OpenAI's, Anthropic's and Gemini's.

It checks requests as these do, answers with what it was asked, and gives other replies first if it is told any.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-test-0123456789abcdef"
PATIENCE = 120.0


@dataclass(frozen=True)
class Reply:
    """What is answered instead of a completion."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    how: Literal["whole", "reset", "cut", "never", "endless", "together"] = "whole"
    """``reset``: nothing but an end of the connection; ``cut``: half of the body; ``together``: a completion, but only
    when as many requests as the barrier has parties are there."""


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Any
    port: int
    """The client's, which tells connections apart."""


class ModelApis:
    """What the server knows; the attributes may be changed at any time."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.key: str | None = KEY
        """What a request has to bring; None for no key at all."""
        self.models = {"good-model"}
        self.asked: list[Asked] = []
        self.replies: deque[Reply] = deque()
        self.arrived = threading.Semaphore(0)
        """Released by every request."""
        self.over = threading.Event()
        self.barrier = threading.Barrier(64)
        self.sent = 0
        """Bytes of endless answers."""

    def next(self, *replies: Reply) -> None:
        self.replies.extend(replies)


def reply(value: Any, status: int = 200, **headers: str) -> Reply:
    """JSON with *status*; ``Retry_After`` is the header ``Retry-After``."""
    return Reply(status, json.dumps(value).encode(), {name.replace("_", "-"): text for name, text in headers.items()})


def openai_error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def gemini_error(code: int, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": "ERROR", "details": list(details)}}


def openai_answer(text: Any, *, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "good-model-2026",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None, **message},
                "finish_reason": finish,
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def anthropic_answer(*texts: str, stop: str = "end_turn") -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "good-model-2026",
        "content": [{"type": "text", "text": text} for text in texts],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 2,
            "output_tokens": 7,
        },
    }


def gemini_answer(*parts: dict[str, Any], finish: str = "STOP") -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": 11, "candidatesTokenCount": 4, "thoughtsTokenCount": 3, "totalTokenCount": 18
        },
        "modelVersion": "good-model-2026",
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE
    apis: ModelApis

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): text for name, text in self.headers.items()}
        self.apis.asked.append(Asked(self.path, headers, body, self.client_address[1]))
        self.apis.arrived.release()
        told = self.apis.replies.popleft() if self.apis.replies else self._completion(headers, body)
        getattr(self, f"_{told.how}")(told)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name is the base class's
        pass

    def _completion(self, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        if self.path.endswith("/v1/chat/completions"):
            return self._openai(headers, body)
        if self.path.endswith("/v1/messages"):
            return self._anthropic(headers, body)
        if found := re.search(r"/v1beta/models/([^/?]+):generateContent$", self.path):
            return self._gemini(headers, body, found[1])
        return Reply(404, b"404 page not found", {"Content-Type": "text/plain"})

    def _openai(self, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        if self.apis.key is not None and headers.get("authorization") != f"Bearer {self.apis.key}":
            return reply(openai_error(f"Incorrect API key provided: {headers.get('authorization')}"), 401)
        if body.get("model") not in self.apis.models:
            return reply(openai_error(f"The model `{body.get('model')}` does not exist", "model_not_found"), 404)
        told = json.dumps(body["messages"]).lower()
        if body.get("response_format") == {"type": "json_object"} and "json" not in told:
            return reply(openai_error("'messages' must contain the word 'json' in some form"), 400)
        return reply(openai_answer(f"heard {body['messages'][-1]['content']}"))

    def _anthropic(self, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        if self.apis.key is not None and headers.get("x-api-key") != self.apis.key:
            return reply(anthropic_error("authentication_error", f"invalid x-api-key {headers.get('x-api-key')}"), 401)
        if headers.get("anthropic-version") != "2023-06-01" or not isinstance(body.get("max_tokens"), int):
            return reply(anthropic_error("invalid_request_error", "max_tokens: Field required"), 400)
        if body.get("model") not in self.apis.models:
            return reply(anthropic_error("not_found_error", f"model: {body.get('model')}"), 404)
        return reply(anthropic_answer("heard ", body["messages"][-1]["content"]))

    def _gemini(self, headers: dict[str, str], body: dict[str, Any], model: str) -> Reply:
        if self.apis.key is not None and headers.get("x-goog-api-key") != self.apis.key:
            info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
            return reply(gemini_error(400, f"API key not valid: {headers.get('x-goog-api-key')}", info), 400)
        if model not in self.apis.models:
            return reply(gemini_error(404, f"models/{model} is not found for API version v1beta"), 404)
        text = body["contents"][-1]["parts"][0]["text"]
        return reply(gemini_answer({"text": "hm", "thought": True}, {"text": "heard "}, {"text": text}))

    def _whole(self, told: Reply) -> None:
        self.send_response(told.status)
        for name, text in {"Content-Type": "application/json", **told.headers}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(told.body)))
        self.end_headers()
        self.wfile.write(told.body)

    def _together(self, _: Reply) -> None:
        self.apis.barrier.wait(PATIENCE)
        self._whole(reply(openai_answer("together")))

    def _cut(self, told: Reply) -> None:
        self.send_response(told.status)
        self.send_header("Content-Length", str(2 * len(told.body)))
        self.end_headers()
        self.wfile.write(told.body)
        self.wfile.flush()
        self._reset(told)

    def _reset(self, _: Reply) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _never(self, _: Reply) -> None:
        self.apis.over.wait()
        self.close_connection = True

    def _endless(self, told: Reply) -> None:
        """100 MB, as long as somebody reads."""
        self.send_response(told.status)
        self.send_header("Content-Length", str(100 << 20))
        self.end_headers()
        self.close_connection = True
        try:
            for _ in range(100 * 16):
                self.wfile.write(b" " * 65536)
                self.apis.sent += 65536
        except ConnectionError:
            return


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no fault here."""


@contextmanager
def model_apis() -> Iterator[ModelApis]:
    """The server, for the time of the block."""

    class Handler(_Handler):
        pass

    server = _Server(("127.0.0.1", 0), Handler)
    apis = Handler.apis = ModelApis(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="model-apis")
    thread.start()
    try:
        yield apis
    finally:
        apis.over.set()
        apis.barrier.abort()
        server.shutdown()
        thread.join()
        server.server_close()
