# SPDX-License-Identifier: LGPL-2.1-or-later
"""The composition root of mcpd: builds the parts and wires them, nothing else."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import pwd
import signal
import sys
from typing import TYPE_CHECKING, Final

from pydantic import ConfigDict

from mcpd import __version__
from mcpd import paths as locations
from mcpd import settings as configuration
from mcpd.bus.connection import Connection
from mcpd.bus.core import Core
from mcpd.bus.dispatcher import MAX_CALL
from mcpd.bus.library import bus_address
from mcpd.bus.names import BUS_NAME
from mcpd.bus.polkit import OwnUser, Polkit
from mcpd.bus.service import Service
from mcpd.bus.systemd import unit_manager
from mcpd.catalog import Catalog
from mcpd.errors import McpdError, ServiceUnavailable
from mcpd.install.installer import Installer
from mcpd.notify import notify
from mcpd.paths import Paths, Scope
from mcpd.runtime.launchers import launcher_for
from mcpd.runtime.sessions import Sessions
from mcpd.settings import Settings
from mcpd.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

BRIDGE_USER: Final = "mcpd-bridge"
LEVELS: Final = ("debug", "info", "warning", "error")

log = logging.getLogger(__name__)


class LiveSettings(Settings):
    """Settings that every part looks at when it needs them, so that a reload reaches them all.

    Only the launcher and the number of generations kept are chosen at the start.
    """

    model_config = ConfigDict(frozen=False)

    def replace(self, new: Settings) -> None:
        """Take over the values of *new*."""
        for name in Settings.model_fields:
            setattr(self, name, getattr(new, name))


class Daemon:
    """One running instance."""

    def __init__(self, scope: Scope, paths: Paths) -> None:
        self._scope = scope
        self._paths = paths
        self._settings = LiveSettings.model_validate(self._load().model_dump())
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal asks for the end.

        Raises :class:`~mcpd.errors.ServiceUnavailable` if there is no bus, the bus goes away, or another mcpd is
        there already.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        address = bus_address(system=self._scope is Scope.SYSTEM)
        async with await Connection.open(address, max_message=MAX_CALL) as connection:
            if not await connection.request_name(BUS_NAME):
                raise ServiceUnavailable(f"the name {BUS_NAME} is taken: another mcpd runs on this bus")
            await self._serve(connection)

    async def _serve(self, connection: Connection) -> None:
        store = Store(self._paths, self._scope, keep_generations=self._settings.install.keep_generations)
        store.recover()
        units = await unit_manager(connection) if self._scope is Scope.USER else None
        launcher = launcher_for(self._settings, units)
        sessions = Sessions(store, launcher, self._paths, self._settings, self._scope)
        catalog = Catalog(self._paths, self._scope, self._settings)
        installer = Installer(store, catalog, sessions, launcher, self._paths, self._settings, self._scope)
        core = Core(self._scope, self._settings, store, catalog, sessions, installer, launcher.name, __version__)
        service = _service(connection, core)
        try:
            await service.start()
            notify("READY=1")
            log.info("mcpd %s serves the %s scope", core.version, self._scope)
            await self._until_the_end(connection)
        finally:
            notify("STOPPING=1")
            await installer.close()
            await sessions.close()
            await service.close()

    async def _until_the_end(self, connection: Connection) -> None:
        lost = asyncio.create_task(connection.wait_lost())
        asked = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([lost, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            lost.cancel()
        if not self._stop.is_set():
            raise ServiceUnavailable(f"the connection to the message bus is lost: {lost.result()}")

    def _load(self) -> Settings:
        files = [self._paths.system.settings]
        if self._scope is Scope.USER:
            files.append(self._paths.user.settings)
        return configuration.load(files)

    def _reload(self) -> None:
        try:
            self._settings.replace(self._load())
        except McpdError as error:
            log.warning("The settings stay as they were: %s", error.message)
        else:
            log.info("The settings were read again")


def _service(connection: Connection, core: Core) -> Service:
    if core.scope is Scope.USER:
        return Service(connection, core, OwnUser(), only_uid=os.getuid())
    return Service(connection, core, Polkit(connection), bridge_uid=_bridge_uid())


def _bridge_uid() -> int | None:
    try:
        return pwd.getpwnam(BRIDGE_USER).pw_uid
    except KeyError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``mcpd``; returns its exit code."""
    parser = argparse.ArgumentParser(prog="mcpd", description="The MCP service of a Linux system, on D-Bus.")
    parser.add_argument("--version", action="version", version=f"mcpd {__version__}", help="print the version")
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--system", action="store_const", const=Scope.SYSTEM, dest="scope", help="serve the system bus")
    scope.add_argument("--user", action="store_const", const=Scope.USER, dest="scope", help="serve the session bus")
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    args = parser.parse_args(argv)
    logging.basicConfig(level=args.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(Daemon(args.scope, locations.from_environment()).run())
    except McpdError as error:
        sys.stderr.write(f"mcpd: {error.message}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
