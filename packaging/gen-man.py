# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python packaging/gen-man.py DIRECTORY``: write the manual pages.

mcpctl(1) comes from the parser (argparse-manpage), the other pages from ``man/*.scd`` (scdoc). In those,
``@settings@`` stands for the reference of mcpd.toml, which is taken from the settings' model,
``@interfaces@`` for that of the D-Bus interfaces, which is taken from their XML and its comments, ``@errors@`` for
the errors' classes, and ``@example@`` for the registry in docs/manifest.md.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from argparse_manpage.manpage import Manpage

from mcpd import __version__, errors, settings
from mcpd.bus.names import JOB, MANAGER, SERVER, SESSION
from mcpd.cli.parser import build_parser

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic.fields import FieldInfo

REPOSITORY = Path(__file__).parents[1]
SOURCES = REPOSITORY / "man"
NAMES = {"mcpctl": "find, install, configure and run MCP servers"}
CENTRE = "mcpd manual"
GLOBAL_OPTIONS = frozenset({"asks_system", "asks_user", "interactive"})
"""They are told once, not with every command."""
WIDTH = 76


# --- mcpctl(1) ---


def manual_parser() -> argparse.ArgumentParser:
    """mcpctl's parser without what the page says in sections of its own, or once for all commands."""
    parser = build_parser()
    parser.description = parser.epilog = None
    for inner in _subparsers(parser):
        inner.description = None
        for action in inner._actions:  # noqa: SLF001 -- argparse has no public way to list them
            if action.dest in GLOBAL_OPTIONS or action.dest == "help":
                action.help = argparse.SUPPRESS
    return parser


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in dict.fromkeys(action.choices.values()):
                yield inner
                yield from _subparsers(inner)


def mcpctl_page() -> str:
    """The whole page."""
    data = {
        "project_name": "mcpd",
        "version": __version__,
        "manual_title": CENTRE,
        "description": NAMES["mcpctl"],
        "include": str(SOURCES / "mcpctl.include"),
    }
    page = str(Manpage(manual_parser(), data, format="single-commands-section"))
    head, _, body = page.partition("\n")
    # A usage is not to be filled and says what is an option; the date in the first line is read by machines.
    body = re.sub(r"^(?:arguments|options):\n", "", _USAGE.sub(_unfilled, body), flags=re.MULTILINE)
    return head.replace("\\-", "-") + "\n" + body


_USAGE = re.compile(r"^usage: ((?:[^.\n].*\n)+)", re.MULTILINE)


def _unfilled(match: re.Match[str]) -> str:
    lines = match[1].replace("\n" + " " * len("usage: "), "\n")
    return f".nf\n{lines}.fi\n"


# --- scdoc ---


def plain(text: str) -> str:
    """*text* for scdoc, where nothing of it is markup; ``code`` becomes bold."""
    pieces = re.split(r"``(.+?)``", " ".join(text.split()))
    return "".join(f"*{_escape(piece)}*" if at % 2 else _escape(piece) for at, piece in enumerate(pieces))


def _escape(text: str) -> str:
    return re.sub(r"([\\*_])", r"\\\1", text)


def paragraph(text: str, *, indent: str = "") -> str:
    """*text*, escaped already, as a paragraph in lines of a readable length."""
    lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "".join(f"{indent}{_START.sub(_escaped, line)}\n" for line in lines) + "\n"


_START = re.compile(r"^[-#|.;:+!\[\]]")
"""What would be markup at the beginning of a line."""


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[0]


def item(term: str, paragraphs: Iterable[str]) -> str:
    """A term with what is said about it below, indented."""
    return f"{term}\n" + "".join(paragraph(text, indent="\t") for text in paragraphs)


# --- mcpd.toml(5) ---


def settings_reference() -> str:
    """Every section and setting, from the model."""
    out = []
    for section, field in settings.Settings.model_fields.items():
        model = field.annotation
        if not isinstance(model, type):
            raise SystemExit(f"{section} is not a section")
        out.append(f"# [{section.upper()}] SECTION OPTIONS\n\n{paragraph(plain(inspect.getdoc(model) or ''))}")
        texts = docstrings(model)
        for key, setting in model.model_fields.items():
            kind = f"{_kind(setting)}. Default: *{_escape(_toml(setting.default))}*."
            out.append(item(f"*{_escape(key)}* =", [f"{plain(texts[key])} {kind}"]))
    return "".join(out)


def docstrings(model: type) -> dict[str, str]:
    """The strings below the attributes of *model*; every attribute must have one."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[statement.target.id] = text
                case _:
                    raise SystemExit(f"{model.__name__}.{statement.target.id} has no description below it")
    return found


def _kind(setting: FieldInfo) -> str:
    annotation = setting.annotation
    if get_origin(annotation) is Literal:
        return "One of " + ", ".join(f"*{_escape(str(value))}*" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "A list of strings"
    name = {bool: "A boolean", int: "An integer", float: "A number", str: "A string"}[annotation]  # type: ignore[index]
    limits = {
        name: getattr(rule, name) for rule in setting.metadata for name in ("gt", "ge", "le") if hasattr(rule, name)
    }
    words = {"gt": "above {}", "ge": "at least {}", "le": "at most {}"}
    return ", ".join([name, *(words[rule].format(limits[rule]) for rule in words if rule in limits)])


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple():
            return "[]" if not value else str(list(value))
        case _:
            return str(value)


# --- org.mcpd.Mcp1(5) ---


def interfaces_reference() -> str:
    """Every interface with its members, from the XML."""
    return "".join(_interface(name) for name in (MANAGER, SERVER, JOB, SESSION))


def _interface(name: str) -> str:
    builder = ET.TreeBuilder(insert_comments=True)
    text = (REPOSITORY / "dbus" / f"{name}.xml").read_text(encoding="utf-8")
    node = ET.fromstring(text, ET.XMLParser(target=builder))  # noqa: S314 -- our own file
    about, element = next((c, e) for c, e in _commented(node) if e.tag == "interface")
    arguments, said = _comment(about)
    heading = name.rpartition(".")[2].upper()
    summary = plain(arguments["short_description"])
    out = [f"# {heading} INTERFACE\n\n*{_escape(name)}*: {summary}.\n\n"]
    out += [_said(text) for text in said]
    for kind, heading in (("method", "Methods"), ("signal", "Signals"), ("property", "Properties")):
        members = [(comment, member) for comment, member in _commented(element) if member.tag == kind]
        if members:
            out.append(f"## {heading}\n\n")
            out += [_member(comment, member) for comment, member in members]
    return "".join(out)


def _commented(parent: ET.Element) -> Iterator[tuple[str, ET.Element]]:
    """The elements below *parent*, each with the comment before it."""
    comment = ""
    for child in parent:
        if child.tag is ET.Comment:  # type: ignore[comparison-overlap]
            comment = child.text or ""
        else:
            yield comment, child
            comment = ""


def _comment(text: str) -> tuple[dict[str, str], list[str]]:
    """What a comment says of the arguments, and its paragraphs (the notation of gdbus-codegen)."""
    text = re.sub(r"<refsect2><title>(.*?)</title>", r"\n\n## \1\n\n", text).replace("</refsect2>", "\n\n")
    _, _, body = text.partition(":\n") if re.match(r"\s*[\w.]+:\n", text) else text.partition(":")
    arguments: dict[str, str] = {}
    paragraphs = []
    for block in re.split(r"\n\s*\n", body):
        if block.strip().startswith("@"):
            arguments |= dict(re.findall(r"@(\w+): (.*?)(?=\n\s*@|\Z)", block.strip(), re.DOTALL))
        elif block.strip():
            paragraphs.append(block)
    return arguments, paragraphs


def _said(text: str, indent: str = "") -> str:
    if text.startswith("## "):
        return f"## {plain(text[3:])}\n\n"
    return paragraph(plain(text), indent=indent)


def _member(comment: str, member: ET.Element) -> str:
    arguments, said = _comment(comment)
    name = _escape(member.attrib["name"])
    taken = [arg for arg in member.iter("arg") if arg.get("direction") != "out"]
    given = [arg for arg in member.iter("arg") if arg.get("direction") == "out"]
    if member.tag == "property":
        notes = {"const": ", never changes", "false": ", changes are not signalled"}
        emits = {a.attrib["name"].rpartition(".")[2]: a.attrib["value"] for a in member.iter("annotation")}
        term = f"*{name}* {member.attrib['type']}{notes.get(emits.get('EmitsChangedSignal', 'true'), '')}"
    else:
        term = f"*{name}*({_list(taken)})" + (f" → ({_list(given)})" if given else "")
    parts = [_references(text) for text in said]
    parts += [f"_{_escape(arg)}_: {_references(text).rstrip('.')}." for arg, text in arguments.items()]
    return item(term, parts)


def _references(text: str) -> str:
    """*text*, escaped; the names of arguments in it are italic."""
    return re.sub(r"@([a-z]+)", r"_\1_", plain(text))


def _list(arguments: Iterable[ET.Element]) -> str:
    return ", ".join(f"{arg.attrib['type']} _{_escape(arg.attrib['name'])}_" for arg in arguments)


def errors_reference() -> str:
    """The errors of our own, from their classes."""
    return "".join(
        item(f"*{_escape(error.dbus_name.removeprefix(errors.ERROR_PREFIX))}*", [plain(inspect.getdoc(error) or "")])
        for error in errors.TABLE
        if error.dbus_name.startswith(errors.ERROR_PREFIX)
    )


# --- mcp-manifest(5) ---


def manifest_example() -> str:
    """The example of docs/manifest.md."""
    text = (REPOSITORY / "docs/manifest.md").read_text(encoding="utf-8")
    match = re.search(r"^```json\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    if match is None:
        raise SystemExit("docs/manifest.md has no example")
    return f"```\n{match[1]}```\n"


MARKS = {
    "@settings@\n": settings_reference,
    "@interfaces@\n": interfaces_reference,
    "@errors@\n": errors_reference,
    "@example@\n": manifest_example,
}


def _tidy(page: str) -> str:
    """*page* with paragraphs where mandoc(1), too, sees them: not before the end of an indented block, nor doubled."""
    for pattern, better in _PARAGRAPHS:
        page = re.sub(pattern, better, page, flags=re.MULTILINE)
    return page


_PARAGRAPHS = (
    (r"^((?:\.P\n)+)((?:\.RE\n)+)", r"\2.P\n"),
    (r"^(\.(?:SH|SS) .*\n)(?:\.P\n)+", r"\1"),
    (r"^(?:\.P\n)+(?=\.(?:SH|SS|P$)|\Z)", ""),
    (r" +$", ""),
)


def main() -> None:
    """Write the pages."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "mcpctl.1").write_text(mcpctl_page(), encoding="utf-8")
    for source in sorted(SOURCES.glob("*.scd")):
        text = source.read_text(encoding="utf-8").replace("@version@", __version__)
        for mark, reference in MARKS.items():
            if mark in text:
                text = text.replace(mark, reference())
        done = subprocess.run(["scdoc"], input=text, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S607
        if done.returncode:
            raise SystemExit(f"{source}: scdoc refuses it")
        (directory / source.stem).write_text(_tidy(done.stdout.replace(".PP\n", ".P\n")), encoding="utf-8")


if __name__ == "__main__":
    main()
