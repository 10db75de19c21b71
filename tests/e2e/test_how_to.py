# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guides of docs/how-to, followed to the letter on a machine of their own.

Every ``sh`` block is run, in order, and has to succeed. A ``text`` block directly after one is what it prints: word for
word but for the width of columns, key ids, signatures and times, which stand for any; ``…`` stands for any text of a
line, and alone on a line for any lines.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
from base64 import b64decode
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from tests.rig import BIN, Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
GUIDES = sorted((REPOSITORY / "docs/how-to").glob("0*.md"))
NAMES = (
    "01-discover-clients", "02-get-first-config", "03-check-updates", "04-verify-signatures", "05-use-config"
)  # fmt: skip
HOME = "/home/user"
"""What the guides call the home of whoever follows them."""
VARYING = (
    r"orchestration-[0-9a-f]{16}",
    r"[A-Za-z0-9+/]{86}==",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?",
)
"""Key ids, signatures and times."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("jq", "openssl"))), reason="the guides take jq and openssl, which are not installed"
)


@dataclass(frozen=True, slots=True)
class Step:
    """A block to run, and what it prints if the guide says so."""

    line: int
    script: str
    expected: str | None


def steps(guide: Path) -> Iterator[Step]:
    """What *guide* tells its reader to do."""
    text = guide.read_text()
    found = list(FENCE.finditer(text))
    used = set()
    for at, block in enumerate(found):
        if block[1] != "sh":
            continue
        following = found[at + 1] if at + 1 < len(found) else None
        expected = None
        if following and following[1] == "text" and not text[block.end() : following.start()].strip():
            expected = following[2]
            used.add(at + 1)
        yield Step(text.count("\n", 0, block.start()) + 2, block[2], expected)
    unused = [block for at, block in enumerate(found) if block[1] == "text" and at not in used]
    assert not unused, f"{guide.name}: no block prints {unused[0][2]!r}"


def pattern(expected: str) -> re.Pattern[str]:
    """What the output has to match. What varies has to be the same wherever the block has the same."""
    seen: dict[str, str] = {}
    out = []
    for line in expected.splitlines():
        if line.strip() == "…":
            out.append(r"(?:.*\n)*?")
        else:
            pieces = re.split(f"(…|{'|'.join(VARYING)})", " ".join(line.split()))
            out += [_piece(piece, seen) for piece in pieces]
            out.append(r"\n")
    return re.compile("".join(out))


def _piece(piece: str, seen: dict[str, str]) -> str:
    kind = next((each for each in VARYING if re.fullmatch(each, piece)), None)
    if piece == "…":
        return r"[^\n]*?"
    if kind is None:
        return re.escape(piece)
    if piece in seen:
        return f"(?P={seen[piece]})"
    seen[piece] = f"v{len(seen)}"
    return f"(?P<{seen[piece]}>{kind})"


class Machine(Rig):
    """A machine with the bundled server, on which a reader works in a directory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.work = self.home / "work"
        programs = self.home / "bin"
        self.environ |= {"PATH": f"{programs}:{BIN}:{self.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        self.work.mkdir()
        programs.mkdir()
        # For root the commands would mean the system's servers.
        mcpctl = programs / "mcpctl"
        mcpctl.write_text(f'#!/bin/sh\nexec {shlex.join(self.command())} "$@"\n')
        mcpctl.chmod(0o755)
        vendor = self.home / "system/usr/share/mcp/servers/mcp-orchestration"
        shutil.copytree(REPOSITORY / "data/share/servers/mcp-orchestration", vendor)

    def sh(self, script: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run *script* as a block of a guide, its messages among its output."""
        return subprocess.run(
            ["sh", "-e"], input=script, env=self.environ | changes, cwd=self.work,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip

    def follow(self, guide: Path) -> None:
        """Do what *guide* says, and compare."""
        for step in steps(guide):
            where = f"{guide.name}:{step.line}"
            done = self.sh(step.script)
            assert done.returncode == 0, f"{where} ended with {done.returncode}:\n{done.stdout}"
            if step.expected is not None:
                printed = done.stdout.replace(str(self.home), HOME)
                printed = "".join(" ".join(line.split()) + "\n" for line in printed.splitlines())
                assert pattern(step.expected).fullmatch(printed), f"{where} printed:\n{done.stdout}"

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool of the server answers."""
        done = self.mcpctl("call", "mcp-orchestration", tool, json.dumps(arguments), "--json")
        assert done.returncode == 0, done.stderr + done.stdout
        result = json.loads(done.stdout)
        answer: dict[str, Any] = result["structuredContent"]
        return answer

    def json(self, name: str) -> Any:
        """A file that the reader has made."""
        return json.loads((self.work / name).read_text())

    def json_of(self, *argv: str) -> Any:
        """What ``mcpctl`` prints."""
        done = self.mcpctl(*argv)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def followed(*names: str) -> Iterator[Machine]:
    """A machine on which the guides *names* were followed."""
    with Machine() as machine:
        machine.start_daemon()
        machine.start_bridge()
        for name in names:
            machine.follow(REPOSITORY / "docs/how-to" / f"{name}.md")
        yield machine


@pytest.fixture(scope="module")
def discovered() -> Iterator[Machine]:
    """Where the first guide was followed."""
    yield from followed("01-discover-clients")


@pytest.fixture(scope="module")
def configured() -> Iterator[Machine]:
    """Where the second was."""
    yield from followed("02-get-first-config")


@pytest.fixture(scope="module")
def checked() -> Iterator[Machine]:
    """Where the third was."""
    yield from followed("03-check-updates")


@pytest.fixture(scope="module")
def verified() -> Iterator[Machine]:
    """Where the fourth was."""
    yield from followed("04-verify-signatures")


@pytest.fixture(scope="module")
def used() -> Iterator[Machine]:
    """Where the fifth was."""
    yield from followed("05-use-config")


def test_there_are_the_five_guides() -> None:
    assert [guide.stem for guide in GUIDES] == list(NAMES)


def test_what_a_guide_shows_is_compared() -> None:
    key, other, when = "orchestration-0123456789abcdef", "orchestration-0000000000000000", "2026-01-01T12:00:00Z"
    shown = pattern(f"KEY  MADE\n{key}  {when}\n…\nby {key}, … ago\n")
    assert shown.fullmatch(f"KEY MADE\n{other} 2027-02-03T00:00:01.5Z\nand\nmore\nby {other}, a day ago\n")
    assert not shown.fullmatch(f"KEY MADE\n{other} {when}\nby {key}, a day ago\n")
    assert not shown.fullmatch(f"KEY MADE\n{other} yesterday\nby {other}, a day ago\n")
    assert not shown.fullmatch(f"KEY MADE\n{other} {when}\nby {other}, a day ago\nand more\n")


@pytest.mark.parametrize("guide", NAMES)
def test_a_guide_leads_to_the_next_and_links_to_what_there_is(guide: str) -> None:
    file = REPOSITORY / "docs/how-to" / f"{guide}.md"
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", file.read_text())
    local = [(target, anchor) for target, anchor in links if not target.startswith("https:")]
    assert local
    for target, anchor in local:
        other = file.parent / target
        assert other.is_file(), target
        headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}


@needs_tools
def test_the_guides_can_be_followed_one_after_the_other() -> None:
    for machine in followed(*NAMES):
        assert (machine.home / ".cursor/mcp.json").is_file()


@needs_tools
def test_how_to_1_there_are_clients_with_profiles(discovered: Machine) -> None:
    answer = discovered.ask("list_clients")
    assert answer["count"] == len(answer["clients"]) >= 3
    assert all(client["available_profiles"] for client in answer["clients"])
    for client in answer["clients"][:3]:
        profiles = discovered.ask("list_profiles", client_id=client["client_id"])["profiles"]
        assert [each["profile_id"] for each in profiles] == client["available_profiles"] != []


@needs_tools
def test_how_to_2_the_configuration_is_named_by_its_hash_and_signed(configured: Machine) -> None:
    config = configured.json("config.json")
    assert re.fullmatch("[a-f0-9]{64}", config["artifact_id"])
    assert hashlib.sha256(canonical(config["payload"])).hexdigest() == config["artifact_id"]
    key = configured.home / ".mcp-orchestration/verification_key.pem"
    load_key(key.read_bytes()).verify(b64decode(config["signature"]), canonical(config["payload"]))
    stored = configured.home / f".mcp-orchestration/artifacts/{config['artifact_id']}.json"
    assert stored.read_bytes() == canonical(config["payload"])
    assert stat.S_IMODE((configured.home / ".mcp-orchestration").stat().st_mode) == 0o700


@needs_tools
def test_how_to_3_the_check_says_what_it_finds(checked: Machine) -> None:
    newest = checked.ask("get_config", client_id="cursor")["artifact_id"]
    before = (checked.work / "cursor.id").read_text().strip()
    assert newest != before
    for _ in range(2):
        assert checked.sh(f"./check-update.sh cursor {newest}").returncode == 0
        assert checked.sh(f"./check-update.sh cursor {before}").returncode == 1
    for wrong in ("cursor " + "0" * 64, "nobody " + newest, "", "cursor x"):
        assert checked.sh(f"./check-update.sh {wrong}").returncode == 2, wrong
    assert checked.sh(f"./check-update.sh cursor {newest}", DBUS_SESSION_BUS_ADDRESS="unix:path=/x").returncode == 2


@needs_tools
def test_how_to_4_the_script_is_short_and_takes_one_library(verified: Machine) -> None:
    script = (verified.work / "verify.py").read_text()
    assert len(script.splitlines()) <= 20
    imported = {
        name.name.partition(".")[0] for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Import)
        for name in node.names
    } | {
        str(node.module).partition(".")[0] for node in ast.walk(ast.parse(script)) if isinstance(node, ast.ImportFrom)
    }  # fmt: skip
    assert imported - sys.stdlib_module_names == {"cryptography"}


@needs_tools
def test_how_to_4_it_needs_no_network_and_no_mcpd(verified: Machine) -> None:
    alone = ["bwrap", "--unshare-all", "--clearenv", "--dev-bind", "/", "/", "--tmpfs", str(verified.runtime)]
    done = subprocess.run(
        [*alone, sys.executable, "-I", "verify.py", "config.json", "verification_key.pem"],
        cwd=verified.work, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"valid: {verified.json('config.json')['artifact_id']}\n"


@needs_tools
@pytest.mark.parametrize(
    "change",
    [
        ".payload.mcpServers.hello.args[1] = \"x\"", ".payload.mcpServers.more = {}", ".artifact_id |= ascii_upcase",
        ".client_id = \"vscode\"", ".profile_id = \"dev\"", ".created_at |= sub(\"20\"; \"21\")",
        ".signing_key_id += \"0\"", ".signature |= \"A\" + .[1:]", ".metadata.release_signature = .signature",
    ],
)  # fmt: skip
def test_how_to_4_nothing_that_is_signed_can_be_changed(verified: Machine, change: str) -> None:
    (verified.work / "changed.json").write_text(
        subprocess.run(
            ["jq", change, "config.json"], cwd=verified.work, capture_output=True, text=True, check=True
        ).stdout
    )
    for command in (
        "python3 verify.py changed.json verification_key.pem",
        "mcpctl client verify changed.json --key verification_key.pem",
        "mcpctl client verify changed.json",
    ):
        assert verified.sh(command).returncode == 1, command


@needs_tools
def test_how_to_4_the_old_key_stays_for_thirty_days(verified: Machine) -> None:
    keys = verified.json_of("client", "keys", "show", "--json")["keys"]
    (old,) = [key for key in keys if key["expires_at"]]
    assert len(keys) == 2
    assert days(old["retired_at"], old["expires_at"]) == 30
    assert verified.json("config.json")["signing_key_id"] == old["key_id"]
    signing = verified.home / ".mcp-orchestration/keys/signing_key.pem"
    assert stat.S_IMODE(signing.stat().st_mode) == 0o600


@needs_tools
def test_how_to_5_what_is_not_ours_stays_and_can_be_had_back(used: Machine) -> None:
    file = used.home / ".cursor/mcp.json"
    before = used.json("before.json")
    now = json.loads(file.read_text())
    assert {key: value for key, value in now.items() if key != "mcpServers"} == {
        key: value for key, value in before.items() if key != "mcpServers"
    }
    assert before["mcpServers"].items() <= now["mcpServers"].items()
    assert now["mcpServers"].keys() > before["mcpServers"].keys()
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    back = [used.mcpctl("client", "undo", "cursor", *force) for force in ((), (), ("--force",))]
    assert [done.returncode for done in back] == [0, 0, 0], [done.stderr for done in back]
    assert file.read_bytes() == (used.work / "before.json").read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def canonical(value: object) -> bytes:
    """What is hashed and signed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def load_key(pem: bytes) -> Ed25519PublicKey:
    """The public key in *pem*."""
    key = load_pem_public_key(pem)
    assert isinstance(key, Ed25519PublicKey)
    return key


def days(begin: str, end: str) -> float:
    """The days between two times."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() / 86400
