# SPDX-License-Identifier: LGPL-2.1-or-later
"""The composition root of mcpd: creates its components and connects them."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import logging
import os
import pwd
import signal
import sys
from typing import TYPE_CHECKING, Final

from mcpd import __version__
from mcpd import paths as locations
from mcpd import settings as configuration
from mcpd.bus.authorization import OwnUser, Polkit
from mcpd.bus.connection import Connection, bus_address
from mcpd.bus.core import Core
from mcpd.bus.dispatcher import MAX_CALL
from mcpd.bus.idle import IdleExit
from mcpd.bus.log_control import LogControl
from mcpd.bus.names import BUS_NAME
from mcpd.bus.service import Service
from mcpd.bus.systemd import is_restarting, unit_manager
from mcpd.catalog import Catalog
from mcpd.errors import McpdError, ServiceUnavailable
from mcpd.files import remove_tree
from mcpd.install.installer import Installer
from mcpd.journal import configure
from mcpd.lifetime import RESTART_EXIT_STATUS, DaemonWork, StatusLine, feed_watchdog
from mcpd.notify import notify, passed_fds, reloading
from mcpd.paths import Paths, Scope
from mcpd.runtime.calls import Calls
from mcpd.runtime.fdstore import LeashStore
from mcpd.runtime.launchers import Launchers, PlainLauncher, launchers_for
from mcpd.runtime.self_check import GatedLauncher, verify_sandbox
from mcpd.runtime.sessions import Sessions
from mcpd.store import Store
from mcpd.trust.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcpd.install.job import JobEvent
    from mcpd.journal import LogSettings
    from mcpd.runtime.launch import Launcher
    from mcpd.runtime.sessions import SessionEvent
    from mcpd.settings import Settings

BRIDGE_USER: Final = "mcpd-bridge"
LEVELS: Final = ("debug", "info", "warning", "error")

log = logging.getLogger(__name__)


class Daemon:
    """One running instance of mcpd."""

    def __init__(self, scope: Scope, paths: Paths, log_settings: LogSettings, *, read_only: bool = False) -> None:
        self._scope = scope
        self._paths = paths
        self._read_only = read_only
        self._log_settings = log_settings
        self._settings_error: McpdError | None = None
        """Error in the settings that mcpd started with. While it is set, no server is started, and calls report it."""
        try:
            self._settings = self._load()
        except McpdError as error:
            log.error("No server will be started: %s", error.message)  # noqa: TRY400 -- a traceback would add nothing
            # The unusable file may contain read_only = true.
            read_only_settings = configuration.DaemonSettings(read_only=True)
            self._settings, self._settings_error = configuration.Settings(daemon=read_only_settings), error
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal or idleness ends mcpd; return the exit status.

        Raises :class:`~mcpd.errors.ServiceUnavailable` if there is no bus, the bus is lost, or another mcpd is running.
        """
        passed = passed_fds()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        # The settings have just been read.
        loop.add_signal_handler(signal.SIGHUP, _ignore_reload)
        address = bus_address(system=self._scope is Scope.SYSTEM)
        async with await Connection.open(address, max_message=MAX_CALL) as connection:
            if not await connection.request_name(BUS_NAME):
                raise ServiceUnavailable(f"the name {BUS_NAME} is taken: another mcpd is running on this bus")
            return await self._serve(connection, passed)

    async def _serve(self, connection: Connection, passed: Mapping[str, Sequence[int]]) -> int:
        units = await unit_manager(connection) if self._scope is Scope.USER else None
        found = launchers_for(self._settings, self._scope, self._paths, units)
        gates = self._gated_launchers(found)
        core = self._core(gates[0], gates[-1])
        records = self._paths.layout(self._scope).runtime / "sessions"
        outlive = core.launcher_name != PlainLauncher.name
        leashes = LeashStore(records, str(await connection.call_bus("GetId")), outlive=outlive)
        service = _service(connection, core, self._log_settings)
        jobs = core.installer.jobs
        status = StatusLine(core, service.installed)
        work = DaemonWork(core.sessions, jobs, leashes, gates)
        idle = IdleExit(connection, service.activity, work, lambda: self._settings.daemon.idle_exit)

        def on_event(_event: SessionEvent | JobEvent) -> None:
            service.activity.touch()
            status.changed()

        core.sessions.subscribe(leashes.on_session)
        core.sessions.subscribe(on_event)
        jobs.subscribe(on_event)

        def check_sandboxes() -> None:
            for gate in gates:
                gate.check(on_checked)

        def on_checked() -> None:
            core.sandbox_problem = "; ".join(filter(None, (gate.problem for gate in gates)))
            service.activity.touch()
            status.changed()

        def reload() -> None:
            self._reload(status)
            check_sandboxes()

        handed_over = is_idle = False
        watchdog = asyncio.create_task(feed_watchdog())
        try:
            await service.start(lambda: leashes.adopt(core.sessions, passed))
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
            notify("READY=1", f"STATUS={status.text()}")
            check_sandboxes()
            gc.freeze()  # these objects are permanent; scanning them repeatedly would take a sixth of a refresh's time
            log.info("mcpd %s serves the %s scope", core.version, self._scope)
            is_idle = await self._wait_for_end(connection, idle)
            handed_over = (is_idle or await is_restarting(connection)) and work.can_hand_over()
        finally:
            notify("STOPPING=1")
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _ignore_reload)
            status.close()
            await asyncio.gather(
                core.installer.close(), core.sessions.detach() if handed_over else core.sessions.close()
            )
            await service.close()
            for gate in gates:
                await gate.close()
            watchdog.cancel()
        return RESTART_EXIT_STATUS if is_idle and handed_over else 0

    def _gated_launchers(self, launchers: Launchers) -> list[GatedLauncher]:
        """Wrap the launchers for servers and for builds so that each checks its sandbox before it starts anything.

        Returns one launcher if both are the same.
        """

        async def verify(launcher: Launcher) -> None:
            if self._settings_error is not None:
                raise self._settings_error
            await verify_sandbox(launcher, self._paths, self._scope, self._settings)

        distinct = {id(launcher): launcher for launcher in (launchers.servers, launchers.builds)}
        return [GatedLauncher(launcher, verify) for launcher in distinct.values()]

    def _core(self, servers: Launcher, builds: Launcher) -> Core:
        settings, paths, scope = self._settings, self._paths, self._scope
        store = Store(paths, scope, keep_generations=settings.install.keep_generations)
        store.recover()
        calls = Calls(paths.user.runtime) if scope is Scope.USER else None
        sessions = Sessions(store, servers, paths, settings, scope, mcp_socket=calls)
        keys = Keys(paths, scope)
        catalog = Catalog(paths, scope, settings, keys)
        installer = Installer(store, catalog, sessions, Launchers(servers, builds), paths, settings, scope, keys)
        bundles = paths.layout(scope).cache / "bundles"
        try:
            remove_tree(bundles)  # left behind if an earlier mcpd was killed
        except OSError as error:
            log.warning("%s: %s", bundles, error.strerror)
        return Core(
            scope, settings, store, catalog, keys, sessions, installer, servers.name, __version__, bundles=bundles
        )

    async def _wait_for_end(self, connection: Connection, idle: IdleExit) -> bool:
        """Wait until mcpd should end; return whether it ends because it is idle."""
        lost = asyncio.create_task(connection.wait_lost())
        stopped = asyncio.create_task(self._stop.wait())
        leaving = asyncio.create_task(idle.run())
        try:
            await asyncio.wait([lost, stopped, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (lost, stopped, leaving):
                task.cancel()
        if self._stop.is_set():
            return False
        if lost.done():
            raise ServiceUnavailable(f"the connection to the message bus is lost: {lost.result()}")
        leaving.result()
        return True

    def _load(self) -> Settings:
        files = [self._paths.system.settings]
        if self._scope is Scope.USER:
            files.append(self._paths.user.settings)
        found = configuration.load(files, sandbox_off_from_files_only=self._scope is Scope.SYSTEM)
        if self._read_only:
            found.daemon = found.daemon.model_copy(update={"read_only": True})
        return found

    def _reload(self, status: StatusLine) -> None:
        reloading()
        try:
            self._settings.update_from(self._load())
        except McpdError as error:
            log.warning("Keeping the previous settings: %s", error.message)
            status.problem = f"Keeping the previous settings: {error.message}"
        else:
            log.info("Reloaded the settings")
            self._settings_error, status.problem = None, ""
        notify("READY=1", f"STATUS={status.text()}")


def _service(connection: Connection, core: Core, log_settings: LogSettings) -> Service:
    control = LogControl(log_settings)
    if core.scope is Scope.USER:
        return Service(connection, core, OwnUser(), only_uid=os.getuid(), log_control=control)
    bridge_uid = _bridge_uid()
    authority = Polkit(connection, bridge_uid=bridge_uid)
    return Service(connection, core, authority, bridge_uid=bridge_uid, log_control=control)


def _ignore_reload() -> None:
    """Ignore a reload while mcpd starts or stops."""


def _bridge_uid() -> int | None:
    try:
        return pwd.getpwnam(BRIDGE_USER).pw_uid
    except KeyError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``mcpd``; return its exit code."""
    parser = argparse.ArgumentParser(prog="mcpd", description="The MCP service of a Linux system, on D-Bus.")
    parser.add_argument("--version", action="version", version=f"mcpd {__version__}", help="print the version")
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--system", action="store_const", const=Scope.SYSTEM, dest="scope", help="serve the system bus")
    scope.add_argument("--user", action="store_const", const=Scope.USER, dest="scope", help="serve the session bus")
    parser.add_argument(
        "--read-only",
        action="store_true",
        help="refuse to install, update, remove and configure servers and registries",
    )
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="log this level and above (info)")
    args = parser.parse_args(argv)
    # Prints where mcpd is stuck when the service manager's watchdog ends it.
    faulthandler.enable()
    log_settings = configure(args.log_level, identifier="mcpd")
    try:
        daemon = Daemon(args.scope, locations.from_environment(), log_settings, read_only=args.read_only)
        return asyncio.run(daemon.run())
    except McpdError as error:
        sys.stderr.write(f"mcpd: {error.message}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
