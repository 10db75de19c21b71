# SPDX-License-Identifier: LGPL-2.1-or-later
"""The resources of a script server: contents, results of tools, variables (T6)."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, LimitExceeded, McpdError, NotFound
from mcpd.scripts.contents import content_id_256t
from mcpd.scripts.mcps import is_uri
from mcpd.servers.scripts.calls import Outcome, PythonJob
from mcpd.servers.scripts.facility import LAST, PROBLEMS
from mcpd.servers.scripts.resources import MAX_RESOURCE, MOST_REDIRECTS, of_bytes
from tests.unit.scripts.facility_parts import Inline, define, facility, failed, store

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.scripts.facility import Facility

SCRIPT = """
def main() -> str:
    return "the main thing"

def add(a: int, b: int = 2) -> int:
    return a + b

def tags(names: list[str], loud: bool = False) -> str:
    return ",".join(names) + ("!" if loud else "")

def fail() -> str:
    raise RuntimeError("no luck")
"""
PICTURE = bytes(range(256))


def serve(directory: Path, resources: dict[str, Any], source: str = SCRIPT, **entry: Any) -> Facility:
    return facility(define(directory, source, resources=resources, **entry))


async def read(served: Facility, uri: str) -> dict[str, Any]:
    (content,) = (await served.read_resource(uri, 0))["contents"]
    assert content.pop("uri") == uri
    return content


async def problems(served: Facility) -> list[str]:
    found = await served.list_resources(None)
    return list(found.get("_meta", {}).get(PROBLEMS, []))


# ---------------------------------------------------------------------------------------- the list


async def test_T6_1_the_resources_are_listed(tmp_path: Path) -> None:
    served = serve(
        tmp_path,
        {
            "note": {"uri": "note://one", "name": "A note", "description": "Says it", "mimeType": "text/plain",
                     "source": "variable://note"},
            "plain": {"uri": "variable://note"},
            "named": {"source": "server://thing/add?a=1", "title": "Three"},
        },
        variables={"note": "hello"},
    )  # fmt: skip
    assert await served.list_resources(None) == {
        "resources": [
            {"uri": "note://one", "name": "A note", "description": "Says it", "mimeType": "text/plain"},
            {"uri": "variable://note", "name": "plain"},
            {"uri": "server://thing/add?a=1", "name": "named", "title": "Three"},
        ]
    }


@pytest.mark.parametrize(
    ("resource", "says"),
    [
        ({"uri": "echo://last"}, "source"),
        ({"uri": "file:///etc/passwd"}, "source"),
        ({"uri": "https://example.org/"}, "source"),
        ({}, "URI"),
        ({"uri": "no uri", "source": "variable://v"}, "RFC 3986"),
        ({"uri": "note://a b", "source": "variable://v"}, "RFC 3986"),
        ({"uri": "note://ž", "source": "variable://v"}, "RFC 3986"),
        ({"uri": "note://a%2", "source": "variable://v"}, "RFC 3986"),
        ({"uri": "note://a", "source": "variable://none"}, "none"),
        ({"uri": "note://a", "source": "cid://../../etc/passwd"}, "content id"),
        ({"uri": "note://a", "source": "server://../add"}, "server id"),
        ({"uri": "note://a", "source": "server:///add"}, "server id"),
        ({"uri": "note://a", "source": "server://[x/add"}, "URI"),
        ({"uri": "variable://v"}, "another resource"),
    ],
)
async def test_T6_6_what_is_no_uri_or_cannot_be_read_is_not_listed(
    tmp_path: Path, resource: dict[str, Any], says: str
) -> None:
    served = serve(tmp_path, {"good": {"uri": "variable://v"}, "bad": resource}, variables={"v": 1})
    found = await served.list_resources(None)
    assert [each["uri"] for each in found["resources"]] == ["variable://v"]
    (problem,) = found["_meta"][PROBLEMS]
    assert problem.startswith("resource bad: ")
    assert says in problem


async def test_a_resource_is_the_result_of_the_last_call_that_succeeded(tmp_path: Path) -> None:
    static = {
        "last": {"uri": "thing://last", "mimeType": "text/plain"},
        "again": {"uri": "note://again", "source": "thing://last"},
    }
    defined = define(tmp_path, SCRIPT, resources=static)
    # Two processes of one server.
    asked, called = facility(defined, home=tmp_path), facility(defined, home=tmp_path)
    assert [each["uri"] for each in (await asked.list_resources(None))["resources"]] == ["thing://last", "note://again"]
    with pytest.raises(NotFound, match="resource thing://last: no tool of thing has given a result yet"):
        await asked.read_resource("thing://last", 0)
    await called.call_tool("tags", {"names": ["ž", "b"]}, None)
    await called.call_tool("fail", {}, None)
    assert await read(asked, "thing://last") == {"mimeType": "text/plain", "text": "ž,b"}
    await called.call_tool("add", {"a": 1}, None)
    assert (await read(asked, "note://again"))["text"] == "3"


async def test_a_resource_of_a_tool_that_is_not_there_is_a_problem_of_the_server(tmp_path: Path) -> None:
    resources = {
        "sum": {"uri": "server://thing/add?a=1"},
        "main": {"uri": "server://thing"},
        "no": {"uri": "server://thing/none"},
    }
    served = serve(tmp_path, resources)
    assert (await served.describe())["problems"] == ["resource no: thing has no tool or function 'none'"]


async def test_a_result_is_kept_only_where_a_resource_may_be_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    served = facility(define(tmp_path, SCRIPT, resources={"v": {"uri": "server://thing/add?a=1"}}), home=home)
    await served.call_tool("add", {"a": 1}, None)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("kept", ["[]", "{", '{"content": [{"type": "text"}]}'])
async def test_a_kept_result_that_a_script_has_spoilt_is_an_error(tmp_path: Path, kept: str) -> None:
    served = facility(define(tmp_path, SCRIPT, resources={"last": {"uri": "thing://last"}}), home=tmp_path)
    (tmp_path / LAST).write_text(kept)
    with pytest.raises(McpdError, match=r"^resource thing://last: "):
        await served.read_resource("thing://last", 0)


async def test_a_result_that_cannot_be_kept_is_given_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    defined = define(tmp_path, SCRIPT, resources={"last": {"uri": "thing://last"}})
    found = await facility(defined, home=tmp_path / "gone").call_tool("add", {"a": 1}, None)
    assert found["isError"] is False
    assert "the result is not kept for resources: " in caplog.text


async def test_the_last_result_is_not_shown_to_other_users(tmp_path: Path) -> None:
    served = serve(tmp_path, {"last": {"uri": "thing://last"}}, runtime={"runAs": "system"})
    assert (await served.list_resources(None))["resources"] == []
    (problem,) = await problems(served)
    assert problem.startswith("resource last: 'thing://last' would show each user the calls of others")


@given(st.text(max_size=30))
def test_T6_6_a_uri_is_ascii_with_a_scheme(text: str) -> None:
    if is_uri(text):
        assert text.isascii()
        assert text.isprintable()
        assert " " not in text
        assert text[0].isalpha()


async def test_a_transform_adds_resources(tmp_path: Path) -> None:
    transform = """
def generate_resources(server_name, context):
    return [
        {"uri": f"sum://{n}", "name": f"Sum {n}", "source": f"server://{server_name}/add?a={n}"} for n in range(2)
    ] + [{"uri": 5}, {"uri": "gone://x", "name": "x"}, {"uri": "sum://3", "source": "variable://v", "size": -1}]
"""
    served = serve(tmp_path, {}, resources_transform_cid=store(tmp_path, transform), variables={"v": 1})
    found = (await served.list_resources(None))["resources"]
    assert [each["uri"] for each in found] == ["sum://0", "sum://1"]
    assert [problem.partition(": ")[2][:6] for problem in await problems(served)] == ["item 3", "item 4", "item 5"]
    assert (await read(served, "sum://1"))["text"] == "3"


async def test_resources_come_in_pages(tmp_path: Path) -> None:
    resources = {str(n): {"uri": f"note://{n}", "source": "variable://v"} for n in range(5)}
    served = facility(define(tmp_path, SCRIPT, resources=resources, variables={"v": 1}), size=2)
    found, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        page = await served.list_resources(cursor)
        found += [each["name"] for each in page["resources"]]
        cursor, pages = page.get("nextCursor"), pages + 1
    assert (found, pages) == (list(resources), 3)


# ---------------------------------------------------------------------------------------- contents and variables


async def test_T6_2_a_text_is_read_as_text(tmp_path: Path) -> None:
    entry: dict[str, Any] = {"variables": {"text": "žluťoučký <b>kůň</b>", "json": {"a": [1, None, "ž"]}}}
    served = serve(tmp_path, {"t": {"uri": "variable://text"}, "j": {"uri": "variable://json"}}, **entry)
    assert await read(served, "variable://text") == {"mimeType": "text/plain", "text": "žluťoučký <b>kůň</b>"}
    found = await read(served, "variable://json")
    assert (found["mimeType"], json.loads(found["text"])) == ("application/json", {"a": [1, None, "ž"]})


@pytest.mark.parametrize("form", ["sha256", "256t"])
async def test_T6_4_a_resource_is_read_by_its_content_id(tmp_path: Path, form: str) -> None:
    name = store(tmp_path, PICTURE)
    uri = f"cid://{name if form == 'sha256' else content_id_256t(PICTURE)}"
    served = serve(tmp_path, {"picture": {"uri": uri, "mimeType": "image/png"}})
    found = await read(served, uri)
    assert base64.b64decode(found.pop("blob"), validate=True) == PICTURE
    assert found == {"mimeType": "image/png"}


async def test_T6_4_the_256t_form_of_a_short_content_needs_no_file(tmp_path: Path) -> None:
    uri = f"cid://{content_id_256t(b'short')}"
    assert (await read(serve(tmp_path, {"short": {"uri": uri}}), uri))["text"] == "short"


async def test_T6_4_a_content_that_was_changed_is_not_read(tmp_path: Path) -> None:
    name = store(tmp_path, "what it was")
    (tmp_path / "cas" / name).write_text("another")
    served = serve(tmp_path, {"note": {"uri": f"cid://{name}"}})
    with pytest.raises(McpdError, match="does not match the name"):
        await served.read_resource(f"cid://{name}", 0)


@pytest.mark.parametrize(
    ("data", "mime_type", "kind"),
    [
        (b"text", "", "text"),
        (b"text", "text/plain; charset=utf-8", "text"),
        (b"{}", "application/json", "text"),
        (b"<a/>", "image/svg+xml", "text"),
        (b"{}", "application/ld+json", "text"),
        (b"text", "image/png", "blob"),
        (b"\xff", "", "blob"),
        (b"\xff", "text/plain", "blob"),
    ],
)
def test_T6_3_bytes_are_a_blob(data: bytes, mime_type: str, kind: str) -> None:
    found = of_bytes(data, mime_type)
    assert kind in found
    assert found["mimeType"] == (mime_type or {"text": "text/plain", "blob": "application/octet-stream"}[kind])


async def test_a_resource_may_have_16_MiB_and_not_more(tmp_path: Path) -> None:
    name = store(tmp_path, b"x" * MAX_RESOURCE)
    resources = {"content": {"uri": f"cid://{name}"}, "result": {"uri": "large://", "source": "server://thing"}}
    served = serve(tmp_path, resources, "def main(): return 'x' * (16 * 1024 * 1024 + 1)\n")
    assert len((await read(served, f"cid://{name}"))["text"]) == MAX_RESOURCE
    with pytest.raises(LimitExceeded, match=rf"large://.* {MAX_RESOURCE + 1} .*{MAX_RESOURCE}"):
        await served.read_resource("large://", 0)


@pytest.mark.parametrize("uri", ["echo://never", "variable://secret", "server://thing/add?a=1", "cid://AAAAAAAA"])
async def test_T6_5_what_is_not_listed_cannot_be_read(tmp_path: Path, uri: str) -> None:
    served = serve(tmp_path, {"note": {"uri": "variable://note"}}, variables={"note": "x", "secret": "y"})
    with pytest.raises(NotFound) as caught:
        await served.read_resource(uri, 0)
    assert caught.value.data == {"uri": uri}


# ---------------------------------------------------------------------------------------- results of the own script


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("server://thing", "the main thing"),
        ("server://thing/", "the main thing"),
        ("server://thing/add?a=40", "42"),
        ("server://thing/add?a=1&b=1", "2"),
        ("server://thing/tags?names=a%20b&names=%C5%BE&loud=true", "a b,ž!"),
        ("server://thing/%61dd?a=1", "3"),
    ],
)
async def test_a_function_is_run_with_the_query_as_its_arguments(tmp_path: Path, source: str, text: str) -> None:
    served = serve(tmp_path, {"result": {"uri": "result://", "source": source}})
    assert await read(served, "result://") == {"mimeType": "text/plain", "text": text}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("server://thing/add?a=x", "$.a: 'x' is not of type 'integer'"),
        ("server://thing/add", "$.a is required"),
        ("server://thing/none", "no tool or function 'none'"),
        ("server://thing/_hidden", "_hidden"),
        ("server://thing/fail", "no luck"),
    ],
)
async def test_a_function_that_cannot_be_run_is_an_error(tmp_path: Path, source: str, says: str) -> None:
    served = serve(tmp_path, {"result": {"uri": "result://", "source": source}}, SCRIPT + "\ndef _hidden(): pass\n")
    with pytest.raises(McpdError) as caught:
        await served.read_resource("result://", 0)
    assert says in caught.value.message
    assert "result://" in caught.value.message


async def test_resources_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    runs = Inline(SCRIPT)
    served = facility(define(tmp_path, SCRIPT, resources={"r": {"uri": "server://thing/add?a=1"}}), runs=runs)
    await served.list_resources(None)
    assert runs.jobs == []
    for count in (1, 2):
        await read(served, "server://thing/add?a=1")
        assert len(runs.jobs) == count


async def test_what_is_no_result_of_a_tool_is_read_without_the_tools(tmp_path: Path) -> None:
    runs = Inline(SCRIPT)
    entry: dict[str, Any] = {"tools_transform_cid": store(tmp_path, "def generate_tools(name, context): return []")}
    resources = {"note": {"uri": "variable://note"}, "result": {"uri": "server://thing/add?a=1"}}
    served = facility(define(tmp_path, SCRIPT, resources=resources, variables={"note": "x"}, **entry), runs=runs)
    await read(served, "variable://note")
    assert runs.jobs == []
    await read(served, "server://thing/add?a=1")
    assert [job.function for job in runs.jobs if isinstance(job, PythonJob)] == ["generate_tools", "add"]


BLOCKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "image", "data": "AAEC", "mimeType": "image/png"}, {"mimeType": "image/png", "blob": "AAEC"}),
    ({"type": "audio", "data": "AAEC", "mimeType": "audio/wav"}, {"mimeType": "audio/wav", "blob": "AAEC"}),
    (
        {"type": "resource", "resource": {"uri": "x://y", "mimeType": "text/html", "text": "<p>"}},
        {"mimeType": "text/html", "text": "<p>"},
    ),
    ({"type": "resource", "resource": {"uri": "x://y", "blob": "AAEC"}}, {"blob": "AAEC"}),
    ({"type": "resource", "resource": {"uri": "x://y", "text": "a", "blob": "AAEC"}}, {"text": "a"}),
    ({"type": "resource", "resource": {"uri": "x://y", "mimeType": 5, "text": 5, "blob": "AAEC"}}, {"blob": "AAEC"}),
]


@pytest.mark.parametrize(("block", "content"), BLOCKS)
async def test_each_kind_of_result_is_a_content(tmp_path: Path, block: Any, content: Any) -> None:
    runs = Inline("", answers=lambda _job: Outcome([block], None, None, "", ""))
    served = facility(define(tmp_path, SCRIPT, resources={"r": {"uri": "server://thing"}}), runs=runs)
    assert await read(served, "server://thing") == content


async def test_the_type_is_what_the_entry_says_or_the_result(tmp_path: Path) -> None:
    answers = Outcome([{"type": "text", "text": "<p>"}], None, None, "text/html", "")
    resources = {"a": {"uri": "server://thing"}, "b": {"uri": "b://", "source": "server://thing", "mimeType": "a/b"}}
    runs = Inline("", answers=lambda _job: answers)
    served = facility(define(tmp_path, SCRIPT, resources=resources), runs=runs)
    assert (await read(served, "server://thing"))["mimeType"] == "text/html"
    assert (await read(served, "b://"))["mimeType"] == "a/b"


# ---------------------------------------------------------------------------------------- T13.8: redirects


def redirect(uri: str) -> Outcome:
    return Outcome([{"type": "resource_link", "uri": uri, "name": uri}], None, None, "", "")


def redirecting(directory: Path, targets: dict[str, str]) -> Facility:
    """A server whose function of each name redirects to what *targets* says."""
    resources = {name: {"uri": f"hop://{name}", "source": f"server://thing/{name}"} for name in targets}
    source = "".join(f"def {name}(): pass\n" for name in targets)

    def answers(job: object) -> Outcome:
        assert isinstance(job, PythonJob)
        return redirect(targets[job.function])

    defined = define(directory, source, resources={**resources, "end": {"uri": "variable://end"}}, variables={"end": 1})
    return facility(defined, runs=Inline(source, answers=answers))


async def test_T13_8_a_redirect_to_another_resource_is_followed(tmp_path: Path) -> None:
    served = redirecting(tmp_path, {"a": "hop://b", "b": "variable://end"})
    assert await read(served, "hop://a") == {"mimeType": "application/json", "text": "1"}


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ({"a": "hop://a"}, f"more than {MOST_REDIRECTS}"),
        ({"a": "hop://b", "b": "hop://a"}, f"more than {MOST_REDIRECTS}"),
        ({"a": "file:///etc/passwd"}, "file:///etc/passwd, which is no resource of this server"),
        ({"a": "server://thing/b"}, "no resource of this server"),
    ],
)
async def test_T13_8_any_other_redirect_is_an_error(tmp_path: Path, targets: dict[str, str], says: str) -> None:
    served = redirecting(tmp_path, targets)
    with pytest.raises(McpdError, match=r"hop://a") as caught:
        await served.read_resource("hop://a", 0)
    assert says in caught.value.message


async def test_a_failure_of_the_run_names_the_resource(tmp_path: Path) -> None:
    runs = Inline("", answers=lambda _job: failed("main ran for more than 30 s and was stopped"))
    served = facility(define(tmp_path, SCRIPT, resources={"r": {"uri": "server://thing"}}), runs=runs)
    with pytest.raises(McpdError, match="server://thing: main ran for more than 30 s"):
        await served.read_resource("server://thing", 0)


async def test_arguments_that_can_be_no_words_are_an_error(tmp_path: Path) -> None:
    tools = {"thing": {"inputSchema": {"properties": {"n": {"type": "integer"}}}}}
    resources = {"r": {"uri": "server://thing?n=x"}}
    served = facility(define(tmp_path, "#!/bin/sh\necho\n", suffix=".sh", tools=tools, resources=resources))
    with pytest.raises(InvalidArgument, match=r"\$\.n"):
        await served.read_resource("server://thing?n=x", 0)


async def test_a_resource_of_an_own_tool_is_called_as_the_tool_is(tmp_path: Path) -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer", "const": 40, "default": 40}}}
    promised = {"properties": {"n": {"type": "integer"}}}
    tools = {
        "sum": {"function": "add", "inputSchema": schema},
        "promise": {"function": "add", "inputSchema": schema, "outputSchema": promised},
    }
    served = serve(
        tmp_path, {"sum": {"uri": "server://thing/sum?a=2"}, "bad": {"uri": "server://thing/promise?a=2"}}, tools=tools
    )
    assert (await read(served, "server://thing/sum?a=2"))["text"] == "42"
    with pytest.raises(McpdError, match="its outputSchema does not allow: it is not an object"):
        await read(served, "server://thing/promise?a=2")


async def test_no_more_than_1000_resources_are_offered(tmp_path: Path) -> None:
    served = serve(tmp_path, {f"r{n}": {"uri": f"note://{n}", "source": "variable://v"} for n in range(1002)},
                   variables={"v": 1})  # fmt: skip
    assert len((await served.describe())["resources"]) == 1000
    assert await problems(served) == ["2 resources are left out: a server has 1000 of them at most"]
