# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-bridge``: the command line, and the composition root of the bridge."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd import journal
from mcpd.bridge.allocator import keep_large_blocks, settle
from mcpd.bridge.arguments import build_parser
from mcpd.bridge.budget import DEFAULT_TOTAL, SHARES, Budget
from mcpd.bridge.callers import Everybody, OneUser
from mcpd.bridge.http import listeners, tcp_owner
from mcpd.bridge.http.gate import Gate, SignIn
from mcpd.bridge.http.tokens import TokenFile, Tokens, load_token, read_token, remove_token
from mcpd.bridge.parts import Options, Parts
from mcpd.bridge.places import places
from mcpd.bridge.site import Site
from mcpd.bridge.tasks import Tasks
from mcpd.bridge.upstream.commands import CommandSource, from_arguments, from_file
from mcpd.bridge.upstream.hops import Passes
from mcpd.errors import Busy, InvalidArgument, McpdError, from_oserror

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from mcpd.bridge.callers import Admission
    from mcpd.bridge.http.server import Service
    from mcpd.bridge.http.tls import Certificate
    from mcpd.bridge.observe.observer import Observer
    from mcpd.bridge.places import Places
    from mcpd.paths import Layout, Paths
    from mcpd.settings import BridgeSettings

log = logging.getLogger(__name__)

OVERRIDES: Final = (
    "burst", "call_timeout", "idle_timeout", "keepalive", "max_children", "max_line", "max_sessions", "rate"
)  # fmt: skip
"""Settings of the stand-alone form, which reads no mcpd.toml."""
MAY_USE_SYSTEM: Final = "mcp"
"""The group whose members may use the system's bridge."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bridge; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    journal.configure("debug" if arguments.verbose else "info", identifier="mcpd-bridge")
    try:
        _run(arguments)
    except McpdError as error:
        print(f"mcpd-bridge: {error.message}", file=sys.stderr)  # noqa: T201 -- a usage message
        return error.exit_code
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if arguments.server or arguments.config is not None:
        _run_alone(arguments)
    else:
        _run_mcpd(arguments)


def _run_alone(arguments: argparse.Namespace) -> None:
    _check_alone(arguments)
    commands = from_arguments(arguments.server)
    if arguments.config is not None:
        for name, command in from_file(arguments.config).items():
            commands.setdefault(name, command)
    chosen = {
        name: value for name in OVERRIDES if (value := getattr(arguments, name)) is not None and _positive(name, value)
    }
    if arguments.sharing:
        chosen["sharing"] = arguments.sharing
    options = Options(strict_sessions=arguments.strict_sessions, **chosen)
    gate = _gate_alone(arguments)
    site = Site(
        port_changes=arguments.listen.endswith(":0"),
        needs_token=arguments.auth is None,
        certificate=_certificate(arguments.tls_cert, arguments.tls_key),
    )
    listener = listeners.tcp_listener(arguments.listen, remote=arguments.allow_remote)
    _warn(arguments)
    budget = Budget(max(DEFAULT_TOTAL, options.max_line))
    parts = Parts(CommandSource(commands), options, Tasks(), budget, site=site)
    parts.watch = _observer(parts, arguments.audit or "off")
    _serve(parts, gate, [listener])


def _check_alone(arguments: argparse.Namespace) -> None:
    if arguments.user or arguments.system:
        raise InvalidArgument("--user and --system serve what mcpd runs: omit --server and --config")
    if arguments.auth is not None and arguments.token_file is not None:
        raise InvalidArgument("specify who may connect: either --token-file FILE or --auth none, not both")
    missing = [] if arguments.listen else ["specify where to listen: --listen 127.0.0.1:7411"]
    if arguments.auth is None and arguments.token_file is None:
        missing.append("specify who may connect: either --token-file FILE or --auth none")
    if missing:
        raise InvalidArgument("; ".join(missing))
    if arguments.auth == "none" and arguments.allow_remote:
        raise InvalidArgument("--auth none admits everyone, so the bridge must not be reachable from other machines")


def _warn(arguments: argparse.Namespace) -> None:
    if arguments.auth == "none":
        log.warning("WITHOUT AUTHENTICATION: every user and program of this machine can use these servers")
    if arguments.allow_remote and arguments.tls_cert is None:
        log.warning(
            "WITHOUT TLS: the token and all calls travel unencrypted; give --tls-cert, or put a proxy before it"
        )


def _gate_alone(arguments: argparse.Namespace) -> Gate:
    token = None
    if arguments.token_file is not None:
        # Secrets that a container is given are files that everybody in it can read.
        read_token(arguments.token_file, may_be_seen=True)
        token = TokenFile(arguments.token_file, may_be_seen=True)
    return Gate(
        OneUser(os.getuid(), token),
        allowed_origins=frozenset(arguments.allow_origin),
        allowed_hosts=frozenset(name.lower() for name in arguments.allow_host),
        any_address=arguments.allow_remote,
    )


def _observer(parts: Parts, audit: str) -> Observer:
    from mcpd.bridge.observe.audit import output_for  # after what can go wrong on the command line
    from mcpd.bridge.observe.observer import Observer

    return Observer(parts.metrics, output_for(audit))


def _file(name: str) -> Path | None:
    return Path(name) if name else None


def _certificate(certificate: Path | None, key: Path | None) -> Certificate | None:
    if certificate is None:
        if key is not None:
            raise InvalidArgument(f"{key} is the key of a certificate, which is missing: add it, or omit both")
        return None
    from mcpd.bridge.http.tls import Certificate  # few need it

    return Certificate(certificate, key)


def _positive(name: str, value: float) -> bool:
    if not value > 0:
        raise InvalidArgument(f"--{name.replace('_', '-')} takes a number above 0")
    return True


def _check_not_alone(arguments: argparse.Namespace) -> None:
    for name in (
        "auth", "token_file", "allow_remote", "allow_host", "allow_origin", "tls_cert", "tls_key", "audit", "sharing",
        *OVERRIDES,
    ):  # fmt: skip
        if getattr(arguments, name):
            raise InvalidArgument(
                f"--{name.replace('_', '-')} requires --server or --config; "
                "the bridge of mcpd's servers always asks TCP clients for a token, and its settings are in mcpd.toml"
            )


def _run_mcpd(arguments: argparse.Namespace) -> None:
    _check_not_alone(arguments)
    # Only this form needs the settings and D-Bus, which take their time to import.
    from mcpd import paths, settings
    from mcpd.bridge.upstream.mcpd_source import McpdSource, warn_if_unreachable

    system: bool = arguments.system
    known = paths.from_environment()
    layout = known.system if system else known.user
    files = places(layout)
    layers = [known.system.settings] if system else [known.system.settings, known.user.settings]

    def read() -> BridgeSettings:
        return settings.load(layers).bridge

    chosen = read()
    budget = Budget(chosen.max_buffered, SHARES if system else 1)
    parts = Parts(McpdSource(system=system), _options(chosen, arguments), Tasks(), budget)
    parts.site = site = Site(
        "system" if system else "user",
        files.socket,
        key=files.key,
        mcps=tuple(map(str, _mcps(known, layout))),
        certificate=_certificate(_file(chosen.tls_certificate), _file(chosen.tls_key)),
    )
    parts.watch = observer = _observer(parts, chosen.audit)
    gate = Gate(
        _admission(files, system=system),
        frozenset(chosen.allowed_origins),
        sign_in=None if system else SignIn(),
        passes=None if system else Passes(files.calls_key),
    )

    def reload(service: Service) -> None:
        fresh = read()
        # What can fail comes first, so that the settings are taken over as a whole or not at all.
        observer.reopen()
        if site.certificate is not None:
            site.certificate.load()
        parts.take_over(_options(fresh, arguments))
        budget.total = fresh.max_buffered
        gate.allowed_origins = frozenset(fresh.allowed_origins)
        gate.edition += 1
        service.idle_exit = fresh.idle_exit if holds_all else 0

    with contextlib.ExitStack() as stack:
        sockets = listeners.passed_listeners()
        passed = len(sockets)
        if not passed:
            for path in (files.socket, files.stdio, *(() if system else (files.calls,))):
                sockets.append(listeners.unix_listener(path, MAY_USE_SYSTEM if system else ""))
                stack.callback(path.unlink, missing_ok=True)
        # Each user needs another port, so that of mcpd.toml is for the bridges of users.
        listen = arguments.listen or ("" if system else chosen.listen)
        site.port_changes = listen.endswith(":0")
        _add_tcp(sockets, listen, None if system else files.token, by_hand=bool(arguments.listen))
        holds_all = len(sockets) == passed
        if not holds_all and not system:
            stack.callback(files.url.unlink, missing_ok=True)
        for each in sockets:
            stack.callback(each.close)
        if not system:
            site.open_tcp = _opener(site, files, stack)
        _serve(
            parts,
            gate,
            sockets,
            _Run(
                files,
                system=system,
                reload=reload,
                idle_exit=chosen.idle_exit if holds_all else 0,
                check=lambda: warn_if_unreachable(system=system),
            ),
        )


def _add_tcp(sockets: list[socket.socket], listen: str, token: Path | None, *, by_hand: bool) -> None:
    """Listen on the address *listen*, too, if there is one; a user's bridge that listens on TCP has a *token*.

    Raises :class:`~mcpd.errors.Busy` if the address is taken and was given *by_hand*. One of the settings that is taken
    does not keep the other sockets from being served.
    """
    if token is not None and (listen or any(each.family != socket.AF_UNIX for each in sockets)):
        load_token(token)
    if not listen:
        return
    try:
        sockets.append(listeners.tcp_listener(listen, remote=False))
    except Busy:
        if by_hand or token is None:
            raise
        _give_up(listen, token)


def _give_up(address: str, token: Path) -> None:
    """Log that *address* is taken; if another user has it, remove *token*, which clients may have sent there."""
    uids = tcp_owner.listening(*listeners.split_address(address))
    if uids == {os.getuid()}:
        log.error("%s is in use by another program of yours, so it is not served", address)
        return
    remove_token(token)
    log.error(
        "%s belongs to %s, to whom clients may have sent the token: it is void, and the address is not served. Have the"
        " address freed, or use mcpd-bridge-tcp.socket instead of [bridge] listen; then ask for a token again",
        address,
        ", ".join(f"uid {uid}" for uid in sorted(uids)) or "another user",
    )


def _opener(site: Site, files: Places, stack: contextlib.ExitStack) -> Callable[[], Awaitable[str]]:
    """What opens a port of loopback for *site* if it has none; *stack* closes it."""

    async def open_tcp() -> str:
        if not site.urls and site.listen is not None:
            listener = stack.enter_context(listeners.tcp_listener("127.0.0.1:0", remote=False))
            url = listeners.url_of(listener, site.scheme)
            try:
                files.url.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                files.url.write_text(url + "\n", encoding="ascii")
            except OSError as error:
                listener.close()
                raise from_oserror(error, f"writing {files.url}") from error
            stack.callback(files.url.unlink, missing_ok=True)
            site.port_changes = True
            site.urls.append(url)
            await site.listen(listener)
        return site.urls[0]

    return open_tcp


def _mcps(known: Paths, layout: Layout) -> list[Path]:
    """Where the mcps map of *layout* is read from."""
    layers = [known.system] if layout.scope == "system" else [known.system, known.user]
    return [known.vendor_mcps, *(file for each in layers for file in (each.mcps, each.mcps_dir / "*.json"))]


def _options(chosen: BridgeSettings, arguments: argparse.Namespace) -> Options:
    return Options(
        idle_timeout=chosen.idle_timeout,
        call_timeout=chosen.call_timeout,
        max_body=chosen.max_body,
        max_line=chosen.max_line,
        max_sessions=chosen.max_sessions,
        max_children=chosen.max_children,
        keepalive=chosen.keepalive,
        rate=chosen.rate,
        burst=chosen.burst,
        strict_sessions=arguments.strict_sessions or chosen.strict_sessions,
    )


def _admission(files: Places, *, system: bool) -> Admission:
    if system:
        return Everybody(Tokens(files.token))
    return OneUser(os.getuid(), TokenFile(files.token))


@dataclass(frozen=True, slots=True)
class _Run:
    """Tasks of the bridge of mcpd's servers in addition to serving."""

    files: Places
    system: bool
    reload: Callable[[Service], None]
    idle_exit: float
    check: Callable[[], Coroutine[object, object, None]]
    """Runs beside the start."""

    def publish(self, urls: Sequence[str]) -> None:
        """Write the first of *urls*, if there is one, where the clients of a user's bridge look for it."""
        if self.system:
            return
        if urls:
            self.files.url.write_text(urls[0] + "\n", encoding="ascii")
            log.info("clients of the URL send the token in %s", self.files.token)
        else:
            self.files.url.unlink(missing_ok=True)


def _serve(parts: Parts, gate: Gate, sockets: list[socket.socket], run: _Run | None = None) -> None:
    """Serve until the end."""
    import asyncio

    import uvloop

    from mcpd.bridge.http.server import Service, serve

    site = parts.site
    tcp = [each for each in sockets if each.family != socket.AF_UNIX]
    urls = site.urls = [listeners.url_of(each, site.scheme) for each in tcp]
    own = [each.getsockname() for each in sockets if each.family == socket.AF_UNIX]

    def ready() -> None:
        if run is not None:
            run.publish(urls)
        for url in urls:
            log.info("listening on %s/mcp/NAME", url)
        whom = "for those who may open it" if run is not None and run.system else "for this user only"
        for path in own:
            log.info("listening on the unix socket %s, %s", path, whom)

    service = Service(ready) if run is None else Service(ready, run.reload, run.idle_exit)

    async def main() -> None:
        checking = [] if run is None else [asyncio.create_task(run.check())]
        try:
            await serve(parts, gate, sockets, service)
        finally:
            for task in checking:
                task.cancel()
            for fault in await asyncio.gather(*checking, return_exceptions=True):
                if isinstance(fault, Exception):
                    log.error("the check at the start failed", exc_info=fault)

    keep_large_blocks()
    settle()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


if __name__ == "__main__":
    sys.exit(main())
