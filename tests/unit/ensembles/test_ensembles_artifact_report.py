# SPDX-License-Identifier: LGPL-2.1-or-later
"""``execution.md`` as a reader of Markdown sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mcpd.servers.ensembles.artifacts.execution import ended
from mcpd.servers.ensembles.artifacts.recording import MAX_TEXT, markdown
from mcpd.servers.ensembles.engine.types import Fault, Usage
from tests.unit.ensembles.artifact_parts import agent, failed, run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markdown_it.token import Token

PARSER = MarkdownIt("commonmark").enable("table")


def _all(tokens: Iterable[Token]) -> Iterable[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or ())


def _words(text: str) -> list[str]:
    """What stands between the tags, cell by cell and line by line."""
    inlines = [token for token in PARSER.parse(text) if token.type == "inline"]
    return ["".join(child.content for child in token.children or ()) for token in inlines]


def test_a_report_says_what_the_run_was() -> None:
    reader = agent("reader", 0, 1.5, usage=Usage(10, 20, 0.25), model="gpt")
    tried = agent("again", 2, 3, attempts=3, fallback=True)
    document = ended(run(reader, failed("checker", 1, 2), tried, status="completed_with_errors"))
    text = markdown(document)
    words = _words(text)
    assert words[0] == "review: completed with errors"
    assert words[5:9] == ["2026-05-28T20:26:40.250Z", "3.00 s", "30", "0.250000 USD"]
    at = words.index("reader")
    assert words[at : at + 7] == ["reader", "model", "success", "1.50", "30", "0.250000", "gpt"]
    assert "It was tried again, 2 times in all." in words
    fenced = [token.content for token in PARSER.parse(text) if token.type == "fence"]
    assert fenced == ["read this\n", "reader says so\n", "checker did not\n", "again says so\n", "again says so\n"]


def test_a_long_response_is_cut() -> None:
    text = markdown(ended(run(agent("reader", response="x" * (MAX_TEXT + 5)))))
    assert "5 characters more are in `execution.json`." in text
    assert len(text) < 3 * MAX_TEXT


MARKUP = ["```", "`````", "~~~", "\n", "\r", "<b>", "<!--", "-->", "![i](j)", "[x](y)", "[x]: y", "<http://x.y>", "*a*",
          "__a__", "`a`", "| a |", "|---|", "# ", "> ", "- ", "&lt;", "\\", "    ", "---", "==="]  # fmt: skip
HOSTILE = st.lists(st.sampled_from(MARKUP) | st.text(max_size=3), max_size=8).map("".join)


@given(response=HOSTILE, name=HOSTILE, message=HOSTILE, model=HOSTILE)
def test_what_agents_say_marks_nothing_up(response: str, name: str, message: str, model: str) -> None:
    said = agent("x", response=response, model=model)
    said.name = name
    wrong = failed("y")
    wrong.fault = Fault("Failed", message, "y")
    tokens = list(_all(PARSER.parse(markdown(ended(run(said, wrong, ensemble=name, input=response))))))
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "em_open", "strong_open", "code_inline"}
    assert [token.content for token in tokens if token.type == "heading_open" and token.tag == "h1"] == [""]
    assert sum(token.type == "table_open" for token in tokens) == 2
    rows = [token for token in tokens if token.type == "tr_open"]
    assert len(rows) == 2 + 3
    fences = [token.content for token in tokens if token.type == "fence"]
    assert len(fences) == 1 + bool(response) + bool(message)
