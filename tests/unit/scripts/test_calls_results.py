# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whatever a function returns is JSON, or an error that says why not; and whatever a worker says is looked at."""

from __future__ import annotations

import base64
import errno
import json
import struct
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mcpd.script import File
from mcpd.servers import seccomp
from mcpd.servers.scripts.calls import Limits, frames, results
from mcpd.servers.scripts.calls.lines import LONGEST, MORE, MOST, Lines
from mcpd.servers.scripts.calls.outcome import Report, outcome
from mcpd.servers.scripts.calls.shell import interpreter
from tests.unit import seccomp_verdicts as verdicts

LIMITS = Limits(30, 1 << 30, 256, 10 << 20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
ANYTHING = st.recursive(
    SCALARS | st.binary() | st.dates() | st.times() | st.uuids() | st.decimals() | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.frozensets(SCALARS)
        | st.dictionaries(SCALARS | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(ANYTHING)
def test_whatever_is_returned_is_strict_json(value: Any) -> None:
    try:
        found = results.message(value)
    except results.NotJson as error:
        complaint = str(error)
        found = {"error": complaint}
    else:
        complaint = ""
    event(f"refused: {bool(complaint)}")
    text = json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    came = outcome(Report(text, b"", {"stopped": "", "code": 0, "tail": ""}), LIMITS, shell=False)
    assert came.error == complaint
    assert not complaint or "two members" in complaint
    assert results.are_blocks(came.content)
    assert came.structured is None or came.structured == came.value


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_too_long_to_be_read_again_are_an_error(sign: int) -> None:
    with pytest.raises(results.NotJson):
        results.message(sign * 10**5000)
    assert results.message(sign * 10**3900) == {"value": sign * 10**3900}


@given(st.binary())
def test_bytes_are_kept(data: bytes) -> None:
    [block] = results.message(data)["content"]
    encoded = block["data"] if "data" in block else block["resource"]["blob"]
    assert base64.b64decode(encoded) == data


@given(st.binary() | st.recursive(SCALARS, lambda s: st.lists(s) | st.dictionaries(
    st.sampled_from(["content", "value", "error", "structured", "mime_type", "type", "text", "resource", "uri"]), s)
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_a_worker_says_is_an_outcome(data: bytes) -> None:
    found = outcome(Report(data, b"", {"stopped": "", "code": 0, "tail": ""}), LIMITS, shell=False)
    assert isinstance(found.error, str)
    assert results.are_blocks(found.content)
    assert isinstance(found.mime_type, str)


@given(st.binary())
def test_whatever_a_shell_script_writes_is_an_outcome(data: bytes) -> None:
    found = outcome(Report(b"", data, {"stopped": "", "code": 0, "tail": ""}), LIMITS, shell=True)
    assert not found.error
    assert results.are_blocks(found.content)


def test_a_shell_scripts_object_has_to_be_one() -> None:
    def structured(output: bytes) -> Any:
        return outcome(Report(b"", output, {"stopped": "", "code": 0, "tail": ""}), LIMITS, shell=True).structured

    assert structured(b' {"a": 1}\n') == {"a": 1}
    assert structured(b'{"a": NaN}') is None
    assert structured(b'{"a": 1} {"b": 2}') is None
    assert structured(b'{"a":' * 100_000) is None
    assert structured(b'{"a":' * 300 + b"1" + b"}" * 300) is None
    assert structured(b'{"a": "\\ud800"}') == {"a": "\\ud800"}
    assert structured(b"[1]") is None


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ({"stopped": "time", "code": -9}, "The call ran for more than 30 s and was stopped."),
        ({"stopped": "output", "code": -9}, "The call wrote more than 10485760 bytes and was stopped."),
        ({"stopped": "processes", "code": -9}, "The call started more than 256 processes and was stopped."),
        ({"stopped": "start", "code": None}, "The call could not be started: no room."),
        ({"stopped": "", "code": -11}, "The call was killed by signal SIGSEGV."),
        ({"stopped": "", "code": -24}, "The call used more than 30 s of processor time and was stopped."),
        ({"stopped": "", "code": -25}, "The call wrote a file of more than 1 GiB and was stopped."),
        ({"stopped": "", "code": -40}, "The call was killed by signal 40."),
        ({"stopped": "", "code": None}, "The call was stopped, and one of its processes still hangs in the kernel."),
    ],
)
def test_ends_have_clear_words(last: dict[str, Any], error: str) -> None:
    assert outcome(Report(b"", b"", last | {"tail": "no room"}), LIMITS, shell=False).error == error


@given(st.lists(st.tuples(st.sampled_from([b"L", b"R"]), st.binary())), st.integers(1, 7))
def test_frames_survive_any_cut(sent: list[tuple[bytes, bytes]], step: int) -> None:
    stream = b"".join(frames.frame(kind, payload) for kind, payload in sent)
    cut = frames.Frames(1 << 20)
    found = [item for at in range(0, len(stream), step) for item in cut.feed(stream[at : at + step])]
    assert found == sent


def test_a_frame_too_long_is_refused_before_it_is_there() -> None:
    with pytest.raises(ValueError, match="a frame of 11 bytes"):
        frames.Frames(10).feed(struct.pack(">cI", b"L", 11))


@given(st.text().map(lambda text: text.replace("\r", "")), st.integers(1, 5))
def test_lines_survive_any_cut(text: str, step: int) -> None:
    data = text.encode()
    found: list[bytes] = []
    lines = Lines(found.append)
    for at in range(0, len(data), step):
        lines.feed(data[at : at + step])
    lines.end()
    wanted = data.split(b"\n")
    assert found == (wanted if wanted[-1] else wanted[:-1])


def test_two_streams_are_bounded_together() -> None:
    found: list[bytes] = []
    first = Lines(found.append)
    second = Lines(found.append, first)
    first.feed(b"a\n" * (MOST - 1) + b"x" * (LONGEST + 1))
    second.feed(b"b\n")
    first.feed(b"\nc\n")
    second.feed(b"d\n" * 9)
    assert found == [b"a"] * (MOST - 1) + [b"b", MORE]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("echo", ["/bin/sh"]),
        ("#!/bin/bash\necho", ["/bin/bash"]),
        ("#! /usr/bin/env -S bash -e \n", ["/usr/bin/env", "-S bash -e"]),
        ("#!\n", ["/bin/sh"]),
        ("", ["/bin/sh"]),
    ],
)
def test_the_interpreter_is_read_as_the_kernel_does(source: str, words: list[str]) -> None:
    assert interpreter(source) == words


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_jumps_to_where_something_is(machine: str, read_only: bool) -> None:
    program = seccomp.program(machine, read_only=read_only)
    steps = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    for here, (code, true, false, _) in enumerate(steps):
        assert max(true, false) + here + 1 < len(steps) or code & 7 == 6
    assert [step[0] for step in steps[-3:]] == [6, 6, 6]


def verdict(machine: str, number: int, *arguments: int, read_only: bool) -> int:
    program = seccomp.program(machine, read_only=read_only)
    return verdicts.verdict(program, ARCHITECTURES[machine], number, *arguments)


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN = {
    "x86_64": ((302,), (203,), (144,), (142,), (314,), (141, 0), (251, 1)),
    "aarch64": ((261,), (122,), (119,), (118,), (274,), (140, 0), (30, 1)),
}
"""prlimit64, sched_setaffinity, …scheduler, …param, …attr, setpriority and ioprio_set, up to the process's id."""
IPC = {
    "x86_64": (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241, 248, 249, 250),
    "aarch64": (194, 196, 195, 190, 193, 191, 186, 189, 188, 187, 192, 180, 181, 217, 218, 219),
}
KEYS = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}
CLONE = {"x86_64": 56, "aarch64": 220}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@given(pid=st.integers(1, (1 << 32) - 1))
def test_no_filter_lets_another_process_be_changed(machine: str, read_only: bool, pid: int) -> None:
    for call in FOREIGN[machine]:
        assert verdict(machine, *call, 0, read_only=read_only) == 0
        assert verdict(machine, *call, pid, read_only=read_only) == errno.EPERM
    of_user = FOREIGN[machine][-2][0], 2
    assert verdict(machine, *of_user, 0, read_only=read_only) == errno.EPERM
    assert verdict(machine, 1 << 30, read_only=read_only) == errno.EPERM


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_who_must_not_write_has_no_ipc_nor_namespaces(machine: str) -> None:
    for number in IPC[machine]:
        assert verdict(machine, number, read_only=True) == errno.EPERM
        # What lasts is refused to every call, but for keys.
        assert verdict(machine, number, read_only=False) == (0 if number in KEYS[machine] else errno.EPERM)
    assert verdict(machine, 467, read_only=True) == errno.EPERM
    assert verdict(machine, 467, read_only=False) == 0
    assert verdict(machine, 435, read_only=True) == errno.ENOSYS
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, CLONE[machine], flag | 17, read_only=True) == errno.EPERM
    assert verdict(machine, CLONE[machine], 0x3D0F00, read_only=True) == 0  # a thread
    assert verdict(machine, SOCKETPAIR[machine], 1, 1 | 0o2000000, read_only=True) == 0
    for family, kind in ((1, 2), (1, 5), (2, 1), (40, 1)):
        assert verdict(machine, SOCKETPAIR[machine], family, kind, read_only=True) == errno.EPERM


def said(value: Any) -> Any:
    """The outcome of a function that returns *value*."""
    text = json.dumps(results.message(value)).encode()
    return outcome(Report(text, b"", {"stopped": "", "code": 0, "tail": ""}), LIMITS, shell=False)


@pytest.mark.parametrize(
    "value",
    [
        {"output": 1},
        {"output": 1, "status": 200},
        {"output": "x", "content_type": 5},
        {"output": "x", "content_type": "text/html", "more": 1},
        {"status": 302, "location": "x", "more": 1},
        {"status": [302], "location": "x"},
        {"status": 200, "location": "x"},
        {"status": 302, "location": None},
        {"redirect": "x", "status": 302},
        {"content": []},
        {"content": [{"type": "text", "text": "x"}], "isError": "no"},
        {"content": [{"type": "text", "text": "x"}], "more": 1},
    ],
)
def test_an_ordinary_object_stays_one(value: Any) -> None:
    found = said(value)
    assert (found.structured, found.value, found.error, found.raw) == (value, value, "", None)


def test_a_whole_result_stays_itself() -> None:
    image = {"type": "image", "data": "AAE=", "mimeType": "image/png"}
    blocks = [{"type": "text", "text": "no"}, image]
    failed = {"content": blocks, "isError": True, "structuredContent": {"a": 1}, "_meta": {"b": "é"}}
    found = said(failed)
    assert (found.error, found.content, found.structured, found.raw) == ("no", blocks, {"a": 1}, failed)
    found = said({"content": [image]})
    assert (found.error, found.raw) == ("", {"content": [image], "isError": False})
    assert said({"content": [image], "isError": True}).error == "failed"
    assert said({"content": [], "isError": True}).raw == {"content": [], "isError": True}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": "/a/b.png", "mimeType": "image/png"},
        {"type": "audio", "data": "é", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///x", "blob": "?"}},
    ],
)
def test_data_has_to_be_base64(block: dict[str, Any]) -> None:
    with pytest.raises(results.NotJson, match=rf"content\[0\] is no {block['type']}: its data is not base64"):
        results.message({"content": [block]})
    forged = json.dumps({"content": [block]}).encode()
    assert "is none" in outcome(Report(forged, b"", {"stopped": "", "code": 0, "tail": ""}), LIMITS, shell=False).error


def test_bytes_in_a_list_are_blocks_whatever_holds_them() -> None:
    wanted = results.message([b"\x00", 1])
    assert results.message([bytearray(b"\x00"), 1]) == results.message([memoryview(b"\x00"), 1]) == wanted
    assert [block["type"] for block in wanted["content"]] == ["resource", "text"]


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, {None: 1, "null": 2}, [{True: 1, "true": 2}]])
def test_members_of_one_name_are_an_error(value: Any) -> None:
    with pytest.raises(results.NotJson, match=r"two members that are both called '(1|null|true)'"):
        results.message(value)


def test_a_file_has_a_path() -> None:
    with pytest.raises(TypeError, match="File takes a path"):
        File(b"x")  # type: ignore[arg-type]
