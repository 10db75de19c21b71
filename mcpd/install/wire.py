# SPDX-License-Identifier: LGPL-2.1-or-later
"""A JSON-RPC conversation with a stdio server over two pipes: just enough to ask it a few questions."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes that a server may write in all; its tools have to fit into a catalogue file."""
MAX_JUNK: Final = 200
"""Lines that are no JSON-RPC message, after which a server is given up."""


class WireFault(Exception):
    """The server does not talk JSON-RPC, or not any more."""


class Refused(Exception):
    """The server answered with an error object."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


class Wire:
    """The client's ends of a server's stdin and stdout."""

    def __init__(self) -> None:
        stdin_read, self._stdin = os.pipe()
        self._stdout, stdout_write = os.pipe()
        self.fds: Mapping[int, int] = {0: stdin_read, 1: stdout_write}
        """The server's ends; :meth:`handed_over` closes them."""
        self._reader = asyncio.StreamReader(limit=MAX_BYTES)
        self._writer: asyncio.StreamWriter | None = None
        self._transport: asyncio.ReadTransport | None = None
        self._next_id = 0
        self._junk = 0
        self._received = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), os.fdopen(self._stdout, "rb", buffering=0)
        )
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(self._stdin, "wb", buffering=0)
        )
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.handed_over()
        if self._writer is not None:
            self._writer.close()
        if self._transport is not None:
            self._transport.close()

    def handed_over(self) -> None:
        """Close our copies of the server's ends, once it has them."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}

    def close_stdin(self) -> None:
        """Tell the server that nothing more will be asked."""
        if self._writer is not None:
            self._writer.close()

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask, and return the ``result``.

        Raises :class:`Refused` for an error object, :class:`WireFault` when the server ends, or writes what is no
        JSON-RPC. Messages that are not the answer are dealt with or passed over.
        """
        self._next_id += 1
        await self._send({"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params})
        while True:
            message = await self._receive()
            if "method" in message:
                await self._answer(message)
            elif message.get("id") == self._next_id:
                return _result(message)

    async def notify(self, method: str) -> None:
        """Send a notification without parameters."""
        await self._send({"jsonrpc": "2.0", "method": method})

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Answer a request of the server: a ping, else a refusal, for no capability was offered."""
        if "id" not in message:
            return
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            reply["result"] = {}
        else:
            reply["error"] = {"code": -32601, "message": "not available while a server is being installed"}
        await self._send(reply)

    async def _send(self, message: Mapping[str, Any]) -> None:
        if self._writer is None:
            raise RuntimeError("the wire is not connected")
        self._writer.write(json.dumps(message).encode() + b"\n")
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise WireFault("it closed its stdin") from error

    async def _receive(self) -> dict[str, Any]:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError as error:
                raise WireFault(f"it wrote a line of more than {MAX_BYTES} bytes to its stdout") from error
            self._received += len(line)
            if self._received > MAX_BYTES:
                raise WireFault(f"it wrote more than {MAX_BYTES} bytes to its stdout")
            if not line:
                junk = f" after {self._junk} lines that are no JSON-RPC" if self._junk else ""
                raise WireFault(f"it closed its stdout{junk}")
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict) and message.get("jsonrpc") == "2.0":
                return message
            if line.strip():
                self._junk += 1
            if self._junk > MAX_JUNK:
                raise WireFault("it writes to its stdout what is no JSON-RPC; log messages belong on stderr")


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(message.get("result"), dict):
        return dict(message["result"])
    error = message.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        raise Refused(code if isinstance(code, int) else 0, str(error.get("message", ""))[:500])
    raise WireFault("it sent an answer with neither result nor error")
