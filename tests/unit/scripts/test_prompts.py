# SPDX-License-Identifier: LGPL-2.1-or-later
"""The prompts of a script server: listed, checked and filled in (T7)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument
from mcpd.servers.scripts.calls import Calls, PythonJob
from mcpd.servers.scripts.facility import PROBLEMS, Facility
from mcpd.servers.scripts.prompts import LIMITS, MAX_TEMPLATE
from tests.unit.scripts.facility_parts import Inline, define, facility, nobody, store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.process

ABOUT = {
    "title": "About",
    "description": "Says something",
    "arguments": [
        {"name": "topic", "description": "Of what", "required": True},
        {"name": "tone", "title": "Tone", "schema": {"enum": ["formal", "casual"], "default": "formal"}},
    ],
    "template": "Say something {{ tone }} about {{ topic }}.",
}


def serve(directory: Path, **prompts: Any) -> Facility:
    return facility(define(directory, prompts=prompts))


async def said(served: Facility, name: str, /, **arguments: Any) -> str:
    (message,) = (await served.get_prompt(name, arguments))["messages"]
    assert (message["role"], message["content"]["type"]) == ("user", "text")
    return str(message["content"]["text"])


async def problem_of(served: Facility) -> str:
    (problem,) = (await served.list_prompts(None))["_meta"][PROBLEMS]
    return str(problem)


# ---------------------------------------------------------------------------------------- the list


async def test_T7_1_the_prompts_are_listed(tmp_path: Path) -> None:
    served = serve(tmp_path, plain={"template": "Say something."}, about=ABOUT)
    assert await served.list_prompts(None) == {
        "prompts": [
            {"name": "plain"},
            {
                "name": "about",
                "title": "About",
                "description": "Says something",
                "arguments": [
                    {"name": "topic", "description": "Of what", "required": True},
                    {"name": "tone", "title": "Tone", "required": False},
                ],
            },
        ]
    }


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ({}, "messages"),
        ({"template": "a", "messages": [{"content": "b"}]}, "messages"),
        ({"template": "{{ a"}, "end of"),
        ({"template": "{% for %}"}, "expression"),
        ({"template": "{{ unheard }}"}, "unheard"),
        ({"template": "{{ 1 | unheard }}"}, "filter unheard"),
        ({"template": "{{ 1 is unheard }}"}, "test unheard"),
        ({"template": "x" * (MAX_TEMPLATE + 1)}, str(MAX_TEMPLATE)),
        ({"template": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"}, "bad"),
        ({"messages": [{"role": "system", "content": "a"}]}, "role"),
        ({"messages": [{"content": {"type": "image"}}]}, "content"),
        ({"messages": [{"content": {"type": "film", "data": ""}}]}, "content"),
        ({"template": "a", "arguments": [{"name": ""}]}, "name"),
        ({"template": "a", "arguments": [{"name": "a"}, {"name": "a"}]}, "one name"),
        ({"template": "a", "arguments": [{"name": "a", "schema": {"type": "nonsense"}}]}, "argument a"),
    ],
)
async def test_a_prompt_that_cannot_be_used_is_a_problem_of_its_own(tmp_path: Path, prompt: Any, says: str) -> None:
    served = serve(tmp_path, bad=prompt, good={"template": "Good."})
    assert [each["name"] for each in (await served.list_prompts(None))["prompts"]] == ["good"]
    problem = await problem_of(served)
    assert problem.startswith("prompt bad: ")
    assert says in problem


async def test_a_transform_adds_prompts_and_one_that_fails_leaves_the_rest(tmp_path: Path) -> None:
    transform = """
def generate_prompts(server_name, context):
    return [{"name": "made", "template": "By " + server_name}, {"name": "about", "template": "Again"}, 7]
"""
    defined = define(tmp_path, prompts={"about": ABOUT}, prompts_transform_cid=store(tmp_path, transform))
    served = facility(defined)
    assert [each["name"] for each in (await served.list_prompts(None))["prompts"]] == ["about", "made"]
    again, odd = (await served.list_prompts(None))["_meta"][PROBLEMS]
    assert again == "prompts_transform_cid: item 2: another prompt has the name about"
    assert "item 3" in odd
    assert await said(served, "made") == "By thing"
    assert await said(served, "about", topic="ships") == "Say something formal about ships."
    broken = facility(
        define(tmp_path, prompts={"about": ABOUT}, prompts_transform_cid=store(tmp_path, "raise OSError"))
    )
    assert [each["name"] for each in (await broken.list_prompts(None))["prompts"]] == ["about"]
    assert "prompts_transform_cid" in await problem_of(broken)


async def test_the_names_that_a_template_makes_are_no_arguments(tmp_path: Path) -> None:
    template = (
        "{% set a = 1 %}{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% for b, c in [(1, 2)] %}{{ loop.index }}"
        "{{ b }}{{ c }}{% endfor %}{% call m(a) %}!{% endcall %}{% with d = 5 %}{{ d }}{% endwith %}"
    )
    assert await said(serve(tmp_path, p={"template": template}), "p") == "1121!5"


async def test_no_more_than_1000_prompts_are_offered(tmp_path: Path) -> None:
    served = serve(tmp_path, **{f"p{number}": {"template": "x"} for number in range(1003)})
    assert len((await served.describe())["prompts"]) == 1000
    assert await problem_of(served) == "3 prompts are left out: a server has 1000 of them at most"


# ---------------------------------------------------------------------------------------- what they say


async def test_T7_2_a_prompt_without_arguments(tmp_path: Path) -> None:
    assert await said(serve(tmp_path, plain={"template": "Say something.\n"}), "plain") == "Say something.\n"


async def test_T7_3_a_prompt_with_arguments(tmp_path: Path) -> None:
    served = serve(tmp_path, about=ABOUT)
    assert await said(served, "about", topic="ships") == "Say something formal about ships."
    assert await said(served, "about", topic="<b>", tone="casual") == "Say something casual about <b>."
    assert (await served.get_prompt("about", {"topic": "x"}))["description"] == "Says something"


async def test_T7_3_several_messages_and_contents_that_are_no_text(tmp_path: Path) -> None:
    image = {"type": "image", "data": "AAEC", "mimeType": "image/png"}
    messages = [
        {"content": "Look at {{ what }}:"},
        {"role": "user", "content": image},
        {"role": "assistant", "content": {"type": "text", "text": "I see {{ what }}."}},
    ]
    served = serve(tmp_path, look={"messages": messages, "arguments": [{"name": "what", "required": True}]})
    assert (await served.get_prompt("look", {"what": "this"}))["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Look at this:"}},
        {"role": "user", "content": image},
        {"role": "assistant", "content": {"type": "text", "text": "I see this."}},
    ]


@given(st.text(max_size=60))
async def test_T7_3_an_argument_is_no_template(text: str) -> None:
    with TemporaryDirectory() as directory:
        served = serve(Path(directory), p={"template": "[{{ a }}]", "arguments": [{"name": "a"}]})
        assert await said(served, "p", a=text) == f"[{text}]"


async def test_an_argument_has_the_type_that_its_schema_says(tmp_path: Path) -> None:
    arguments = [{"name": "n", "schema": {"type": "integer", "minimum": 1}}]
    served = serve(tmp_path, count={"arguments": arguments, "template": "{{ n + 1 }}"})
    assert await said(served, "count", n="41") == "42"
    arguments = [{"name": "n", "schema": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}}]
    served = serve(tmp_path, count={"arguments": arguments, "template": "{{ n + 1 }}"})
    assert await said(served, "count", n="41") == "42"


# ---------------------------------------------------------------------------------------- what is refused


async def test_T7_4_an_unknown_prompt_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="Unknown prompt: never") as caught:
        await serve(tmp_path).get_prompt("never", {})
    assert caught.value.jsonrpc_code == -32602


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "the argument topic is required"),
        ({"topic": 7}, "the argument topic has to be a string"),
        ({"topic": "ships", "tone": "rude"}, "the argument tone"),
        ({"topic": "ships", "volume": "loud"}, "no argument 'volume'"),
    ],
)
async def test_T7_5_an_argument_of_the_wrong_kind_is_an_error(tmp_path: Path, arguments: Any, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await serve(tmp_path, about=ABOUT).get_prompt("about", arguments)
    assert caught.value.jsonrpc_code == -32602
    assert says in caught.value.message
    assert "its arguments are: topic (required), tone" in caught.value.message


@pytest.mark.parametrize(
    "template",
    [
        "{{ a.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ a.__init__.__globals__ }}",
        "{{ range.__self__ }}",
        "{{ dict.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ joiner.__call__.__globals__ }}",
        "{{ '{0.__class__}'.format(a) }}",
        "{% for a in range(1000000) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ a.append('x') }}",
    ],
)
async def test_templates_reach_nothing(tmp_path: Path, template: str) -> None:
    served = serve(tmp_path, p={"template": template, "arguments": [{"name": "a"}]})
    with pytest.raises(InvalidArgument, match="prompt p: its template failed"):
        await served.get_prompt("p", {"a": "x"})


@asynccontextmanager
async def in_processes(directory: Path, **prompts: Any) -> AsyncIterator[Facility]:
    """The server of *prompts* whose functions run as they do."""
    defined = define(directory, prompts=prompts)
    calls = Calls("", "", "", limits=defined.limits(), log=lambda _: None)
    served = Facility(defined, calls, nobody)
    try:
        yield served
    finally:
        await served.close()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            f"ran for more than {LIMITS.seconds:g} s",
        ),
        ("{{ 9 ** (9 ** 9) }}", f"ran for more than {LIMITS.seconds:g} s"),
        ("{% for a in range(99999) %}" + "x" * 1000 + "{% endfor %}", str(LIMITS.output)),
        ("{{ 'x' * 99999999999 }}", "256 MiB of memory"),
        ("{{ '%99999999999d' % 1 }}", "256 MiB of memory"),
        ("{{ 'x'.zfill(9999999999) ~ a }}", "256 MiB of memory"),
        ("{{ 'x' | center(9999999999) }}", "256 MiB of memory"),
        ("{{ ('x' * 999999).replace('x', 'x' * 999) }}", "256 MiB of memory"),
        ("{% autoescape 'x' | center(9999999999) %}{% endautoescape %}", "256 MiB of memory"),
    ],
)
async def test_a_template_that_runs_away_is_stopped_and_is_no_matter_for_the_list(
    tmp_path: Path, template: str, says: str
) -> None:
    prompts = {"p": {"template": template, "arguments": [{"name": "a"}]}, "good": {"template": "Good."}}
    async with in_processes(tmp_path, **prompts) as served:
        assert PROBLEMS not in (await served.list_prompts(None)).get("_meta", {})
        with pytest.raises(InvalidArgument, match="prompt p: its template failed: ") as caught:
            await served.get_prompt("p", {"a": "x"})
        assert says in caught.value.message
        assert await said(served, "good") == "Good."


async def test_a_template_may_write_nothing_and_fails_by_itself(tmp_path: Path) -> None:
    runs = Inline("")
    served = facility(define(tmp_path, prompts={"p": {"template": "{{ 1 }}"}}), runs=runs)
    assert await said(served, "p") == "1"
    (job,) = runs.jobs
    assert isinstance(job, PythonJob)
    assert job.read_only
    assert runs.limits == [LIMITS]
    template = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"
    with pytest.raises(InvalidArgument, match="its template failed: maximum recursion"):
        await serve(tmp_path, p={"template": template}).get_prompt("p", {})


async def test_an_optional_argument_that_was_not_given_can_be_asked_for(tmp_path: Path) -> None:
    template = "{% if a is defined %}{{ a }}{% else %}nothing{% endif %}, {{ a | default('still nothing') }}"
    served = serve(tmp_path, p={"template": template, "arguments": [{"name": "a"}]}, q={
        "template": "{{ a }}", "arguments": [{"name": "a"}]})  # fmt: skip
    assert await said(served, "p") == "nothing, still nothing"
    with pytest.raises(InvalidArgument, match="'a' is undefined"):
        await served.get_prompt("q", {})


# ---------------------------------------------------------------------------------------- completion


async def test_values_that_a_schema_names_are_completed(tmp_path: Path) -> None:
    served = serve(tmp_path, about=ABOUT)
    for begun, values in (("", ["formal", "casual"]), ("F", ["formal"]), ("x", [])):
        found = (await served.complete("about", "tone", begun))["completion"]
        assert found == {"values": values, "total": len(values), "hasMore": False}
    assert (await served.complete("about", "topic", ""))["completion"]["values"] == []
    with pytest.raises(InvalidArgument, match="never"):
        await served.complete("never", "tone", "")


async def test_no_more_than_100_values_are_completed_at_once(tmp_path: Path) -> None:
    schema = {"enum": [f"v{n}" for n in range(150)]}
    served = serve(tmp_path, p={"template": "x", "arguments": [{"name": "a", "schema": schema}]})
    found = (await served.complete("p", "a", "v"))["completion"]
    assert (len(found["values"]), found["total"], found["hasMore"]) == (100, 150, True)
