# SPDX-License-Identifier: LGPL-2.1-or-later
"""install, remove, update, rollback and refresh: jobs from the call to the end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import codec
from mcpd.errors import AlreadyInstalled, Busy, NotFound
from tests.cli.fake import NETWORK, need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcpd.errors import McpdError
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd, Job

KEY = need("config", "api_key", label="API key", sensitive=True, type="string")
DIGITS = need("config", "digits", label="Digits", type="integer")
UNCHECKED = need("unchecked", "https://far.example/mcp", description="far did not answer within 30 s")


async def test_install_from_the_catalog(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("fetching", progress=40)
    argv = ["install", "calculator", "--yes", "--set", "digits=3", "--set", "name=x y", "--reinstall"]
    process = await mcpctl.start(*argv)
    assert process.stderr is not None
    await process.stderr.readuntil(b"calculator: fetching\n")
    mcpd.jobs[0].enter("activating", progress=90)
    await process.stderr.readuntil(b"calculator: activating\n")
    mcpd.jobs[0].end()
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"Installed calculator 1.0 (user).\n")
    options = {"consent": True, "reinstall": True, "config": {"digits": 3, "name": "x y"}}
    assert ("Install", "calculator", options) in mcpd.calls


@pytest.mark.parametrize(
    ("properties", "listed", "said"),
    [
        ([{"key": "url"}, {"key": "token", "sensitive": True}, {"key": "set"}], 0,
         "lists no tools yet. It may need configuration (url, token); see 'mcpctl config get calculator'.\n"),
        ([{"key": "set"}], 0, "calculator lists no tools. If it should, see its documentation.\n"),
        ([{"key": "url"}], 2, ""),
    ],
)  # fmt: skip
async def test_a_server_that_lists_no_tools_is_installed_with_a_hint(
    mcpctl: Mcpctl, mcpd: FakeMcpd, properties: list[dict[str, Any]], listed: int, said: str
) -> None:
    mcpd.config["calculator"] = ({"set": "x"}, [])
    mcpd.servers["calculator"] |= {"configurable-properties": properties, "tools": codec.Variant("u", listed)}
    ended = await mcpctl("install", "calculator")
    assert (ended.code, ended.out) == (0, "Installed calculator 1.0 (user).\n")
    assert ended.err.endswith(said)
    assert ("lists no tools" in ended.err) == bool(said)


async def test_a_failed_job_is_a_failed_command(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.end("failed", "org.mcpd.Mcp1.Error.BuildFailed", "calculator: no wheel for 3.11")
    ended = await mcpctl("install", "calculator")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith("mcpctl: calculator: no wheel for 3.11\n")


@pytest.mark.parametrize(
    ("error", "code", "way"),
    [
        (NotFound("no entry 'x'"), 4, "npm:NAME"),
        (AlreadyInstalled("x is installed; to do it again, mcpctl install --reinstall"), 1, ""),
        (Busy("x is busy"), 1, ""),
    ],
)
async def test_a_refused_job_keeps_its_error(
    mcpctl: Mcpctl, mcpd: FakeMcpd, error: McpdError, code: int, way: str
) -> None:
    mcpd.errors["Install"] = error
    ended = await mcpctl("install", "x")
    assert ended.code == code
    assert ended.err.startswith(f"mcpctl: {error.message}")
    assert way in ended.err
    assert ended.err.count("--reinstall") == error.message.count("--reinstall"), "it is said once"


async def test_consent_cannot_be_asked_without_a_terminal(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[NETWORK])
    ended = await mcpctl("install", "calculator")
    assert ended.code == 3
    assert "  network  (may use the network)\n" in ended.err
    assert "--yes" in ended.err
    assert mcpd.jobs[0].calls[0][0] == "Cancel"


async def test_yes_consents_to_what_comes_up_later(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[NETWORK])
    process = await mcpctl.start("update", "calculator", "--yes")
    job = await _job(mcpd)
    assert await job.wait_call() == [("Proceed", [{"server-id": "calculator"}])]
    job.end()
    await process.communicate()
    assert process.returncode == 0


async def test_missing_values_are_named_with_the_way_to_give_them(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-config", needs=[KEY, DIGITS])
    ended = await mcpctl("install", "calculator")
    assert ended.code == 1
    assert "calculator needs a value for api_key, digits" in ended.err
    assert "; set it with --secret-file api_key=FILE --set digits=VALUE, or run this at a terminal" in ended.err
    assert [call[0] for call in mcpd.jobs[0].calls] == ["Cancel"]


async def test_a_command_without_these_options_names_one_that_has_them(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-config", needs=[KEY])
    ended = await mcpctl("update", "calculator")
    assert ended.code == 1
    assert "; use 'mcpctl install' with --secret-file api_key=FILE, or run this at a terminal" in ended.err


async def test_a_secret_file_answers_the_job(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    mcpd.on_job = lambda job: job.enter("needs-config", needs=[KEY])
    process = await mcpctl.start("install", "calculator", "--secret-file", f"api_key={tmp_path}/key")
    job = await _job(mcpd)
    calls = await job.wait_call()
    job.end()
    out, err = await process.communicate()
    assert (process.returncode, calls[0][0], mcpd.received) == (0, "SetSecret", [b"s3cret"])
    assert b"s3cret" not in out + err


async def test_a_secret_nobody_asked_for_is_set_after_the_installation(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("install", "calculator", "--secret-file", "optional_key=-", stdin=b"s3cret")
    assert ended.code == 0
    assert [call[:3] for call in mcpd.calls if call[0] == "SetSecret"] == [("SetSecret", "calculator", "optional_key")]
    assert mcpd.received == [b"s3cret"]


async def test_interrupting_cancels_the_job(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("fetching")
    process = await mcpctl.start("install", "calculator")
    assert process.stderr is not None
    await process.stderr.readuntil(b"calculator: fetching\n")
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert mcpd.jobs[0].calls == [("Cancel", [{}])]


async def test_a_vanishing_mcpd_ends_the_command(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("fetching")
    process = await mcpctl.start("install", "calculator")
    assert process.stderr is not None
    await process.stderr.readuntil(b"calculator: fetching\n")
    await mcpd.close()
    _, err = await process.communicate()
    assert process.returncode == 1
    assert b"mcpd exited while the job was running" in err


async def test_remove_and_rollback_and_refresh(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers |= {"a": {"id": "a"}, "b": {"id": "b"}}
    assert (await mcpctl("remove", "a", "b", "--keep-config")).out == "Removed a.\nRemoved b.\n"
    assert (await mcpctl("rollback", "calculator", "--to", "2")).out == "Rolled back to calculator 1.0 (user).\n"
    assert (await mcpctl("refresh")).code == 0
    assert [call for call in mcpd.calls if call[0] != "GetServer"] == [
        ("Uninstall", "a", {"keep-config": True}),
        ("Uninstall", "b", {"keep-config": True}),
        ("Rollback", "calculator", {"generation": 2}),
        ("Refresh", {}),
        ("ListSources",),
    ]


async def test_remove_stops_at_the_first_failure(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers |= {"a": {"id": "a"}, "b": {"id": "b"}}
    mcpd.on_job = lambda job: job.end("failed", "org.mcpd.Mcp1.Error.ReadOnly", "'a' belongs to the system")
    assert (await mcpctl("remove", "a", "b")).code == 1
    assert len(mcpd.jobs) == 1


async def test_remove_of_an_unknown_server_removes_no_other(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    ended = await mcpctl("remove", "calculator", "nope", "calculator")
    assert (ended.code, "'nope'" in ended.err) == (4, True)
    assert mcpd.jobs == []


async def test_update_check_changes_nothing(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.servers["calculator"] |= {"state": "updatable", "available-version": "2.0"}
    ended = await mcpctl("update", "--check", "--json")
    assert [server["available-version"] for server in json.loads(ended.out)["updates"]] == ["2.0"]
    assert [call[0] for call in mcpd.calls] == ["CheckUpdates", "ListSources", "ListServers"]


FAILED = {"url": "https://a.example/r.json", "state": "failed", "problem": "no route"}
OFFLINE = {"url": "https://b.example/r.json", "state": "offline", "problem": "no route", "updated": 1_600_000_000}
SOURCE_FAULT = ("failed", "org.mcpd.Mcp1.Error.SourceUnavailable", "https://a.example/r.json: no route")


async def test_update_reads_the_registries_first(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    def read(job: Job) -> None:
        mcpd.servers["calculator"] |= {"state": "updatable", "available-version": "2.0"}
        job.end()

    mcpd.on_reading = read
    assert (await mcpctl("update")).out == "Updated calculator from 1.0 to 2.0.\n"


async def test_what_is_known_is_updated_though_registries_cannot_be_read(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.sources = [FAILED, OFFLINE, FAILED | {"url": "https://c.example/r.json", "state": "ready"}]
    ended = await mcpctl("update")
    assert (ended.code, ended.err.count("warning: ")) == (0, 2)
    assert "https://a.example/r.json could not be read (no route); none of its entries are known" in ended.err
    assert "https://b.example/r.json could not be read (no route); its entries are" in ended.err
    assert ended.err.endswith("Everything is up to date, as far as is known.\n")
    assert "warning: " in (await mcpctl("update", "--check")).err
    mcpd.on_reading = lambda job: job.end(*SOURCE_FAULT)
    mcpd.servers["calculator"] |= {"state": "updatable", "available-version": "2.0"}
    ended = await mcpctl("update")
    assert (ended.code, ended.out) == (0, "Updated calculator from 1.0 to 2.0.\n")
    assert ended.err.count("no route") == 2, "each fault is told once"
    mcpd.on_reading = lambda job: job.end("failed", "org.freedesktop.DBus.Error.AccessDenied", "not allowed")
    ended = await mcpctl("update")
    assert (ended.code, "warning: not allowed; there may be newer updates" in ended.err) == (0, True)


async def test_refresh_fails_if_a_registry_does(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.sources = [OFFLINE]
    ended = await mcpctl("refresh")
    assert (ended.code, "b.example" in ended.err) == (1, True)
    mcpd.on_reading = lambda job: job.end(*SOURCE_FAULT)
    ended = await mcpctl("refresh")
    assert (ended.code, ended.err.splitlines()[-1]) == (1, "mcpctl: none of the registries could be read")
    mcpd.sources = []
    assert "mcpctl: https://a.example/r.json: no route\n" in (await mcpctl("refresh")).err


async def test_what_is_not_updated_is_told_with_the_reason(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    origin = "https://a.example/r.json"
    mcpd.sources = [{"url": origin, "state": "ready"}]
    mcpd.generations = [{"generation": codec.Variant("u", 1), "state": "active", "registry": origin}]
    mcpd.servers = {
        "pinned": mcpd.servers["calculator"] | {"id": "pinned", "pinned": True},
        "still": mcpd.servers["calculator"] | {"id": "still", "pinned": True},
        "brought": mcpd.servers["calculator"] | {"id": "brought"},
        "other": mcpd.servers["calculator"] | {"id": "other"},
        "held": mcpd.servers["calculator"] | {"id": "held", "pending-version": "2.0"},
        "fine": mcpd.servers["calculator"] | {"id": "fine"},
    }
    mcpd.pages = [[{"id": "pinned", "version": "1.0", "available-version": "2.0", "origin": origin}]]
    pinned = "pinned is pinned to 1.0; its registry has 2.0. 'mcpctl pin --remove pinned' unpins it."
    mcpd.histories = {"brought": [mcpd.generations[0] | {"registry": ""}], "other": []}
    ended = await mcpctl("update", "pinned", "still", "brought", "other", "held")
    said = ended.err.splitlines()
    assert (ended.code, ended.out) == (0, "")
    assert said[-4:-1] == [
        pinned,
        "still is pinned to 1.0. 'mcpctl pin --remove still' unpins it.",
        "brought was not installed from a registry; install another version with --reinstall.",
    ]
    assert "'mcpctl approve held'" in said[-1]
    assert "up to date" not in (await mcpctl("update", "held")).err
    assert (await mcpctl("update", "fine")).err.splitlines()[-1] == "Everything is up to date."
    said = (await mcpctl("update")).err.splitlines()
    assert [line for line in said if "pinned" in line or "brought" in line] == [pinned]


async def test_update_of_everything(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    assert (await mcpctl("update")).err.endswith("Everything is up to date.\n")
    mcpd.servers["calculator"] |= {"state": "updatable", "available-version": "2.0"}
    assert (await mcpctl("update")).out == "Updated calculator from 1.0 to 2.0.\n"
    assert [call for call in mcpd.calls if call[0] == "Update"] == [("Update", ["calculator"], {"consent": False})]


async def test_a_person_at_the_terminal_is_asked(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[NETWORK])
    terminal = await Terminal.start(mcpctl, "install", "calculator")
    await terminal.answer("Do you agree? [y/N] ", "y")
    job = await _job(mcpd)
    await job.wait_call()
    job.enter("needs-config", needs=[KEY, DIGITS])
    await terminal.answer("API key: ", "s3cret")
    await terminal.answer("Digits: ", "many")
    await terminal.answer("Digits: ", "4")
    calls = await job.wait_call(3)
    job.end()
    assert await terminal.ended() == 0
    meant = {"server-id": "calculator"}
    assert calls[1:] == [("SetConfig", [{"digits": 4}, meant]), ("SetSecret", ["api_key", 0, meant])]
    assert mcpd.received == [b"s3cret"]
    assert "s3cret" not in terminal.seen
    assert "digits is an integer" in terminal.seen


async def test_a_person_who_refuses_ends_the_job(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[NETWORK])
    terminal = await Terminal.start(mcpctl, "install", "calculator")
    await terminal.answer("Do you agree? [y/N] ", "")
    assert await terminal.ended() == 1
    assert mcpd.jobs[0].calls == [("Cancel", [{}])]


async def test_ctrl_c_at_a_question_ends_the_job(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-config", needs=[KEY])
    terminal = await Terminal.start(mcpctl, "install", "calculator")
    await terminal.answer("API key: ", "\x03", enter="")
    assert await terminal.ended() == 130
    assert mcpd.jobs[0].calls == [("Cancel", [{}])]


async def test_a_remote_server_that_is_offline_is_installed_if_somebody_says_so(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[UNCHECKED])
    terminal = await Terminal.start(mcpctl, "install", "calculator")
    await terminal.answer("Install calculator anyway? [y/N] ", "y")
    job = await _job(mcpd)
    assert await job.wait_call() == [("Proceed", [{"server-id": "calculator"}])]
    job.end()
    assert await terminal.ended() == 0
    assert "far did not answer within 30 s" in terminal.seen


async def test_without_a_terminal_the_way_to_install_what_is_offline_is_named(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.enter("needs-consent", needs=[UNCHECKED])
    ended = await mcpctl("install", "calculator")
    assert ended.code == 1
    assert "far did not answer within 30 s; 'mcpctl install --no-check' installs it anyway" in ended.err
    assert mcpd.jobs[0].calls[0][0] == "Cancel"


async def test_no_check_reaches_mcpd(mcpctl: Mcpctl, mcpd: FakeMcpd) -> None:
    mcpd.on_job = lambda job: job.end()
    assert (await mcpctl("install", "calculator", "--no-check")).code == 0
    (options,) = [call[2] for call in mcpd.calls if call[0] == "Install"]
    assert options["no-check"] is True


@pytest.mark.parametrize(
    ("state", "need", "question"),
    [
        ("needs-config", KEY, "API key: "),
        ("needs-config", DIGITS, "Digits: "),
        ("needs-consent", NETWORK, "Do you agree? [y/N] "),
    ],
)
async def test_the_end_of_the_input_ends_the_job(
    mcpctl: Mcpctl, mcpd: FakeMcpd, state: str, need: dict[str, object], question: str
) -> None:
    mcpd.on_job = lambda job: job.enter(state, needs=[need])
    terminal = await Terminal.start(mcpctl, "install", "calculator")
    await terminal.answer(question, "\x04", enter="")
    assert await terminal.ended() == 1
    assert "mcpctl: cancelled: the input ended at the question " in terminal.seen
    assert mcpd.jobs[0].calls == [("Cancel", [{}])]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_at_a_question_ends_the_job(mcpctl: Mcpctl, mcpd: FakeMcpd, number: signal.Signals) -> None:
    mcpd.on_job = lambda job: job.enter("needs-config", needs=[KEY])
    terminal = await Terminal.start(mcpctl, "install", "calculator")
    await terminal.answer("API key: ", "", enter="")
    terminal.process.send_signal(number)
    assert await terminal.ended() == 130
    assert mcpd.jobs[0].calls == [("Cancel", [{}])]


class Terminal:
    """``mcpctl`` on a terminal of its own."""

    def __init__(self, process: asyncio.subprocess.Process, fd: int) -> None:
        self.seen = ""
        self._at = 0
        self.process = process
        self._fd = fd
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(fd, self._read)

    @classmethod
    async def start(cls, mcpctl: Mcpctl, *argv: str) -> Terminal:
        master, slave = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mcpd.cli.main", "--user", *argv,
            stdin=slave, stdout=slave, stderr=slave, env=mcpctl.environ, preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(slave)
        return cls(process, master)

    def _read(self) -> None:
        try:
            self.seen += os.read(self._fd, 65536).decode(errors="replace")
        except OSError:
            asyncio.get_running_loop().remove_reader(self._fd)
        self._news.set()

    def _read_rest(self) -> None:
        os.set_blocking(self._fd, False)
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 65536):
                self.seen += data.decode(errors="replace")

    async def answer(self, question: str, text: str, *, enter: str = "\n") -> None:
        async with asyncio.timeout(120):
            await self._until(lambda: question in self.seen[self._at :])
        self._at = self.seen.index(question, self._at) + len(question)
        os.write(self._fd, (text + enter).encode())

    async def ended(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), 20)
        self._read_rest()
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        return code

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def _job(mcpd: FakeMcpd) -> Job:
    async with asyncio.timeout(120):
        await mcpd.job_started.wait()
    return mcpd.jobs[0]
