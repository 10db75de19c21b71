# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments of any tool, made from its JSON Schema, and garbage; both like what leads out of a root or confuses git.

No text that is made up begins with a slash: the absolute paths are those of the test, and should the jail fail, nothing
else of the machine is deleted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcpd.servers.workstation.tool import Tool

    Drawn = st.SearchStrategy[Any]

_PATHS: Final = (
    ".", "./", "src", "src/a.py", "src//./a.py", "src/a.py/x", "docs/deep/er/text.md", "Makefile", "package.json",
    "pyproject.toml", "empty", "binary", "picture.png", "sixteen", "long", ".hidden", "build", "a file", "ünï\u0308",
    "*.py", "-c", "--output=new", ":(top)", "new\nline", "caf\udce9", "caf\ufffd", "hard", "fifo", "out", "out/secret",
    "out/new", "out-file", "out-home", "out-home/private", "dangling", "loop", "loop/x", "in", "in/a.py", "new",
    "new/deep/er", "src/new.py", ".git", ".git/config", ".git/hooks/pre-commit", ".GIT/config", "git~1", ".gitignore",
    ".gitattributes", ".Trash-0", ".Trash-0/files", "..", "../outside/secret", "src/../../outside/new", "~/private",
    "root://src", "x" * 300, "d/" * 1500, "src/a.py\0", "\0", "half\ud800", "",
)  # fmt: skip
_ABSOLUTE: Final = (
    "{root}", "{root}/src/a.py", "{root}/new", "{root}/./src/", "{root}/out/secret", "{root}/../outside/new",
    "{root}x/new", "{outside}", "{outside}/secret", "{outside}/linked", "{outside}/new", "{home}/private", "{home}/new",
    "/proc/self/root{outside}/secret", "file://{outside}/secret",
)  # fmt: skip
_REVISIONS: Final = (
    "HEAD", "HEAD~1", "HEAD^2", "main", "topic", "v1.0", "main..topic", "main...topic", "@", "@{-1}", "@{u}",
    "HEAD@{0}", "HEAD@{1.day.ago}", "stash@{0}", "stash", ":/First", "HEAD^{/First}", "HEAD^{tree}", "HEAD:",
    "HEAD:src", "HEAD:src/a.py", "HEAD:out-file", "HEAD:picture.png", ":src/a.py", ":0:src/a.py",
    "HEAD:../outside/secret", "refs/heads/main", "refs/heads/../../outside", "origin/main", "^main", "main ^topic",
    "0" * 40, "deadbeef", "new", "feature/new", "bad..name", "name.lock", "-", "--", "-1", "..", "...", "--all",
    "--output={outside}/new", "--output-directory={outside}", "--no-index", "-O{outside}/secret",
    "--contents={outside}/secret", "-c core.fsmonitor=touch {outside}/new", "--exec=touch {outside}/new",
    "main\nHEAD", "HEAD\0", "HEAD\ud800", "x" * 1000,
)  # fmt: skip
_PATHSPECS: Final = (
    ":(top)", ":(top)src", ":(glob)**", ":(exclude)*", ":!src", ":/", ":", ":(attr:x)", ":(literal)*.py", ":(icase)SRC",
    "--pathspec-from-file={outside}/secret", "--force", "*",
)  # fmt: skip
_GLOBS: Final = (
    "*.py", "**", "**/*", "src/**", "/src", "docs/", "[", "[!a]*", "[z-a]", "{a,b}", "{a", "!*.py", "../**", "\\",
    "*" * 40 + "x", "{" * 60, "a\nb", "\0", "\ud800",
)  # fmt: skip
_PATTERNS: Final = (
    "def", "secret", "private", "(a+)+$", "(?s:.)*", "^", "$", "", ".", "(", "[", "(?P<", "\\", "\\p{Greek}",
    "a{1,100000}", "(?:a{1000}){1000}", "\\Z", "(?<=a)b", "\n", "\\n", "\\xff", "(?-u:\\xff)", "-e", "--pre=touch",
    "-f{outside}/secret", "\0", "\ud800", "ä", "src/a",
)  # fmt: skip
_TEXTS: Final = (
    "print(1)\n", "x = 1", "= 1\n", "One subject\n\nA body\n", "#", "aGVsbG8=", "aGVsbG8", "%s",
    "$(touch {outside}/new)", "`touch {outside}/new`", "; touch {outside}/new", "'", "\r\n", "\ufeff", "\u202e",
    "\u20ac", "😀", "\x1b[31m", "\0", "\ud83d", "\udfff\ud800", " ", "", "A U Thor <author@example.org>", "A <a>\n",
    "2 weeks ago", "2026-01-01", "@0", "99999999999999999999", "never", "y" * 5000,
)  # fmt: skip
_OPTIONS: Final = (
    "-n", "-k", "-s", "build", "--", "--help", "--version", "-f{outside}/secret", "-C{outside}", "--directory={home}",
    "--eval=$(shell touch {outside}/new)", "SHELL={outside}/secret", "--output={outside}/new", "--prefix={outside}",
    "-o{home}/new", "--basetemp={outside}", "--rootdir={outside}", "-c core.fsmonitor=touch {outside}/new", "a b",
    "'; touch {outside}/new #", "", "\n", "\ud800", "-e=1",
)  # fmt: skip
_TASKS: Final = ("build", "test", "lint", "clean", "say", "fail", "-n", "--eval=x", "build test", "../build")
_DIGESTS: Final = ("0" * 64, "aF" * 32, "0" * 63, "0" * 64 + "\n")

_GOOD: Final[Mapping[str, Sequence[Any]]] = {
    "path": (".", "src/a.py", "{root}/src", "docs/deep/er/text.md"),
    "name": ("build", "test", "say"),
    "ecosystem": ("make", "npm", "python"),
    "timeout_seconds": (1, 2),
}
"""What often makes a call succeed, by the name of the argument."""
_OUT: Final = (
    "out", "out/secret", "out/new", "out-file", "out-home/private", "dangling", "hard", "src/up", "{outside}/secret",
    "{outside}/new", "{root}/../outside/secret",
)  # fmt: skip
"""Paths that lead out."""
_PLACES: Final = ("path", "source", "destination", "paths")
_WORKING: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "filesystem_read": (
        {"path": "src/a.py"},
        {"path": "long", "start_line": 2, "end_line": 9},
        {"path": "binary", "encoding": "base64", "offset": 3, "length": 50},
        {"path": "picture.png"},
    ),
    "filesystem_write": (
        {"path": "new/file", "content": "é\n", "create_parents": True},
        {"path": "src/a.py", "content": ""},
    ),
    "filesystem_edit": ({"path": "src/a.py", "edits": [{"old_text": "x = 1", "new_text": "x = 2"}]},),
    "filesystem_search": ({"pattern": "o"}, {"pattern": "a", "target": "name"}),
    "filesystem_stat": ({"path": "out"}, {"path": "src/a.py", "digest": True}),
    "filesystem_mkdir": ({"path": "new/deep/er"},),
    "filesystem_move": ({"source": "src/a.py", "destination": "new"}, {"source": "docs", "destination": "in/new"}),
    "filesystem_delete": ({"path": "src"}, {"path": "docs", "permanent": True, "recursive": True}),
    "git_diff": ({}, {"staged": True}, {"revision": "main...topic"}, {"revision": "HEAD~1", "to": "topic"}),
    "git_show": ({}, {"revision": "v1.0"}, {"revision": "HEAD:src/a.py"}),
    "git_log": ({}, {"all": True}, {"paths": ["src/a.py"], "follow": True}),
    "git_branches": ({"all": True}, {"contains": "HEAD~1"}, {"not_merged": "main"}),
    "git_add": ({"all": True}, {"paths": ["untracked", "src/a.py"]}, {"update": True}),
    "git_commit": ({"message": "A\n\nB"}, {"message": "A", "paths": ["src/a.py"]}, {"amend": True}),
    "git_checkout": (
        {"revision": "topic", "force": True},
        {"revision": "new", "create": True, "start_point": "HEAD"},
        {"paths": ["src/a.py"]},
    ),
    "git_stash": ({"action": "push"}, {"action": "list"}, {"action": "show"}, {"action": "apply"}, {"action": "drop"}),
    "git_blame": ({"path": "src/a.py"}, {"path": "docs/deep/er/text.md", "revision": "topic"}),
    "ci_task": ({"name": "say"}, {"name": "build", "ecosystem": "npm"}),
}
"""Arguments that work: of many that are drawn one by one, most exclude each other. For others, none does."""
_LIKELY: Final[Mapping[str, Sequence[str]]] = {
    "path": (*_PATHS, *_ABSOLUTE),
    "source": (*_PATHS, *_ABSOLUTE),
    "destination": (*_PATHS, *_ABSOLUTE),
    "paths": (*_PATHS, *_ABSOLUTE, *_PATHSPECS),
    "revision": _REVISIONS,
    "to": _REVISIONS,
    "start_point": _REVISIONS,
    "contains": _REVISIONS,
    "merged": _REVISIONS,
    "not_merged": _REVISIONS,
    "include": _GLOBS,
    "exclude": _GLOBS,
    "pattern": _PATTERNS,
    "arguments": _OPTIONS,
    "name": _TASKS,
    "expected_sha256": _DIGESTS,
}
"""What is odd where an argument has the name; :data:`_TEXTS` for others."""
_ALL: Final = (
    *_PATHS, *_ABSOLUTE, *_REVISIONS, *_PATHSPECS, *_GLOBS, *_PATTERNS, *_TEXTS, *_OPTIONS, *_TASKS, *_DIGESTS,
)  # fmt: skip
_NUMBERS: Final = (
    0, 1, 2, 3, -1, 10, 100, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 10**400,
)  # fmt: skip
_FLOATS: Final = (0.0, -0.0, 1.0, 2.0, 1.5, 1e15, 1e300, -1e300, float("inf"), float("-inf"), float("nan"))
_OPTIONAL: Final = (0, 1, 1, 1, 2, 2, 3, 5)
"""How many of the optional arguments there are: with all of them a tool only says which exclude which."""
_DEPTH: Final = 100
_MADE_UP: Final = st.text(st.characters(), max_size=12).map(lambda text: text.lstrip("/"))


class Arguments:
    """What to draw arguments from, with the *places* of a test: ``root``, ``outside`` and ``home``."""

    def __init__(self, **places: Path) -> None:
        self._places = places

    def valid(self, tool: Tool) -> Drawn:
        """Arguments that fit the schema of *tool*; most are near some that work, or lead out of the root."""
        schema = tool.input_schema
        working = _WORKING.get(tool.name, () if schema.get("required") else ({},))
        values = {name: self._value(each, name) for name, each in schema["properties"].items()}
        kinds = [self._object(schema), *(_varied(each, values) for each in working)]
        out = st.sampled_from([self._filled(path) for path in _OUT])
        for name in (name for name in _PLACES if name in values):
            leading = st.lists(out, min_size=1, max_size=2) if schema["properties"][name]["type"] == "array" else out
            kinds += [_varied(each, {name: leading}, least=1) for each in working]
        return st.one_of(kinds)

    def garbage(self, tool: Tool) -> Drawn:
        """Any JSON object; most are near what *tool* takes."""
        anything, required = self._anything(), tool.input_schema.get("required", ())
        names = st.sampled_from([*tool.input_schema["properties"], "", "__class__", "\ud800", "path\n"]) | _MADE_UP
        return st.one_of(
            st.dictionaries(names, anything, max_size=5), _spoilt(self.valid(tool), required, names, anything)
        )

    def _anything(self) -> Drawn:
        texts = st.sampled_from([self._filled(text) for text in _ALL]) | _MADE_UP
        numbers = st.sampled_from(_NUMBERS) | st.sampled_from(_FLOATS)
        scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
        nested: object = "x"
        for number in range(_DEPTH):
            nested = [nested] if number % 2 else {"path": nested}
        inner = st.recursive(
            scalars,
            lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
            max_leaves=6,
        )
        return st.one_of(inner, st.just(nested))

    def _filled(self, text: str) -> str:
        for name, path in self._places.items():
            text = text.replace(f"{{{name}}}", str(path))
        return text

    def _value(self, schema: Mapping[str, Any], name: str) -> Drawn:
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            every = st.sampled_from(schema["enum"])
            good = [each for each in _GOOD.get(name, ()) if each in schema["enum"]]
            return st.sampled_from(good) | every if good else every
        if "anyOf" in schema:
            return st.one_of([self._value(each, name) for each in schema["anyOf"]])
        made = {
            "boolean": st.booleans,
            "integer": lambda: _number(schema, name),
            "string": lambda: self._text(schema, name),
            "array": lambda: self._list(schema, name),
            "object": lambda: self._object(schema),
        }
        return made[schema["type"]]()

    def _text(self, schema: Mapping[str, Any], name: str) -> Drawn:
        least, most = schema.get("minLength", 0), schema.get("maxLength", 10_000)
        pattern = re.compile(schema.get("pattern", ""))

        def fits(text: str) -> bool:
            return least <= len(text) <= most and pattern.search(text) is not None

        pools = [
            [text for text in map(self._filled, texts) if fits(text)]
            for texts in (_GOOD.get(name, ()), _LIKELY.get(name, _TEXTS), _ALL)
        ]
        good, likely, every = pools
        weighed = [pool for pool in (good, good, good, good, likely, likely, every) if pool]
        others = st.from_regex(pattern).filter(fits) if pattern.pattern else _MADE_UP.filter(fits)
        return st.one_of(*(st.sampled_from(pool) for pool in weighed), others)

    def _list(self, schema: Mapping[str, Any], name: str) -> Drawn:
        least = schema.get("minItems", 0)
        return st.lists(self._value(schema["items"], name), min_size=least, max_size=max(least, 3))

    def _object(self, schema: Mapping[str, Any]) -> Drawn:
        values = {name: self._value(each, name) for name, each in schema["properties"].items()}
        required = {name: values.pop(name) for name in schema.get("required", ())}
        return _fields(required, values)


@st.composite
def _fields(draw: st.DrawFn, required: Mapping[str, Drawn], optional: Mapping[str, Drawn]) -> dict[str, Any]:
    """All that is *required*, and some of the *optional*."""
    most = min(len(optional), draw(st.sampled_from(_OPTIONAL)))
    chosen = draw(st.permutations(sorted(optional)))[:most]
    values = {**required, **{name: optional[name] for name in chosen}}
    return {name: draw(value) for name, value in values.items()}


@st.composite
def _varied(draw: st.DrawFn, base: Mapping[str, Any], values: Mapping[str, Drawn], least: int = 0) -> dict[str, Any]:
    """*base* with another value or two."""
    count = draw(st.sampled_from((least, 1, 1, 2)))
    chosen = draw(st.permutations(sorted(values)))[:count]
    return {**base, **{name: draw(values[name]) for name in chosen}}


@st.composite
def _spoilt(draw: st.DrawFn, base: Drawn, required: Sequence[str], names: Drawn, anything: Drawn) -> dict[str, Any]:
    """What *base* gives, with wrong or unknown fields, or without one that is *required*."""
    found = {**draw(base), **draw(st.dictionaries(names, anything, min_size=1, max_size=2))}
    if required and draw(st.integers(0, 3)) == 0:
        found.pop(draw(st.sampled_from(required)), None)
    return found


def _number(schema: Mapping[str, Any], name: str) -> Drawn:
    least, most = schema.get("minimum", -(10**401)), schema.get("maximum", 10**401)
    whole = [float(each) for each in (least, least + 1, 2) if abs(each) < 2**53 and least <= each <= most]
    edges = {least, least + 1, most - 1, most} if abs(least) < 10**400 and most < 10**400 else {least + 1}
    fits = [each for each in sorted({*_NUMBERS, *edges}) if least <= each <= most]
    first = max(least, 0)
    small = st.sampled_from(_GOOD[name]) if name in _GOOD else st.integers(first, min(most, first + 20))
    return small | st.sampled_from([*fits, *whole])
