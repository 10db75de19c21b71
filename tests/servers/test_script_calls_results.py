# SPDX-License-Identifier: LGPL-2.1-or-later
"""What functions of scripts return, and what comes of it for the client."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.servers.scripts.calls import Outcome
from tests.servers.test_script_calls import returned, text

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


async def test_T5_1_T5_7_text_comes_back_as_text() -> None:
    assert await returned("def f(message): return message", message="hällo \U0001f600") == Outcome(
        [{"type": "text", "text": "hällo \U0001f600"}], None, "hällo \U0001f600", "", ""
    )


async def test_an_object_is_structured_and_text() -> None:
    outcome = await returned("def f(): return {'a': [1, None, 2.5], 3: True}")
    assert outcome.structured == outcome.value == {"a": [1, None, 2.5], "3": True}
    assert outcome.content == [{"type": "text", "text": '{"a": [1, null, 2.5], "3": true}'}]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("None", None),
        ("[1, 'x']", [1, "x"]),
        ("(1, {2}, frozenset())", [1, [2], []]),
        ("float('nan')", "NaN"),
        ("[float('-inf')]", ["-Infinity"]),
        (r"'\udc80'", "\\udc80"),
        ("__import__('datetime').date(2024, 2, 29)", "2024-02-29"),
        ("__import__('datetime').timedelta(minutes=1)", 60),
        ("__import__('uuid').UUID(int=1)", "00000000-0000-0000-0000-000000000001"),
        ("__import__('decimal').Decimal('1.10')", "1.10"),
        ("__import__('pathlib').Path('/a')", "/a"),
        ("__import__('http').HTTPStatus.OK", 200),
        ("__import__('collections').OrderedDict(a=b'x')", {"a": "eA=="}),
        ("__import__('dataclasses').make_dataclass('D', ['a', 'b'])(1, [2])", {"a": 1, "b": [2]}),
        ("(n for n in (1, 2))", [1, 2]),
        ("(n for n in 'ab')", "ab"),
        ("iter([1])", [1]),
    ],
)
async def test_values_as_json(code: str, value: Any) -> None:
    outcome = await returned(f"def f(): return {code}")
    assert not outcome.error
    assert outcome.value == value


@pytest.mark.parametrize(
    ("data", "block"),
    [
        (PNG, {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}),
        (b"\xff\xd8\xff1", {"type": "image", "data": "/9j/MQ==", "mimeType": "image/jpeg"}),
        (b"RIFF0000WAVE", {"type": "audio", "data": "UklGRjAwMDBXQVZF", "mimeType": "audio/wav"}),
        (b"fLaC", {"type": "audio", "data": "ZkxhQw==", "mimeType": "audio/flac"}),
    ],
)
async def test_images_and_sounds_are_known_by_their_bytes(data: bytes, block: dict[str, str]) -> None:
    outcome = await returned(f"def f(): return {data!r}")
    assert outcome.content == [block]
    assert outcome.mime_type == block["mimeType"]


async def test_T5_8_other_bytes_come_back_as_base64() -> None:
    [block] = (await returned(r"def f(): return b'\x00\xff'")).content
    assert block["type"] == "resource"
    assert (block["resource"]["blob"], block["resource"]["mimeType"]) == ("AP8=", "application/octet-stream")


async def test_results_say_their_content_type() -> None:
    outcome = await returned("def f(): return {'output': '<p>', 'content_type': 'text/html'}")
    assert (text(outcome), outcome.mime_type, outcome.value) == ("<p>", "text/html", "<p>")
    assert outcome.structured is None
    [block] = (await returned("def f(): return {'output': b'x', 'content_type': 'image/svg+xml'}")).content
    assert block == {"type": "image", "data": "eA==", "mimeType": "image/svg+xml"}
    assert text(await returned("def f(): return {'output': b'x', 'content_type': 'text/plain'}")) == "x"


@pytest.mark.parametrize(
    ("code", "uri"),
    [
        ("{'redirect': 'https://example.com/x'}", "https://example.com/x"),
        ("{'status': 302, 'location': '/echo/x'}", "server://echo/x"),
        ("{'status': 303, 'Location': 'cid://0'}", "cid://0"),
        ("__import__('mcpd.script').script.Redirect('file:///x')", "file:///x"),
        ("__import__('mcpd.script').script.Redirect('/echo/x')", "server://echo/x"),
    ],
)
async def test_T13_8_a_redirect_is_a_link_to_a_resource(code: str, uri: str) -> None:
    [block] = (await returned(f"def f(): return {code}")).content
    assert (block["type"], block["uri"]) == ("resource_link", uri)
    assert block["name"]


async def test_helpers_and_lists_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hä")
    (tmp_path / "b c.bin").write_bytes(b"\x00")
    outcome = await returned(
        f"""
        from mcpd.script import Audio, File, Image, progress
        def f():
            progress(1)
            files = [File("{tmp_path}/a.txt"), File("{tmp_path}/b c.bin")]
            return ["see", Image(b"1"), Audio(b"2", "audio/ogg"), *files, 5]
        """
    )
    uri = tmp_path.as_uri()
    assert outcome.content == [
        {"type": "text", "text": "see"},
        {"type": "image", "data": "MQ==", "mimeType": "image/png"},
        {"type": "audio", "data": "Mg==", "mimeType": "audio/ogg"},
        {"type": "resource", "resource": {"uri": f"{uri}/a.txt", "mimeType": "text/plain", "text": "hä"}},
        {
            "type": "resource",
            "resource": {"uri": f"{uri}/b%20c.bin", "mimeType": "application/octet-stream", "blob": "AA=="},
        },
        {"type": "text", "text": "5"},
    ]


async def test_content_blocks_pass_if_they_are_some() -> None:
    outcome = await returned("def f(): return {'content': [{'type': 'text', 'text': 'x', 'annotations': {}}]}")
    assert outcome.content == [{"type": "text", "text": "x", "annotations": {}}]
    outcome = await returned("def f(): return {'content': [{'type': 'text'}]}")
    assert outcome.structured == {"content": [{"type": "text"}]}
    outcome = await returned("def f(): return {'content': [{'type': 'text', 'text': 'bad'}], 'isError': True}")
    assert outcome.error == "bad"
