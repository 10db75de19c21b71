# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of a payload in the form of each client, and back."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.dialects import from_client, to_client
from mcpd.clients.errors import InvalidInput
from tests.unit.clients.family_parts import SHIPPED, file, some

if TYPE_CHECKING:
    from mcpd.clients.families import Family

RUN: dict[str, Any] = {"command": "mcpctl", "args": ["run", "time"]}
URL: dict[str, Any] = {"type": "http", "url": "http://127.0.0.1:7412/mcp/time"}
SSE: dict[str, Any] = {"type": "sse", "url": "https://example.com/sse"}


def write(client: str, **entry: Any) -> Any:
    return to_client(SHIPPED[client], {"time": entry})["time"]


def read(client: str, **entry: Any) -> Any:
    return from_client(SHIPPED[client], {"time": entry}).get("time")


@pytest.mark.parametrize(
    ("client", "form"),
    [
        ("claude-desktop", RUN),
        ("cursor", RUN),
        ("claude-code", {"type": "stdio", **RUN}),
        ("vscode", {"type": "stdio", **RUN}),
        ("copilot-cli", {"type": "stdio", **RUN, "tools": ["*"]}),
        ("zed", {**RUN, "source": "custom"}),
        ("cline", {**RUN, "disabled": False}),
        ("codex", RUN),
        ("kimi", {"transport": "stdio", **RUN}),
        ("opencode", {"type": "local", "command": ["mcpctl", "run", "time"], "enabled": True}),
        ("continue", {"name": "time", "type": "stdio", **RUN}),
        (
            "goose",
            {
                "name": "time",
                "type": "stdio",
                "cmd": "mcpctl",
                "args": ["run", "time"],
                "description": "",
                "enabled": True,
                "timeout": 300,
            },
        ),
    ],
)
def test_a_program_is_written_as_the_client_wants_it(client: str, form: dict[str, Any]) -> None:
    written = write(client, **RUN)
    assert written == form
    assert list(written) == list(form)
    assert read(client, **form) == RUN


@pytest.mark.parametrize(
    ("client", "form"),
    [
        ("cursor", {"url": URL["url"]}),
        ("claude-code", URL),
        ("vscode", URL),
        ("windsurf", {"serverUrl": URL["url"]}),
        ("gemini-cli", URL),
        ("qwen-code", {"httpUrl": URL["url"]}),
        ("codex", {"url": URL["url"]}),
        ("roo-code", {"type": "streamable-http", "url": URL["url"]}),
        ("cline", {"type": "streamableHttp", "url": URL["url"], "disabled": False}),
        ("opencode", {"type": "remote", "url": URL["url"], "enabled": True}),
        ("continue", {"name": "time", "type": "streamable-http", "url": URL["url"]}),
        ("zed", {"url": URL["url"]}),
    ],
)
def test_a_url_is_written_as_the_client_wants_it(client: str, form: dict[str, Any]) -> None:
    written = write(client, **URL)
    assert written == form
    assert list(written) == list(form)
    assert read(client, **form) == URL


@pytest.mark.parametrize("client", ["claude-desktop", "junie"])
def test_a_client_without_urls_says_so(client: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"server 'time': .* does not support servers over Streamable HTTP in its file"
    ):
        write(client, **URL)


@pytest.mark.parametrize("client", ["codex", "goose", "zed"])
def test_a_client_without_server_sent_events_says_so(client: str) -> None:
    with pytest.raises(InvalidInput, match="does not support servers over HTTP with server-sent events"):
        write(client, **SSE)


def test_a_directory_and_variables_have_their_own_names() -> None:
    assert write("warp", **RUN, cwd="/srv")["working_directory"] == "/srv"
    assert write("opencode", **RUN, env={"A": "b"})["environment"] == {"A": "b"}
    assert write("goose", **RUN, env={"A": "b"})["envs"] == {"A": "b"}
    assert "env" not in write("cursor", **RUN, env={})
    with pytest.raises(
        InvalidInput, match="server 'time': cwd: Cursor IDE cannot start servers in a specific directory"
    ):
        write("cursor", **RUN, cwd="/srv")
    with pytest.raises(InvalidInput, match="server 'x': env: Some client cannot set variables"):
        to_client(some(stdio={"env": ""}), {"x": {**RUN, "env": {"A": "b"}}})


def test_headers_have_their_own_place() -> None:
    headers: dict[str, Any] = {"X-Key": "k"}
    assert write("continue", **URL, headers=headers)["requestOptions"] == {"headers": headers}
    assert write("codex", **URL, headers=headers)["http_headers"] == headers
    assert write("cursor", **URL, headers=headers)["headers"] == headers
    assert "headers" not in write("vscode", **URL, headers={})
    with pytest.raises(InvalidInput, match="server 'x': headers: Some client cannot send headers"):
        to_client(some(http={"headers": ""}), {"x": {**URL, "headers": headers}})


def test_codex_names_variables_in_place_of_placeholders() -> None:
    env = {"TZ": "UTC", "API_KEY": "${API_KEY}"}
    form = write("codex", **RUN, env=env)
    assert form == {**RUN, "env": {"TZ": "UTC"}, "env_vars": ["API_KEY"]}
    assert read("codex", **form) == {**RUN, "env": env}
    headers = {"Authorization": "Bearer ${MCPD_BRIDGE_TOKEN}", "X-Key": "${KEY}", "X-Plain": "yes"}
    form = write("codex", **URL, headers=headers)
    assert form == {
        "url": URL["url"],
        "http_headers": {"X-Plain": "yes"},
        "bearer_token_env_var": "MCPD_BRIDGE_TOKEN",
        "env_http_headers": {"X-Key": "KEY"},
    }
    assert read("codex", **form) == {**URL, "headers": headers}


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("codex", {**RUN, "env": {"A": "${B}"}}),
        ("codex", {**RUN, "env": {"A": "s3cret${A}"}}),
        ("codex", {**RUN, "env": {"A": "${A}${A}"}}),
        ("codex", {**URL, "headers": {"X": "s3cret ${A}"}}),
        ("codex", {**URL, "headers": {"Authorization": "Basic ${A}"}}),
        ("kimi", {**URL, "headers": {"X": "${A}"}}),
        ("kimi", {**SSE, "headers": {"Authorization": "Bearer ${A}"}}),
        ("fx", {**URL, "headers": {"Authorization": "Bearer s3cret${A}"}}),
    ],
)
def test_what_names_cannot_express_is_refused_and_not_told(client: str, entry: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        write(client, **entry)
    assert SHIPPED[client].name in caught.value.message
    assert "s3cret" not in caught.value.message


def test_a_header_is_a_variable_for_those_who_have_a_field_for_it() -> None:
    bearer = {"Authorization": "Bearer ${TOKEN}"}
    assert write("kimi", **URL, headers=bearer) == {
        "transport": "http",
        "url": URL["url"],
        "bearerTokenEnvVar": "TOKEN",
    }
    assert write("fx", **SSE, headers=bearer)["bearer_token_env"] == "TOKEN"


def test_a_text_that_only_looks_like_a_placeholder_is_not_read_as_one() -> None:
    """Codex passes it on as it is, and would fill it in once it were written again."""
    assert read("codex", **RUN, env={"A": "${A}"}) is None
    assert read("codex", **URL, http_headers={"X": "${A}"}) is None
    assert read("claude-code", **RUN, env={"A": "${A}"}) == {**RUN, "env": {"A": "${A}"}}


def test_the_type_of_a_program_is_written_only_for_clients_that_have_one() -> None:
    assert write("vscode", command="a", type="stdio") == {"type": "stdio", "command": "a", "args": []}
    assert write("cursor", command="a", type="stdio") == {"command": "a", "args": []}


@pytest.mark.parametrize(
    ("client", "entry", "kind"),
    [
        ("gemini-cli", {"httpUrl": "http://x"}, "http"),
        ("gemini-cli", {"url": "http://x"}, "sse"),
        ("gemini-cli", {"url": "http://x", "type": "http"}, "http"),
        ("cline", {"url": "http://x"}, "sse"),
        ("cline", {"url": "http://x", "type": "streamableHttp"}, "http"),
        ("vscode", {"url": "http://x"}, "http"),
        ("windsurf", {"url": "http://x"}, "http"),
        ("mcporter", {"baseUrl": "http://x"}, "http"),
        ("claude-code", {"url": "http://x", "type": "streamable-http"}, "http"),
        ("kimi", {"url": "http://x"}, "http"),
        ("kimi", {"url": "http://x", "transport": "sse"}, "sse"),
    ],
)
def test_what_people_wrote_is_understood_as_the_client_does(client: str, entry: dict[str, Any], kind: str) -> None:
    assert read(client, **entry) == {"type": kind, "url": "http://x"}


def test_fields_that_a_payload_does_not_have_are_left_out() -> None:
    assert read("cline", **RUN, disabled=True, autoApprove=["x"], timeout=60) == RUN
    assert read("gemini-cli", **RUN, trust=True, env={}) == RUN
    assert read("continue", url=URL["url"], type="streamable-http", requestOptions={"timeout": 5}) == URL
    assert read("cursor", command="a") == {"command": "a", "args": []}


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("cursor", "x"),
        ("cursor", None),
        ("cursor", {}),
        ("cursor", {"command": 1}),
        ("cursor", {"command": ""}),
        ("cursor", {"command": "a", "args": "b"}),
        ("cursor", {"command": "a", "env": {"A": 1}}),
        ("cursor", {"command": "a", "url": "http://x"}),
        ("cursor", {"url": ""}),
        ("cursor", {"url": "http://x", "headers": []}),
        ("vscode", {"type": "http", "command": "a"}),
        ("vscode", {"type": "ws", "url": "http://x"}),
        ("vscode", {"type": {}, "url": "http://x"}),
        ("claude-code", {"url": "http://x"}),
        ("claude-desktop", {"url": "http://x"}),
        ("zed", {"command": {"path": "a", "args": []}}),
        ("opencode", {"type": "local", "command": "a"}),
        ("opencode", {"type": "local", "command": []}),
        ("opencode", {"servers": {"x": {"type": "local", "command": ["a"]}}}),
        ("goose", {"type": "builtin", "name": "developer", "enabled": True}),
        ("codex", {"url": "http://x", "bearer_token_env_var": "A B"}),
    ],
)
def test_what_cannot_be_read_is_skipped(client: str, entry: Any) -> None:
    assert from_client(SHIPPED[client], {"odd": entry, "good": write(client, **RUN)}) == {"good": RUN}


def test_order_is_kept_and_nothing_given_is_changed() -> None:
    entries: dict[str, Any] = {"z": {**RUN, "env": {"A": "b"}}, "a": dict(RUN), "m": dict(URL)}
    before = copy.deepcopy(entries)
    written = to_client(SHIPPED["copilot-cli"], entries)
    assert list(written) == ["z", "a", "m"]
    for entry in written.values():
        assert isinstance(entry, dict)
        for value in entry.values():
            if isinstance(value, list):
                value.append("changed")
            elif isinstance(value, dict):
                value["changed"] = "changed"
    assert entries == before
    assert write("copilot-cli", **RUN)["tools"] == ["*"]


def test_a_client_that_nobody_has_heard_of_needs_no_code() -> None:
    family = some(
        file=file(format="yaml", shape="list"),
        stdio={"name": "name", "command": "run", "args": "", "env": "vars", "marks": {"kind": ["process", "proc"]}},
        http={"name": "name", "url": "at", "headers": "send", "headers_in": "request", "marks": {"kind": ["web"]}},
    )
    written = to_client(family, {"time": {**RUN, "env": {"A": "b"}}, "far": {**URL, "headers": {"X": "y"}}})
    assert written == {
        "time": {"name": "time", "kind": "process", "run": ["mcpctl", "run", "time"], "vars": {"A": "b"}},
        "far": {"name": "far", "kind": "web", "at": URL["url"], "request": {"send": {"X": "y"}}},
    }
    assert from_client(family, {"x": {"kind": "proc", "run": ["a"]}}) == {"x": {"command": "a", "args": []}}


TEXT = st.text(max_size=12)
WORD = st.text(min_size=1, max_size=12)
VARIABLE = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)


@st.composite
def _entries(draw: st.DrawFn, family: Family) -> dict[str, Any]:
    """Entries with everything that *family* can express."""
    kinds = [kind for kind in family.transports() if kind != "sse" or family.sse != family.http]
    return draw(st.dictionaries(WORD, st.sampled_from(kinds).flatmap(lambda kind: _entry(family, kind)), max_size=4))


def _entry(family: Family, kind: str) -> st.SearchStrategy[dict[str, Any]]:
    if kind == "stdio":
        optional: dict[str, Any] = {"env": _env(family)}
        if family.stdio.cwd:
            optional["cwd"] = WORD
        return st.fixed_dictionaries({"command": WORD, "args": st.lists(TEXT, max_size=3)}, optional=optional)
    return st.fixed_dictionaries({"type": st.just(kind), "url": WORD}, optional={"headers": _headers(family, kind)})


def _literal(family: Family, field: Any) -> st.SearchStrategy[str]:
    return TEXT.filter(lambda text: not family.variables_in(text, field))


def _env(family: Family) -> st.SearchStrategy[dict[str, Any]]:
    if family.expansion is None or "env" not in family.expansion.fields:
        return st.dictionaries(WORD, TEXT, min_size=1, max_size=3)
    own = VARIABLE.map(lambda name: (name, family.placeholder(name, "env")))
    plain = st.tuples(VARIABLE.map("plain_".__add__), _literal(family, "env"))
    return st.lists(own | plain, min_size=1, max_size=4).map(dict)


def _headers(family: Family, kind: str) -> st.SearchStrategy[dict[str, Any]]:
    form = family.http if kind == "http" else family.sse
    assert form is not None
    plain = st.tuples(WORD.map("X-".__add__), _literal(family, "headers"))
    if family.expansion is None or "headers" not in family.expansion.fields:
        return st.lists(plain, min_size=1, max_size=3).map(dict)
    by_name = family.expansion.names_only
    told: list[st.SearchStrategy[Any]] = [plain]
    if form.bearer or not by_name:
        told.append(VARIABLE.map(lambda name: ("Authorization", f"Bearer {family.placeholder(name, 'headers')}")))
    if form.header_names or not by_name:
        told.append(VARIABLE.map(lambda name: (f"Y-{name}", family.placeholder(name, "headers"))))
    return st.lists(st.one_of(told), min_size=1, max_size=4).map(dict)


@pytest.mark.parametrize("family", SHIPPED.values(), ids=SHIPPED.keys())
@given(data=st.data())
def test_what_a_client_can_express_comes_back_as_it_was(family: Family, data: st.DataObject) -> None:
    entries = data.draw(_entries(family))
    written = to_client(family, entries)
    assert from_client(family, json.loads(json.dumps(written))) == entries
    assert list(written) == list(entries)


@pytest.mark.parametrize("family", [family for family in SHIPPED.values() if family.sse], ids=lambda family: family.id)
def test_a_client_that_tells_no_urls_apart_gives_back_http(family: Family) -> None:
    back = from_client(family, to_client(family, {"x": SSE}))
    assert back == {"x": {**SSE, "type": "http"} if family.sse == family.http else SSE}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(list(SHIPPED.values())), st.data())
def test_whatever_a_file_holds_is_read_or_skipped(family: Family, data: st.DataObject) -> None:
    """What was read is an entry of a payload, and reading it once more after writing it changes nothing."""
    forms = [form for form in (family.stdio, family.http, family.sse) if form]
    fields = st.sampled_from(sorted({field for form in forms for field in form.fields()}))
    marks = [values for form in forms for values in form.marks.values()]
    values = JSON | st.sampled_from(["http", *(value for several in marks for value in several)])
    held: Any = data.draw(st.dictionaries(TEXT, JSON | st.dictionaries(fields, values, max_size=6)))
    found: dict[str, Any] = from_client(family, held)
    with suppress(InvalidInput):
        assert from_client(family, to_client(family, found)) == found
