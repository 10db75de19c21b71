# SPDX-License-Identifier: LGPL-2.1-or-later
"""One booted machine for most tests, and fresh ones for those that break things.

Without root or the programs it takes, these tests are skipped, unless ``MCPD_REQUIRE_SYSTEM`` is set.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.image import PASSWORDS, base, furnish, packages_under_test
from tests.system.machine import CommandFailed, Machine, Overlay, clean_up_after_others, remains, unable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

HERE = Path(__file__).parent
LOGS = HERE.parents[1] / "build/system-logs"
"""Console and journal of the machines of failed tests."""
REQUIRED = bool(os.environ.get("MCPD_REQUIRE_SYSTEM"))
SETTINGS = ("etc/mcp/*.toml", "etc/mcp/keys.d/*", "etc/systemd/**/*", "etc/polkit-1/**/*", "etc/dbus-1/**/*",
            "usr/share/mcp/servers/*", "usr/share/polkit-1/**/*")  # fmt: skip
MACHINES = pytest.StashKey[list[Machine]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = unable()
    # Last: the machine that they share is a child of this process, and other tests count those.
    items.sort(key=lambda item: item.path.is_relative_to(HERE))
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker(pytest.mark.timeout(180, func_only=True))
        if why and not REQUIRED:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="module", autouse=True)
def no_child_stays() -> None:
    """Here modules share what runs, a whole machine."""


@pytest.fixture(scope="session")
def layers() -> Iterator[list[Path]]:
    """What a machine is booted from, the uppermost first: the packages under test on a Debian."""
    if why := unable():
        pytest.fail(f"MCPD_REQUIRE_SYSTEM is set: {why}")
    clean_up_after_others()
    packages = packages_under_test()
    with base(packages) as debian, Overlay([debian]) as layer:
        furnish(layer.root, packages)
        yield [layer.finish(), debian]
    assert remains() == []


@pytest.fixture(scope="session")
def _shared(layers: list[Path]) -> Iterator[Machine]:
    with Overlay(layers) as overlay:
        machine = Machine(overlay)
        try:
            machine.boot()
            yield machine
        finally:
            machine.shut()


@pytest.fixture
def machine(_shared: Machine, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """The machine that tests share. Servers installed in it go after the test; all else is left as it was found."""
    request.node.stash.setdefault(MACHINES, []).append(_shared)
    servers, settings = _servers(_shared), _settings(_shared)
    yield _shared
    for user, server in _servers(_shared) - servers - {("root", "echo")}:
        _shared.mcpctl("remove", server, user=user)
    assert _settings(_shared) == settings


def _servers(machine: Machine) -> set[tuple[str, str]]:
    """The servers that are installed there, and who has them; root those of the system."""
    places = {user: machine.image / f"home/{user}/.local/share/mcp/installed" for user in PASSWORDS}
    places["root"] = machine.image / "var/lib/mcp/installed"
    return {(user, path.name) for user, place in places.items() for path in place.glob("*") if path.is_symlink()}


def _settings(machine: Machine) -> set[Path]:
    """The files there that change how mcpd and its surroundings behave, but for sources: an empty list stays."""
    found = {path for pattern in SETTINGS for path in machine.image.glob(pattern)}
    return found | set((machine.root / "run/systemd/system").glob("*.d/*"))


@pytest.fixture
def fresh_machine(layers: list[Path], request: pytest.FixtureRequest) -> Iterator[Callable[[], Machine]]:
    """Boots a machine of the test's own."""
    with ExitStack() as stack:

        def fresh() -> Machine:
            machine = Machine(stack.enter_context(Overlay(layers)))
            request.node.stash.setdefault(MACHINES, []).append(machine)
            stack.callback(machine.shut)
            machine.boot()
            return machine

        yield fresh


@pytest.fixture(scope="session")
def echo(_shared: Machine) -> str:
    """The id of the server of ``servers/echo``, installed for the system from its git repository."""
    _shared.mcpctl("install", "git+file:///srv/git/echo", "--id", "echo", "--yes", timeout=120)
    return "echo"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    report = yield
    if not isinstance(report, pytest.TestReport):
        return report
    if report.skipped and REQUIRED:
        report.outcome = "failed"
        report.longrepr = f"MCPD_REQUIRE_SYSTEM is set, but this was skipped: {report.longrepr}"
    if report.failed:
        for machine in item.stash.get(MACHINES, []):
            _keep(report, machine, item.nodeid.rpartition("/")[2].replace("::", "."), call.start)
    return report


def _keep(report: pytest.TestReport, machine: Machine, test: str, since: float) -> None:
    """Print what the machine said during the test, and keep the whole of it."""
    directory = LOGS / "".join(char if char.isalnum() or char in "._-" else "_" for char in test)
    directory.mkdir(parents=True, exist_ok=True)
    console = machine.console.read_text(errors="replace") if machine.console.exists() else ""
    (directory / "console").write_text(console)
    try:
        (directory / "journal").write_text(machine.run("journalctl", "-b", "-o", "short-precise").stdout)
        recent = machine.run("journalctl", "-b", "-q", f"--since=@{since:.0f}").stdout
        report.sections.append(("journal of the machine", recent[-8000:]))
    except (CommandFailed, OSError) as error:
        report.sections.append(("console of the machine", f"{console[-4000:]}\n{error}"))


def pytest_sessionfinish() -> None:
    """Nothing but the logs of failed tests stays."""
    with suppress(OSError):
        LOGS.rmdir()
