# SPDX-License-Identifier: LGPL-2.1-or-later
"""Script agents: what they are given, what becomes of what they print, and how they are run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, InvalidConfig, LimitExceeded, McpdError, NotFound, NotSupported, SpawnFailed
from mcpd.servers.commands.running import Ended
from mcpd.servers.ensembles.agents import scripts
from tests.unit.ensembles.confined_parts import Den

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

ECHO = "import json, sys\nprint(json.dumps({'success': True, 'data': json.load(sys.stdin)}))\n"
VARIABLES = "import json, os\nprint(json.dumps(dict(os.environ)))\n"


@pytest.fixture
def den(tmp_path: Path) -> Iterator[Den]:
    with Den(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "read"),
    [("words", "words"), ('{"a": [1]}', {"a": [1]}), ("", ""), ("[" * 100_000, "[" * 100_000), ("NaN", "NaN"),
     ("1e999", "1e999"), ("half \ud800 of it", "half ? of it")],
    ids=["text", "json", "empty", "deep", "nan", "infinite", "surrogate"],
)  # fmt: skip
async def test_a_script_reads_input_parameters_and_context(den: Den, text: str, read: object) -> None:
    den.write("echo.py", ECHO)
    said = await den.run("echo.py", text, parameters={"most": 3}, context={"agent": "x", "dependencies": {"a": "b"}})
    context = {"agent": "x", "dependencies": {"a": "b"}}
    assert json.loads(said) == {"input": read, "parameters": {"most": 3}, "context": context}


async def test_the_same_is_in_variables_where_it_fits(den: Den) -> None:
    den.write("variables.py", VARIABLES)
    said = json.loads(await den.run("variables.py", '{"a": "b"}', parameters={"most": 3}))
    assert said["INPUT_TEXT"] == '{"a": "b"}'
    assert json.loads(said["INPUT_DATA"]) == {"a": "b"}
    assert json.loads(said["AGENT_PARAMETERS"]) == {"most": 3}
    for awkward in ("x" * (scripts.MAX_VARIABLE + 1), "NUL \0"):
        said = json.loads(await den.run("variables.py", awkward))
        assert "INPUT_TEXT" not in said


async def test_parameters_that_are_no_json(den: Den) -> None:
    den.write("echo.py", ECHO)
    with pytest.raises(InvalidArgument, match=r"script scripts/echo\.py: its parameters are no JSON"):
        await den.run("echo.py", parameters={"most": float("inf")})


async def test_the_servers_variables_are_not_the_scripts(den: Den, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "s3cret")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    den.write("variables.py", VARIABLES)
    said = json.loads(await den.run("variables.py"))
    assert said.keys() <= {
        "PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TERM", "NO_COLOR", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE",
        "INPUT_DATA", "INPUT_TEXT", "AGENT_PARAMETERS", "LC_CTYPE", "PWD", "SHLVL", "_",
    }  # fmt: skip
    with Den(den.directory, script_network=True) as allowing:
        assert json.loads(await allowing.run("variables.py"))["https_proxy"] == "http://proxy:1"


@pytest.mark.parametrize(
    ("printed", "response"),
    [
        ('{"success": true, "data": "words"}', "words"),
        ('{"success": true, "data": {"a": 1}, "agent_requests": []}', '{"a": 1}'),
        ('{"data": [1, "ü"]}', '[1, "ü"]'),
        ('{"success": true, "data": null}', "null"),
        ('{"success": true, "count": 3}', '{"success": true, "count": 3}'),
        (' {"a":  1}\n', '{"a":  1}'),
        ("[1,2]", "[1,2]"),
        ('"words"', '"words"'),
        ("null", "null"),
        ('{"data": "half \\ud800"}', "half ?"),
    ],
)
async def test_what_is_printed_is_the_response(den: Den, printed: str, response: str) -> None:
    (den.project / "printed").write_text(printed)
    assert await den.shell("cat printed") == response


async def test_a_script_that_says_it_failed(den: Den) -> None:
    (den.project / "printed").write_text('{"success": false, "error": "no such city", "data": 1}')
    with pytest.raises(McpdError, match=r"^script scripts/it\.sh: no such city$") as caught:
        await den.shell("cat printed; echo why >&2; exit 3")
    printed = (den.project / "printed").read_text()
    assert caught.value.data == {"script": "scripts/it.sh", "output": printed, "stderr": "why\n"}
    (den.project / "printed").write_text('{"success": false}')
    with pytest.raises(McpdError, match=r"^script scripts/it\.sh: it failed$"):
        await den.shell("cat printed")
    (den.project / "printed").write_text('{"success": false, "error": {"code": 7}}')
    with pytest.raises(McpdError, match=r'it\.sh: \{"code": 7\}$'):
        await den.shell("cat printed")


@pytest.mark.parametrize(
    "printed",
    ["", "words", "{'a': 1}", '{"a": 1} {"b": 2}', "NaN", "[" * 100_000, '{"data": 1e999}'],
    ids=["nothing", "words", "python", "two", "nan", "deep", "infinite"],
)
async def test_what_is_no_json_is_a_fault_that_shows_it(den: Den, printed: str) -> None:
    (den.project / "printed").write_text(printed)
    with pytest.raises(McpdError, match=r"^script scripts/it\.sh printed no JSON") as caught:
        await den.shell("cat printed; echo why >&2")
    assert caught.value.data == {"script": "scripts/it.sh", "output": printed[:2000], "stderr": "why\n"}


async def test_a_script_that_ends_badly(den: Den) -> None:
    with pytest.raises(McpdError, match=r"^script scripts/it\.sh ended with status 3: the \\x1b\[1mreason$") as caught:
        await den.shell("""echo '{"success": true, "data": 1}'; printf 'first\\nthe \\033[1mreason\\n' >&2; exit 3""")
    assert caught.value.data is not None
    assert caught.value.data["stderr"] == "first\nthe \x1b[1mreason\n"
    with pytest.raises(McpdError, match=r"it\.sh was ended by signal 9$"):
        await den.shell("kill -9 $$")


async def test_of_stderr_the_end_is_kept(den: Den) -> None:
    with pytest.raises(McpdError, match=r"status 1: last$") as caught:
        await den.shell("yes | head -c 1000000 >&2; echo last >&2; exit 1")
    assert caught.value.data is not None
    kept = caught.value.data["stderr"]
    assert isinstance(kept, str)
    assert len(kept) == scripts.MAX_ERRORS


async def test_agent_requests_are_refused_plainly(den: Den) -> None:
    (den.project / "printed").write_text('{"success": true, "data": 1, "agent_requests": [{"target": "x"}]}')
    with pytest.raises(NotSupported, match="agent_requests"):
        await den.shell("cat printed")


async def test_a_script_that_prints_without_end_is_ended(den: Den) -> None:
    with pytest.raises(LimitExceeded, match=r"^script scripts/it\.sh printed more than 4 MiB$") as caught:
        await den.shell("exec yes")
    assert caught.value.data is not None
    assert caught.value.data["output"] == "y\n" * 1000
    assert not den.processes()


async def test_data_that_grows_as_text_is_bounded(den: Den) -> None:
    with pytest.raises(LimitExceeded, match="more than 4 MiB"):
        await den.shell("""printf '{"data": [1'; yes ,1 | tr -d '\\n' | head -c 4000000; echo ]}""")


async def test_python_finds_what_lies_beside_it_and_leaves_nothing_there(den: Den) -> None:
    den.write("beside.py", "WORD = 'found'\n")
    den.write("main.py", "import beside, json\nprint(json.dumps({'data': beside.WORD}))\n")
    assert await den.run("main.py") == "found"
    assert sorted(path.name for path in (den.origin().base / "scripts").iterdir()) == ["beside.py", "main.py"]


async def test_what_can_be_executed_runs_by_its_first_line(den: Den) -> None:
    den.write("odd.py", "#!/bin/sh\necho '\"a shell\"'\n", mode=0o755)
    assert await den.run("odd.py") == '"a shell"'
    den.write("plain.py", "print('\"python\"')\n", mode=0o755)
    assert await den.run("plain.py") == '"python"'
    den.write("tool", "#!/usr/bin/env python3\nprint('1')\n", mode=0o755)
    assert await den.run("tool") == "1"


async def test_what_cannot_be_run(den: Den) -> None:
    den.write("words.txt", "words")
    with pytest.raises(InvalidConfig, match=r"script scripts/words\.txt cannot be run: .*chmod \+x"):
        await den.run("words.txt")
    den.write("broken", "#!/no/such/interpreter\n", mode=0o755)
    with pytest.raises(SpawnFailed, match=r"script scripts/broken cannot be started: No such file") as caught:
        await den.run("broken")
    assert caught.value.data == {"script": "scripts/broken"}
    (den.origin().base / "scripts/directory.py").mkdir()
    with pytest.raises(McpdError, match="Is a directory"):
        await den.run("directory.py")
    with pytest.raises(McpdError, match=r"opening script scripts/none\.py: No such file"):
        await den.run("none.py")


async def test_a_machine_without_room_for_temporary_files_is_a_fault(den: Den) -> None:
    den.write("echo.py", ECHO)
    den.settings.state.mkdir()
    (den.settings.state / "tmp").write_text("in the way")
    with pytest.raises(McpdError, match="making a directory for temporary files: File exists") as caught:
        await den.run("echo.py")
    assert caught.value.data == {"script": "scripts/echo.py"}


async def test_what_the_library_does_not_give_is_not_run(den: Den) -> None:
    def refuse(_origin: object, script: str) -> Path:
        raise NotFound(f"no script {script}")

    agents = scripts.ScriptAgents(den.settings, refuse)
    den.agents, own = agents, den.agents
    own.close()
    with pytest.raises(NotFound, match=r"no script scripts/x\.py"):
        await den.run("x.py")


any_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["success", "data", "error", "agent_requests", "a"]), inner, max_size=4
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    printed=any_json.map(json.dumps).map(str.encode) | st.binary(max_size=200),
    code=st.sampled_from([0, 0, 0, 1, 137]),
    truncated=st.booleans(),
)
def test_whatever_is_printed_is_a_response_or_a_fault(printed: bytes, code: int, truncated: bool) -> None:
    ended = Ended(code, printed, b"oops \xff", truncated)
    fault = None
    try:
        scripts._response("script x", ended).encode()
    except McpdError as raised:
        fault = raised
    if (code, truncated) != (0, False):
        assert fault is not None
    if fault is not None:
        assert fault.message.startswith(("script x", "the data of script x"))
        assert fault.message.isprintable()
        json.dumps(fault.data, allow_nan=False)
