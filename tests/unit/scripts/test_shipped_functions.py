# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the functions of the shipped scripts return, called as they are."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.process

SCRIPTS = Path(__file__).parents[3] / "data/share/scripts"
needs_jq = pytest.mark.skipif(which("jq") is None, reason="jq is not installed")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"shipped_{name}", SCRIPTS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


echo, markdown, jq, date = map(load, ("echo", "markdown", "jq", "date"))
instants = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)).map(
    lambda time: time.replace(microsecond=0)
)
zones = st.sampled_from(["UTC", "Europe/Vienna", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"])
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)


class Seen(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def is_harmless(html: str) -> bool:
    seen = Seen(html)
    urls = [re.sub(r"[\x00-\x20]", "", value) for name, value in seen.attributes if name in {"href", "src", "cite"}]
    schemes = {match[1] for url in urls if (match := re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url))}
    return (
        not seen.tags & {"script", "style", "iframe", "object", "embed", "form", "base", "meta", "link", "svg"}
        and not any(name.startswith("on") for name, _ in seen.attributes)
        and schemes <= {"http", "https", "mailto", "tel"}
    )


# --- echo ---


@given(st.text())
def test_echo_says_what_it_was_told(message: str) -> None:
    assert echo.echo(message) == message


@pytest.mark.parametrize(("times", "seconds", "named"), [(0, 0, "times"), (1001, 0, "times"), (2, -1, "seconds"),
                                                         (1000, 3.7, "seconds")])  # fmt: skip
def test_repeat_refuses_what_takes_too_long(times: int, seconds: float, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}: "):
        echo.repeat("x", times, seconds)


# --- markdown ---


def test_markdown_is_commonmark_with_tables() -> None:
    html = markdown.convert("# A *b*\n\n| x | y |\n|--:|---|\n| 1 | ~~2~~ |\n\n```python\na < b\n```\n")
    assert "<h1>A <em>b</em></h1>" in html
    assert '<th style="text-align:right">x</th>' in html
    assert "<s>2</s>" in html
    assert '<code class="language-python">a &lt; b\n</code>' in html


@pytest.mark.parametrize("hostile", [
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    '<a href="javascript:alert(1)">x</a>',
    "[x](<java\tscript:alert(1)>)",
    "![x](data:text/html;base64,PHNjcmlwdD4=)",
    '<img src=x onerror="alert(1)">',
    '<div style="position:fixed" onclick="x">x</div>',
    "<svg><script>alert(1)</script></svg>",
    "<iframe src=https://x.example></iframe>",
    "`</code><script>alert(1)</script>`",
    "<b><script\n>alert(1)</script\n></b>",
    "[x]: javascript:alert(1)\n\n[x]",
    '<code class="fixed-banner">x</code>',
])  # fmt: skip
def test_T8_3_hostile_markdown_becomes_harmless_html(hostile: str) -> None:
    html = markdown.convert(f"before\n\n{hostile}\n\nafter")
    assert is_harmless(html)
    assert "fixed" not in html
    assert "<p>before</p>" in html
    assert "after" in html


def test_harmless_html_and_links_stay() -> None:
    html = markdown.convert("<b>x</b> [a](https://x.example/?q=1) [b](/c) [d](mailto:e@x.example)")
    assert "<b>x</b>" in html
    assert [value for name, value in Seen(html).attributes if name == "href"] == [
        "https://x.example/?q=1", "/c", "mailto:e@x.example"
    ]  # fmt: skip


@given(st.text() | st.lists(st.sampled_from([
    "<script>", "</script>", "<img src=", "javascript:", "x", "](", "[", "\n", "`", "onerror=", "'", '"', ">", "<",
    "&#106;", "<style>", "<svg>", "<math>", "<!--", "-->", "|", "-", "```", "<a href=",
])).map("".join))  # fmt: skip
def test_no_markdown_becomes_harmful_html(text: str) -> None:
    assert is_harmless(markdown.convert(text))


def test_plain_text_has_the_words_and_no_markup() -> None:
    text = "# A *b*\n\n- c [d](https://x.example)\n- ![e](f.png)\n\n<div>&lt;g&gt;</div>\n\n```\nh\n```\n"
    assert markdown.plain(text) == "A b\n\nc d\n\ne\n\n<g>\n\nh"


def test_table_of_contents_has_the_headings_in_order() -> None:
    text = "# One\n\n## Two `x`\n\nThree\n---\n\n#### Four\n\n```\n# none\n```\n"
    two = [{"level": 1, "title": "One"}, {"level": 2, "title": "Two x"}, {"level": 2, "title": "Three"}]
    assert markdown.toc(text) == [*two, {"level": 4, "title": "Four"}]
    assert markdown.toc(text, depth=2) == two


@pytest.mark.parametrize("function", [markdown.convert, markdown.plain, markdown.toc])
def test_more_markdown_than_can_be_converted_is_refused(function: Any) -> None:
    with pytest.raises(ValueError, match="markdown: 1000001 characters are more than 1000000"):
        function("x" * 1_000_001)


# --- jq ---


@needs_jq
def test_T8_4_jq_picks_filters_and_reshapes() -> None:
    data = {"items": [{"name": "a", "price": 5}, {"name": "b", "price": 12}]}
    assert jq.query(".items[] | select(.price > 10) | .name", data) == '"b"'
    assert jq.query(".items[].name", data, raw=True) == "a\nb"
    assert jq.query("map(. + $n)", [1, 2], variables={"n": 1}) == "[2,3]"
    assert jq.query("add", text="1 2 3", slurp=True) == "6"
    assert jq.query(".", text="a\nb", raw_input=True) == '"a"\n"b"'
    assert jq.query("{a}", {"a": 1, "b": 2}, pretty=True) == '{\n  "a": 1\n}'


@needs_jq
@given(json_values)
def test_jq_gives_back_what_it_was_given(value: Any) -> None:
    assert json.loads(jq.query(".", value)) == value


@needs_jq
@pytest.mark.parametrize(("program", "said"), [
    (".[", "syntax error"),
    (".a", "Cannot index number"),
    ('error("no such thing")', "no such thing"),
    ("-f", "f/0 is not defined"),
    ("--slurpfile", "compile error"),
])  # fmt: skip
def test_jq_says_what_is_wrong_with_a_filter(program: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        jq.query(program, 1)
    assert "def _" not in str(caught.value)


@needs_jq
@pytest.mark.parametrize("program", [
    'import "data" as $d {{search: "{directory}"}}; $d',
    'include "code" {{search: "{directory}"}}; secret',
    '; import "data" as $d {{search: "{directory}"}}; $d',
    'module {{}}; import "data" as $d {{search: "{directory}"}}; $d',
    '"{directory}/code" | modulemeta',
    '"code" | modulemeta',
])  # fmt: skip
def test_jq_reads_no_files(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.json").write_text('"SECRET"')
    (tmp_path / "code.jq").write_text('module {"SECRET": 1}; def secret: "SECRET";')
    (tmp_path / ".jq").write_text('def secret: "SECRET";')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"\S") as caught:
        jq.query(program.format(directory=tmp_path))
    assert "SECRET" not in str(caught.value)
    with pytest.raises(ValueError, match="secret/0 is not defined"):
        jq.query("secret")


@needs_jq
def test_jq_sees_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "SECRET")
    assert "SECRET" not in jq.query("[$ENV, env]")


@needs_jq
@pytest.mark.parametrize(("program", "said"), [
    ("repeat(1)", "more than 4 MiB"),
    ("repeat(1) | debug | empty", "more than 4 MiB"),
    ("[range(1e9)]", "cannot allocate memory"),
])  # fmt: skip
def test_jq_that_takes_too_much_is_stopped(monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    monkeypatch.setattr(jq, "MOST_SECONDS", 240)
    with pytest.raises(ValueError, match=said):
        jq.query(program)


@needs_jq
def test_jq_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jq, "MOST_SECONDS", 0.2)
    with pytest.raises(TimeoutError, match=re.escape("jq was stopped after 0.2 s")):
        jq.query("last(repeat(1))")
    mine = subprocess.run(["ps", "-o", "comm=", "--ppid", str(_pid())], capture_output=True, text=True, check=False)
    assert "jq" not in mine.stdout.split()


def _pid() -> int:
    return int(Path("/proc/self").readlink().name)


def test_jq_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RuntimeError, match="jq is not installed on this machine; it is in the package jq"):
        jq.query(".")


@pytest.mark.parametrize(("arguments", "said"), [
    ({"filter": ".", "json": 1, "text": "2"}, "give one of them"),
    ({"filter": "." * 100_001}, "filter: it has more than 100000 bytes"),
    ({"filter": ".", "variables": {"a b": 1}}, "variables: 'a b' is no name"),
    ({"filter": ".", "variables": {"-n": 1}}, "variables: '-n' is no name"),
])  # fmt: skip
def test_jq_refuses_what_cannot_be_passed(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        jq.query(**arguments)


# --- date ---


def test_T8_5_now_is_now_and_in_the_zone_that_was_asked_for() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    told = datetime.fromisoformat(date.now("Asia/Kathmandu"))
    assert before <= told <= datetime.now(UTC)
    assert told.utcoffset() == timedelta(hours=5, minutes=45)
    assert date.now("UTC", "%Z") == "UTC"


def test_the_machines_zone_counts_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    assert date.now().endswith("+05:45")
    assert date.convert("2026-01-01T00:00", "UTC") == "2025-12-31T18:15:00+00:00"


@given(instants, zones, zones)
def test_a_time_is_the_same_in_another_zone(time: datetime, one: str, other: str) -> None:
    there = date.convert(time.isoformat(), one)
    assert datetime.fromisoformat(there) == time
    assert datetime.fromisoformat(date.convert(there, other)) == time


@given(instants, zones, st.integers(-10_000, 10_000), st.integers(-100_000, 100_000))
def test_what_was_added_is_the_difference(time: datetime, zone: str, hours: int, seconds: int) -> None:
    later = date.add(time.isoformat(), hours=hours, seconds=seconds, timezone=zone)
    found = date.diff(time.isoformat(), later)
    assert found["seconds"] == hours * 3600 + seconds
    parts = timedelta(days=found["days"], hours=found["hours"], minutes=found["minutes"]).total_seconds()
    assert 0 <= abs(found["seconds"]) - abs(parts) < 60


@given(instants, zones, st.integers(-1000, 1000))
def test_days_keep_the_time_of_day_wherever_there_is_one(time: datetime, zone: str, days: int) -> None:
    start = time.astimezone(ZoneInfo(zone))
    moved = datetime.fromisoformat(date.add(time.isoformat(), days=days, timezone=zone))
    wanted = (start + timedelta(days=days)).replace(fold=start.fold)
    if wanted.astimezone(UTC).astimezone(wanted.tzinfo) == wanted.astimezone(UTC):
        there = wanted.astimezone(UTC).astimezone(ZoneInfo(zone))
        assert moved == there


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"time": "2026-01-31", "months": 1}, "2026-02-28T00:00:00+00:00"),
    ({"time": "2024-02-29", "years": 1}, "2025-02-28T00:00:00+00:00"),
    ({"time": "2026-03-15", "months": -3}, "2025-12-15T00:00:00+00:00"),
    ({"time": "2026-03-28T12:00", "days": 1, "timezone": "Europe/Vienna"}, "2026-03-29T12:00:00+02:00"),
    ({"time": "2026-03-28T12:00", "hours": 24, "timezone": "Europe/Vienna"}, "2026-03-29T13:00:00+02:00"),
    ({"time": "2026-03-28T02:30", "days": 1, "timezone": "Europe/Vienna"}, "2026-03-29T03:30:00+02:00"),
    ({"time": "2026-11-22T13:05Z", "hours": 1.5}, "2026-11-22T14:35:00+00:00"),
])  # fmt: skip
def test_calendars_and_clocks_are_told_apart(
    arguments: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    assert date.add(**arguments) == expected


def test_a_difference_can_be_read() -> None:
    assert date.diff("2026-01-01T00:00Z", "2026-01-02T02:00:01Z")["text"] == "1 day, 2 hours, 1 second"
    assert date.diff("0001-01-01T00:00Z", "9999-12-31T00:00Z")["text"] == "3652058 days"
    assert date.diff("2026-01-01T00:00:30Z", "2026-01-01T00:00Z") == {
        "seconds": -30, "days": 0, "hours": 0, "minutes": 0, "text": "-30 seconds"
    }  # fmt: skip
    assert date.diff("2026-01-01", "2026-01-01", "UTC")["text"] == "0 seconds"


def test_a_time_is_written_as_it_was_asked_for() -> None:
    assert date.format("2026-11-22T23:30Z", "%G-W%V-%u %H:%M", "Europe/Vienna") == "2026-W48-1 00:30"


@pytest.mark.parametrize(("call", "said"), [
    (lambda: date.convert("yesterday", "UTC"), "'yesterday' is no time; write it as"),
    (lambda: date.convert("2026-01-01", "Mars/Olympus"), "'Mars/Olympus' is no time zone"),
    (lambda: date.convert("2026-01-01", "../../../etc/passwd"), "is no time zone"),
    (lambda: date.now("Europe"), "'Europe' is no time zone"),
    (lambda: date.now("a\0b"), "is no time zone"),
    (lambda: date.add("2026-01-01", years=8000), "leads out of the years 1 to 9999"),
    (lambda: date.add("2026-01-01", hours=1e300), "leads out of the years 1 to 9999"),
    (lambda: date.format("2026-01-01", "%Y" * 501), "pattern: 1002 characters are more than 1000"),
])  # fmt: skip
def test_a_fault_names_what_was_given(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
