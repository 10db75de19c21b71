# SPDX-License-Identifier: LGPL-2.1-or-later
"""The manual pages against what they describe, and against the tools that read them."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest

from mcpd.cli.parser import build_parser
from mcpd.errors import ERROR_PREFIX, TABLE
from mcpd.settings import Settings
from tests.preloaded import python

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
PAGES = {
    "llm-orc.1", "mcpctl.1", "mcp-orchestration.1", "mcp-scripts.1", "mcp-workstation.1", "mcpd.8", "mcpd-bridge.8",
    "mcpd.toml.5", "mcp-manifest.5", "mcp-policy.toml.5", "mcp-sources.list.5", "org.mcpd.Mcp1.5",
}  # fmt: skip
DETAILS = {
    "id", "ids", "source", "version", "signed-by", "generation", "keys", "type", "signature", "key", "fingerprint",
    "job", "kind", "session", "owner-uid", "caller-uid", "caller-user", "caller-groups",
}  # fmt: skip
"""What rules of polkit are told of a change."""
NEEDED = ("scdoc", "man", "mandoc")

pytestmark = [
    pytest.mark.skipif(any(which(tool) is None for tool in NEEDED), reason="scdoc, man or mandoc is not installed"),
    pytest.mark.process,
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as they are installed."""
    directory = tmp_path_factory.mktemp("man")
    environ = os.environ | {"PYTHONPATH": str(REPOSITORY), "SOURCE_DATE_EPOCH": "1767225600"}
    subprocess.run([sys.executable, REPOSITORY / "packaging/gen-man.py", directory], env=environ, check=True)
    return directory


def shown(pages: Path, page: str) -> str:
    """*page* as a reader sees it, in one line per paragraph or so."""
    environ = os.environ | {"MANWIDTH": "4000", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    done = subprocess.run(
        ["man", "-E", "ascii", "--nh", "--nj", "-l", pages / page],
        env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def subparsers(parser: argparse.ArgumentParser, words: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from subparsers(inner, f"{words} {name}")


def section(text: str, heading: str) -> str:
    """What stands below *heading*, up to the next one of its level or a higher one."""
    match = re.search(rf"^( *){re.escape(heading)}\n(.*?)(?=^\1? ? ?\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"there is no {heading!r}"
    return match[2]


def test_there_is_a_page_for_everything(pages: Path) -> None:
    assert {page.name for page in pages.iterdir()} == PAGES


@pytest.mark.parametrize("page", sorted(PAGES))
def test_mandoc_has_nothing_to_say(pages: Path, page: str) -> None:
    done = subprocess.run(["mandoc", "-Tlint", pages / page], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stdout.splitlines() if not re.search(r": (STYLE): ", line)]
    assert complaints == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_groff_has_nothing_to_say(pages: Path, page: str) -> None:
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", pages / page],
        env=os.environ | {"LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_page_can_be_found_by_its_subject(pages: Path, page: str) -> None:
    text = shown(pages, page)
    name, number = page.rsplit(".", 1)
    assert text.lower().startswith(f"{name}({number})".lower())
    assert re.fullmatch(rf" *{re.escape(name)} - \S.*\S\n", section(text, "NAME").strip("\n") + "\n")
    for heading in ("DESCRIPTION", "SEE ALSO"):
        assert section(text, heading).strip()
    for other in re.findall(r"\b((?:mcp|org\.mcpd)[\w.-]*\(\d\))", section(text, "SEE ALSO")):
        assert other.replace("(", ".").rstrip(")") in PAGES


def test_every_command_and_option_of_mcpctl_is_described(pages: Path) -> None:
    text = shown(pages, "mcpctl.1")
    top = section(text, "OPTIONS")
    aliases = {"uninstall": "remove", "spawn": "run"}
    for words, parser in subparsers(build_parser(), "mcpctl"):
        name = words.rpartition(" ")[2]
        if name in aliases:
            assert f"{aliases[name]} ({name})" in text
            continue
        if words == "mcpctl":
            where = top
        elif any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
            where = text
        else:
            heading = re.search(rf"^ *{words}(?: \([\w, ]+\))?$", text, re.MULTILINE)
            assert heading, words
            where = text[heading.end() :].partition("\n   mcpctl ")[0]
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) or action.dest == "help":
                continue
            place = top if action.dest in {"asks_system", "asks_user", "interactive", "version"} else where
            for option in action.option_strings or [str(action.metavar)]:
                assert option in place, (words, option)
            assert not action.help or " ".join(action.help.split()) in " ".join(place.split()), (words, action.help)


def test_the_overview_of_mcpctl_lists_every_command() -> None:
    spans = re.findall(r"`([^`]+)`", (REPOSITORY / "docs/mcpctl.md").read_text())
    listed = {span.removeprefix("mcpctl ").split()[0] for part in spans for span in part.split(", ")}
    (commands,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(commands.choices) - {"uninstall", "spawn"} <= listed


@pytest.mark.parametrize(("module", "page"), [("mcpd.daemon", "mcpd.8"), ("mcpd.bridge.main", "mcpd-bridge.8")])
def test_every_option_of_the_services_is_described(pages: Path, module: str, page: str) -> None:
    done = subprocess.run(
        [python(), "-m", module, "--help"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", done.stdout.partition("options:")[2]))
    assert {"-h", "--help", "--version", "--user", "--system"} <= options
    described = section(shown(pages, page), "OPTIONS")
    missing = {option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", described)}
    assert missing == set()


def test_every_setting_is_described(pages: Path) -> None:
    text = shown(pages, "mcpd.toml.5")
    for name, field in Settings.model_fields.items():
        described = section(text, f"[{name.upper()}] SECTION OPTIONS")
        model = field.annotation
        assert isinstance(model, type)
        for key in model.model_fields:
            (entry,) = re.findall(rf"^ +{key} =\n +(\S.*)$", described, re.MULTILINE)
            assert re.search(r"\w{3,}.*\. (One of|An?) .*\. Default: \S+\.$", entry), key


def test_every_member_of_the_interfaces_is_described(pages: Path) -> None:
    text = shown(pages, "org.mcpd.Mcp1.5")
    files = sorted((REPOSITORY / "dbus").glob("*.xml"))
    assert len(files) == 4
    for file in files:
        for interface in ET.fromstring(file.read_text()).iter("interface"):
            described = section(text, f"{interface.attrib['name'].rpartition('.')[2].upper()} INTERFACE")
            for kind, end in (("method", r"\("), ("signal", r"\("), ("property", " ")):
                for member in interface.iter(kind):
                    match = re.search(rf"^ +{member.attrib['name']}{end}.*\n +(.*)", described, re.MULTILINE)
                    assert match, (interface.attrib["name"], member.attrib["name"])
                    for arg in member.iter("arg"):
                        assert f"{arg.attrib['type']} {arg.attrib['name']}" in match[0]


def test_every_action_of_polkit_and_what_rules_are_told_is_described(pages: Path) -> None:
    described = section(shown(pages, "mcpd.8"), "AUTHORIZATION")
    policy = ET.parse(REPOSITORY / "dbus/org.mcpd.mcp1.policy")
    actions = {action.attrib["id"].removeprefix("org.mcpd.mcp1.") for action in policy.iter("action")}
    assert actions <= set(re.findall(r"[a-z-]+", described.partition("pkaction")[0]))
    listed = [line.split(", ") for line in described.splitlines() if re.fullmatch(r" +[a-z-]+(, [a-z-]+)*", line)]
    assert {detail.strip() for details in listed for detail in details} == DETAILS


def test_every_text_says_which_generation_a_rollback_chooses() -> None:
    words = "the latest that differs from the active one"
    rollback = next(parser for command, parser in subparsers(build_parser(), "") if command == " rollback")
    texts = [
        " ".join(rollback.format_help().split()),
        (REPOSITORY / "dbus/org.mcpd.Mcp1.Manager.xml").read_text(),
        (REPOSITORY / "docs/catalog.md").read_text(),
    ]
    assert [words in text for text in texts] == [True] * 3


def test_a_prompt_names_all_that_its_action_is_asked_for() -> None:
    policy = ET.parse(REPOSITORY / "dbus/org.mcpd.mcp1.policy")
    prompts = {
        action.attrib["id"].rpartition(".")[2]: action.findtext("message") or "" for action in policy.iter("action")
    }
    expected = {
        "manage-sources": ["where MCP servers come from", "whose signatures are trusted"],
        "approve": ["put into use", "refuse", "changes the tools"],
    }
    for name, words in expected.items():
        assert [part for part in words if part not in prompts[name]] == [], name


def test_what_the_manual_is_made_with_is_named_where_it_is_missing() -> None:
    done = subprocess.run(
        ["make", "--silent", f"--directory={REPOSITORY}", "man", "docs_python=false"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode != 0, "packaging/setup.sh check" in done.stderr) == (True, True)


def test_every_error_is_described(pages: Path) -> None:
    described = section(shown(pages, "org.mcpd.Mcp1.5"), "ERRORS")
    own = {error.dbus_name.removeprefix(ERROR_PREFIX) for error in TABLE if error.dbus_name.startswith(ERROR_PREFIX)}
    assert own == set(re.findall(r"^       (\w+)$", described, re.MULTILINE))


def test_the_pages_are_the_same_when_built_again(pages: Path, tmp_path: Path) -> None:
    environ = os.environ | {"PYTHONPATH": str(REPOSITORY), "SOURCE_DATE_EPOCH": "1767225600"}
    subprocess.run([sys.executable, REPOSITORY / "packaging/gen-man.py", tmp_path], env=environ, check=True)
    for page in PAGES:
        assert (tmp_path / page).read_bytes() == (pages / page).read_bytes()
        assert b"2026" in (pages / page).read_bytes()
