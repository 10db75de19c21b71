# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scripts and entries of the mcps map as servers: listed, called and served in every way."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from bench.servers import ECHO, put_server
from tests.e2e.script_parts import BOTH, HELLO, MODERN, ScriptRig, eventually, text_of
from tests.rig import BIN

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
MARK = "imported"
IMPORTED = f'''\
"""What it does when it is imported can be seen."""

import pathlib

(pathlib.Path.home() / "{MARK}").touch()


def touch() -> str:
    """Is called."""
    return "called"
'''


@pytest.fixture
def rig(machine: ScriptRig) -> Iterator[ScriptRig]:
    """The machine, whose scripts and entries end with the test."""
    yield machine
    machine.forget()


def test_T8_1_a_file_becomes_a_server(rig: ScriptRig) -> None:
    file = rig.home / "hello.py"
    file.write_text(HELLO)
    assert "hello" not in rig.listed()
    assert rig.done("script", "add", str(file)).startswith("Added hello: ")
    found = rig.listed()["hello"]
    assert (found["state"], found["scope"], found["summary"]) == ("installed", "user", "Greets people.")
    assert found["sandboxed"] is True
    assert found["origin"] == str(rig.scripts / "hello.py")
    (tool,) = rig.tools("hello").values()
    assert tool["description"] == "Greet somebody."
    assert tool["inputSchema"]["properties"]["name"] == {"type": "string", "description": "Whom to greet."}
    assert tool["inputSchema"]["required"] == ["name"]
    assert rig.done("call", "hello", "greet", "name=World", "times=2") == "Hello World!\nHello World!\n"
    assert rig.done("script", "remove", "hello").startswith("Removed hello: ")
    assert "hello" not in rig.listed()
    assert rig.mcpctl("call", "hello", "greet", "name=World").returncode == 4


@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize("way", ["stdio", "unix", "tcp"])
async def test_T8_1_a_whole_session_of_the_official_client(rig: ScriptRig, mode: Any, way: str) -> None:
    rig.put("official.py", HELLO)
    if way == "stdio":
        client = StdioServerParameters(
            command=str(BIN / "mcpctl"), args=["--user", "run", "official"], env=rig.environ
        )  # fmt: skip
        await _converse(Client(client, mode=mode), mode)
        return
    transport = httpx2.AsyncHTTPTransport(uds=os.fspath(rig.socket)) if way == "unix" else None
    headers = {} if way == "unix" else {"Authorization": f"Bearer {rig.token}"}
    base = "http://localhost" if way == "unix" else rig.url
    async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=60) as http:
        url = f"{base}/mcp/official"
        await _converse(Client(streamable_http_client(url, http_client=http), mode=mode), mode)


def said(result: Any) -> str:
    """The text of a result of the official client."""
    return str(result.content[0].text)


async def _converse(client: Client, mode: str) -> None:
    async with client:
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else MODERN)
        assert [tool.name for tool in (await client.list_tools()).tools] == ["greet"]
        result = await client.call_tool("greet", {"name": "Žofie"})
        assert (result.is_error, said(result)) == (False, "Hello Žofie!")
        refused = await client.call_tool("greet", {})
        assert refused.is_error is True
        assert "$.name" in said(refused)


def test_a_script_that_cannot_be_read_is_listed_with_line_and_message(rig: ScriptRig) -> None:
    rig.put("fine.py", HELLO)
    path = rig.put("broken.py", "x = 1\n\ndef f(:\n    pass\n")
    shell = rig.put("unclosed.sh", "#!/bin/sh\necho\nif true; then\n")
    found = rig.listed()
    assert (found["broken"]["state"], found["broken"]["problem"]) == ("broken", f"{path}:3: invalid syntax")
    assert found["unclosed"]["state"] == "broken"
    assert found["unclosed"]["problem"].startswith(f"{shell}:")
    assert (found["fine"]["state"], "problem" in found["fine"]) == ("installed", False)
    assert rig.value("fine", "greet", name="you") == "Hello you!"
    refused = rig.mcpctl("call", "broken", "f")
    assert refused.returncode == 1
    assert f"{path}:3: invalid syntax" in refused.stderr
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    error = rig.http().post("/mcp/broken", json=message).json()["error"]
    assert "invalid syntax" in error["message"]
    rig.put("broken.py", HELLO)
    assert rig.listed()["broken"]["state"] == "installed"
    assert rig.value("broken", "greet", name="me") == "Hello me!"


def test_T11_1_a_script_is_never_imported_to_be_looked_at(rig: ScriptRig) -> None:
    rig.put("witness.py", IMPORTED)
    made = rig.state_of("witness") / MARK
    assert rig.listed()["witness"]["state"] == "installed"
    rig.done("show", "witness")
    rig.done("mcps", "check")
    assert set(rig.tools("witness")) == {"touch"}
    session = rig.client("witness")
    assert set(session.tools()) == {"touch"}
    assert "touch" in rig.page("witness")
    assert not made.exists()
    assert text_of(session.call("touch")) == "called"
    assert made.exists()


def test_T11_2_a_shell_script(rig: ScriptRig) -> None:
    rig.put("count.sh", '#!/bin/sh\n# Counts its arguments.\necho "$# arguments: $1"\n')
    assert rig.listed()["count"]["summary"] == "Counts its arguments."
    (tool,) = rig.tools("count").values()
    assert (tool["name"], tool["description"]) == ("count", "Counts its arguments.")
    assert rig.value("count", "count") == "0 arguments: \n"
    (name,) = tool["inputSchema"]["properties"]
    given = tool["inputSchema"]["properties"][name]
    words = "'a $(id) b' c" if given["type"] == "string" else ["a $(id) b", "c"]
    assert rig.value("count", "count", **{name: words}) == "2 arguments: a $(id) b\n"


def test_T11_2_what_a_shell_script_prints_when_it_fails_is_told(rig: ScriptRig) -> None:
    rig.put("refuse.sh", "#!/bin/sh\necho so far\necho out of paper >&2\nexit 3\n")
    assert "out of paper" in rig.fault("refuse", "refuse")


def test_T11_4_a_private_file_is_no_server_and_can_be_imported(rig: ScriptRig) -> None:
    rig.put("_common.py", "def shout(text):\n    return text.upper()\n")
    rig.put(
        "loud.py",
        "from _common import shout\n\n\ndef say(text: str) -> str:\n    return shout(text)\n\n\ndef _no(): ...\n",
    )
    found = rig.listed()
    assert "loud" in found
    assert not {"_common", "common"} & set(found)
    assert set(rig.tools("loud")) == {"say"}
    assert rig.value("loud", "say", text="hey") == "HEY"


def test_an_installed_server_comes_before_a_script_of_its_id(rig: ScriptRig) -> None:
    rig.put("twice.py", HELLO)
    rig.put("twice.sh", "#!/bin/sh\necho\n")
    assert str(rig.scripts / "twice.sh") in rig.listed()["twice"]["problem"]
    assert set(rig.tools("twice")) == {"greet"}
    put_server(rig.installed, "twice", {"server.py": ECHO})
    found = rig.listed()["twice"]
    assert found["state"] == "installed"
    assert found["name"] == "Twice"
    assert f"{rig.scripts / 'twice.py'} has the same id and is not used" in found["problem"]
    assert set(rig.tools("twice")) == {"echo"}
    assert rig.mcpctl("show", "twice").stdout.count("twice.py") == 1


def test_of_scripts_the_users_come_first_and_those_of_packages_last(rig: ScriptRig) -> None:
    code = 'def whose() -> str:\n    return "{}"\n'
    for directory, whose in ((rig.vendor_scripts, "vendor"), (rig.system_scripts, "system"), (rig.scripts, "user")):
        (directory / "layered.py").write_text(code.format(whose))
        found = rig.listed()["layered"]
        assert found["scope"] == ("user" if whose == "user" else "system")
        assert rig.value("layered", "whose") == whose
    for directory, below in ((rig.scripts, "system"), (rig.system_scripts, "vendor")):
        (directory / "layered.py").unlink()
        assert rig.listed()["layered"]["state"] == "installed"
        assert rig.value("layered", "whose") == below
    (rig.vendor_scripts / "layered.py").unlink()
    assert "layered" not in rig.listed()


def test_T6_1_T6_2_T7_1_an_entry_of_the_map_alone_is_a_server(rig: ScriptRig) -> None:
    rig.enter(library={
        "summary": "Things to read",
        "resources": {
            "rules": {"uri": "https://example.com/rules", "source": "variable://rules", "mimeType": "text/plain"}
        },
        "prompts": {"ask": {"template": "What about {{ topic }}?", "arguments": [{"name": "topic", "required": True}]}},
        "variables": {"rules": "No running."},
    })  # fmt: skip
    found = rig.listed()["library"]
    assert (found["state"], found["summary"]) == ("installed", "Things to read")
    client = rig.client("library")
    assert client.result("tools/list")["tools"] == []
    (resource,) = client.result("resources/list")["resources"]
    assert resource["uri"] == "https://example.com/rules"
    (content,) = client.result("resources/read", uri="https://example.com/rules")["contents"]
    assert content == {"uri": "https://example.com/rules", "mimeType": "text/plain", "text": "No running."}
    (said,) = client.result("prompts/get", name="ask", arguments={"topic": "walking"})["messages"]
    assert said["content"]["text"] == "What about walking?"
    assert client.error("resources/read", uri="variable://rules")["code"] == -32002
    rig.enter(library=None)
    assert "library" not in rig.listed()


def test_T10_1_T10_5_T6_4_a_built_map_names_script_transform_and_resource_by_content(rig: ScriptRig) -> None:
    source = rig.home / "built"
    source.mkdir()
    (source / "script.py").write_text(HELLO)
    (source / "more.py").write_text(
        "def generate_tools(server_name, context):\n"
        "    return [{'name': server_name + '_twice', 'description': 'Twice', 'function': 'greet', 'inputSchema': {"
        "'type': 'object', 'properties': {'name': {'type': 'string'}, 'times': {'const': 2, 'default': 2}}}}]\n"
    )
    (source / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\1\2")
    entry = {
        "definition_cid": "script.py",
        "auto_discover": True,
        "tools_transform_cid": "more.py",
        "resources": {"logo": {"source": "file:logo.png", "mimeType": "image/png"}},
    }
    (source / "mcps.source.json").write_text(json.dumps({"built": entry}))
    target = rig.map.parent / "mcps.d"
    target.mkdir(exist_ok=True)
    rig.done("mcps", "build", str(source / "mcps.source.json"), "-o", str(target / "built.json"))
    built = json.loads((target / "built.json").read_text())["built"]
    names = {built["definition_cid"], built["tools_transform_cid"], built["resources"]["logo"]["source"]}
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in source.iterdir() if path.suffix != ".json"}
    assert {name.removeprefix("cid://") for name in names} == digests
    assert rig.listed()["built"]["state"] == "installed"
    assert rig.value("built", "greet", name="you") == "Hello you!"
    assert rig.value("built", "built_twice", name="you") == "Hello you!\nHello you!"
    client = rig.client("built")
    (resource,) = client.result("resources/list")["resources"]
    assert resource["uri"] == built["resources"]["logo"]["source"]
    (content,) = client.result("resources/read", uri=resource["uri"])["contents"]
    assert (content["mimeType"], content["blob"]) == ("image/png", "iVBORw0KGgoAAQI=")
    assert "built" in rig.done("mcps", "check")
    stored = rig.home / ".local/share/mcp/cas" / built["definition_cid"].removeprefix("cid://")
    stored.chmod(0o644)
    stored.write_text(HELLO.replace("Hello", "Goodbye"))
    eventually(lambda: rig.listed()["built"]["state"] == "broken", "content that is not what its id says is noticed")


def test_the_examples_of_the_manual_work(rig: ScriptRig) -> None:
    manual = (REPOSITORY / "docs/scripts.md").read_text()
    examples = re.findall(r"```(python|sh)\n(.*?)```", manual, re.DOTALL)
    hello, render, disks, transform = (text for _, text in examples)
    source = rig.home / "manual"
    source.mkdir()
    (called,) = re.findall(r"has a `(def greet.*)`:", manual)
    polyglot = f"{called}:\n    return f'{{language}}: {{name}}'\n"
    for name, text in (("hello", hello), ("render", render), ("disks", disks), ("polyglot", polyglot)):
        path = source / f"{name}{'.sh' if name == 'disks' else '.py'}"
        path.write_text(text)
        rig.done("script", "add", str(path))
    (source / "transform.py").write_text(transform)
    document = {
        "polyglot": {"tools_transform_cid": "transform.py", "variables": {"languages": ["de", "fr"]}},
        "render": {"configurableProperties": [{"key": "format", "type": "string", "default": "pdf"}]},
    }
    (source / "mcps.source.json").write_text(json.dumps(document))
    rig.done("mcps", "build", str(source / "mcps.source.json"), "-o", str(rig.map))
    rig.done("mcps", "check")
    eventually(lambda: "greet_de" in rig.tools("polyglot"), "the map is in use")
    assert rig.value("hello", "greet", name="World", times=2) == "Hello World!\nHello World!"
    assert [rig.value("polyglot", f"greet_{language}") for language in ("de", "fr")] == ["de: World", "fr: World"]
    assert rig.value("render", "render", pages=2) == "pdf"
    assert "1K-blocks" in rig.value("disks", "disks", args="--block-size K /")


def test_T5_6_T14_3_a_script_that_the_map_disables_is_refused(rig: ScriptRig) -> None:
    rig.put("off.py", HELLO)
    client = rig.client("off")
    assert client.post("tools/list").status_code == 200

    def status() -> int:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        return client.http.post("/mcp/off", json=message, headers=BOTH).status_code

    for entry in ({"enabled": False}, {"mcp_enabled": False}):
        rig.enter(off=entry)
        assert rig.listed()["off"]["state"] == "disabled"
        eventually(lambda: status() == 403, "the bridge refuses it")
        refused = rig.mcpctl("call", "off", "greet", "name=x")
        assert refused.returncode != 0
        assert "disabled" in refused.stderr
        rig.enter(off=None)
        eventually(lambda: status() == 200, "it is there again")


def test_the_map_renames_hides_and_prefills_tools_of_a_script(rig: ScriptRig) -> None:
    rig.put(
        "narrowed.py", HELLO + "\n\ndef secret() -> str:\n    return 'x'\n\n\ndef plain() -> str:\n    return 'plain'\n"
    )
    assert set(rig.tools("narrowed")) == {"greet", "secret", "plain"}
    rig.enter(narrowed={
        "auto_discover": True,
        "disallowed_tools": ["sec*"],
        "tools": {"greet": {"name": "salute", "arguments": {"times": {"default": 2, "hide": True}}}},
    })  # fmt: skip
    tools = rig.tools("narrowed")
    assert set(tools) == {"salute", "plain"}
    assert set(tools["salute"]["inputSchema"]["properties"]) == {"name"}
    assert rig.value("narrowed", "salute", name="you") == "Hello you!\nHello you!"
    client = rig.client("narrowed")
    for hidden in ("secret", "greet"):
        assert client.call(hidden, name="x") == {
            "content": [{"type": "text", "text": f"Unknown tool: {hidden}"}], "isError": True
        }  # fmt: skip


def test_the_name_of_a_server_calls_its_main_unless_the_map_narrows_it(rig: ScriptRig) -> None:
    rig.put("shout.py", "def main(text: str) -> str:\n    return text.upper()\n")
    assert text_of(rig.client("shout").call("shout", text="hello")) == "HELLO"
    rig.enter(shout={"disallowed_tools": ["main"]})
    eventually(lambda: rig.client("shout").tools() == {}, "main is taken away")
    assert text_of(rig.client("shout").call("shout", text="hello")) == "Unknown tool: shout"


def test_T4_3_T11_1_what_is_not_said_is_found_and_what_is_said_stands(rig: ScriptRig) -> None:
    rig.put("said.py", HELLO)
    assert set(rig.tools("said")) == {"greet"}
    static = {"welcome": {"description": "Welcome", "function": "greet"}}
    rig.enter(said={"tools": static})
    assert set(rig.tools("said")) == {"welcome"}
    assert rig.value("said", "welcome", name="you") == "Hello you!"
    rig.enter(said={"tools": static, "auto_discover": True})
    assert set(rig.tools("said")) == {"welcome", "greet"}
    rig.enter(said={"auto_discover": False})
    assert rig.tools("said") == {}


def test_what_was_said_last_is_a_resource(rig: ScriptRig) -> None:
    rig.put("echo.py", (REPOSITORY / "data/share/scripts/echo.py").read_text())
    rig.enter(echo={
        "description": "Echo server - returns input as output",
        "tools": {
            "echo": {
                "description": "Echo the provided input",
                "inputSchema": {
                    "type": "object",
                    "properties": {"message": {"type": "string", "description": "The message to echo"}},
                    "required": ["message"],
                },
            }
        },
        "resources": {
            "last-echo": {
                "uri": "echo://last",
                "name": "Last Echo",
                "description": "The last echoed message",
                "mimeType": "text/plain",
            }
        },
        "prompts": {},
    })  # fmt: skip
    eventually(lambda: rig.client("echo").result("resources/list")["resources"], "the resource is listed")
    assert rig.value("echo", "echo", message="Žluťoučký kůň") == "Žluťoučký kůň"
    (content,) = rig.client("echo").result("resources/read", uri="echo://last")["contents"]
    assert content == {"uri": "echo://last", "mimeType": "text/plain", "text": "Žluťoučký kůň"}


def test_T13_8_a_redirect_is_a_link_and_a_resource_of_another_server_needs_a_permission(rig: ScriptRig) -> None:
    rig.put("asked.py", HELLO)
    rig.put("asking.py", (
        "from mcpd.script import Redirect\n\n\ndef go() -> Redirect:\n"
        "    return Redirect('server://asked/greet?name=link')\n"
    ))  # fmt: skip
    (link,) = rig.call("asking", "go")["content"]
    assert (link["type"], link["uri"]) == ("resource_link", "server://asked/greet?name=link")
    uri = "server://asked/greet?name=resource"
    entry = {"resources": {"greeting": {"uri": uri}}}
    rig.enter(asking=entry)
    eventually(lambda: rig.client("asking").result("resources/list")["resources"], "the resource is listed")
    assert "mcp:asked" in rig.client("asking").error("resources/read", uri=uri)["message"]
    rig.enter(asking={**entry, "permissions": ["mcp:asked"]})

    def read() -> Any:
        answer = rig.client("asking").post("resources/read", uri=uri).json()
        return answer.get("result", {}).get("contents")

    eventually(read, "the permission is granted")
    assert [each["text"] for each in read()] == ["Hello resource!"]


def test_T5_8_T8_1_results_of_many_kinds_come_through(rig: ScriptRig) -> None:
    rig.put("kinds.py", (
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass Point:\n    x: int\n    y: int = 2\n\n\n"
        "def point(x: int) -> Point:\n    return Point(x)\n\n\n"
        "def sum_of(points: list[Point]) -> int:\n    return sum(each.x * each.y for each in points)\n\n\n"
        "def picture() -> bytes:\n    return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(8)\n\n\n"
        "def nothing() -> None:\n    print('to the log')\n"
    ))  # fmt: skip
    assert rig.call("kinds", "point", x=1)["structuredContent"] == {"x": 1, "y": 2}
    assert rig.value("kinds", "sum_of", points=[{"x": 2}, {"x": 3, "y": 4}]) == "16"
    (picture,) = rig.call("kinds", "picture")["content"]
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
    nothing = rig.call("kinds", "nothing")
    assert (nothing["content"], nothing["isError"]) == ([], False)


def test_T10_2_a_machine_that_starts_with_a_map_and_scripts_has_their_servers() -> None:
    with ScriptRig() as rig:
        (rig.scripts / "early.py").write_text(HELLO)
        source = rig.home / "mcps.source.json"
        entries = {
            "early": {"summary": "From the map"},
            "notes": {"resources": {"n": {"uri": "variable://n"}}, "variables": {"n": {"a": 1}}},
        }
        source.write_text(json.dumps(entries))
        rig.done("mcps", "build", str(source), "-o", str(rig.map))
        rig.boot()
        found = rig.listed()
        assert {found[name]["state"] for name in ("early", "notes")} == {"installed"}
        assert found["early"]["summary"] == "From the map"
        assert rig.value("early", "greet", name="boot") == "Hello boot!"
        (content,) = rig.client("notes").result("resources/read", uri="variable://n")["contents"]
        assert json.loads(content["text"]) == {"a": 1}
