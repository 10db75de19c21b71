# SPDX-License-Identifier: LGPL-2.1-or-later
"""From a source that names files to a map that names their content."""

from __future__ import annotations

import itertools
import json
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidManifest, McpdError
from mcpd.model.mcps import McpsEntry, parse_entry
from mcpd.scripts.contents import content_id, content_id_256t, read, write
from mcpd.scripts.generator import Built, Stored, build, content_faults
from tests.unit.store.store_trees import names_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

TOOLS = "def generate_tools(server_name, context):\n    return [{'name': server_name}]\n"
RESOURCES = "async def generate_resources(server_name, context):\n    return []\n"
SHELL = "#!/bin/bash\n# Greets\necho hello\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A source beside the files that it names."""
    root = tmp_path / "project"
    (root / "transforms").mkdir(parents=True)
    (root / "transforms/tools.py").write_text(TOOLS)
    (root / "transforms/resources.py").write_text(RESOURCES)
    (root / "greet.sh").write_text(SHELL)
    (root / "logo.png").write_bytes(b"\x89PNG\0")
    return root


def source(project: Path, data: object) -> Path:
    path = project / "mcps.source.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data, indent=2))
    return path


def fault(project: Path, data: object) -> str:
    """What is said of *data*, for which nothing is stored."""
    cas = project.parent / "none"
    with pytest.raises(McpdError) as caught:
        build(source(project, data), cas)
    assert not cas.exists()
    return caught.value.message


def test_T10_1_files_become_content_ids(project: Path, tmp_path: Path) -> None:
    cas = tmp_path / "cas"
    document = {
        "zeta": {"description": "Last by name, first here", "auto_discover": True},
        "jq": {
            "tools_transform_cid": "transforms/tools.py",
            "resources_transform_cid": "file:transforms/resources.py",
            "somebody_elses": {"source": "file:transforms/tools.py"},
        },
        "greet": {
            "definition_cid": "./greet.sh",
            "resources": {
                "logo": {"uri": "logo://greet", "mimeType": "image/png", "source": "file:logo.png"},
                "other": {"uri": "server://greet/state"},
            },
        },
    }
    built = build(source(project, document), cas)
    tools, resources, greet = (content_id(text.encode()) for text in (TOOLS, RESOURCES, SHELL))
    logo = content_id(b"\x89PNG\0")
    assert built.stored == [
        Stored("jq.tools_transform_cid", project / "transforms/tools.py", tools),
        Stored("jq.resources_transform_cid", project / "transforms/resources.py", resources),
        Stored("greet.definition_cid", project / "greet.sh", greet),
        Stored("greet.resources.logo.source", project / "logo.png", logo),
    ]
    assert list(built.map) == ["zeta", "jq", "greet"]
    assert built.map["jq"] == {
        "tools_transform_cid": f"cid://{tools}",
        "resources_transform_cid": f"cid://{resources}",
        "somebody_elses": {"source": "file:transforms/tools.py"},
    }
    assert built.map["greet"]["definition_cid"] == f"cid://{greet}"
    assert built.map["greet"]["resources"]["logo"]["source"] == f"cid://{logo}"
    assert built.map["greet"]["resources"]["other"] == {"uri": "server://greet/state"}
    assert [read(each.id, [cas]) for each in built.stored] == [each.path.read_bytes() for each in built.stored]
    assert build(source(project, document), cas) == built


def test_T10_5_a_transform_that_was_built_loads_from_its_content_id(project: Path, tmp_path: Path) -> None:
    built = build(source(project, {"jq": {"tools_transform_cid": "transforms/tools.py"}}), tmp_path / "cas")
    entry = parse_entry("jq", built.map["jq"], "built")
    assert not list(content_faults(built.map["jq"], entry, [tmp_path / "cas"]))
    namespace: dict[str, Any] = {}
    exec(read(entry.tools_transform_cid, [tmp_path / "cas"]), namespace)
    assert namespace["generate_tools"]("jq", {}) == [{"name": "jq"}]


def test_content_ids_in_a_source_stay_and_must_exist(project: Path, tmp_path: Path) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    name = write(others, TOOLS.encode())
    document = {"a": {"tools_transform_cid": name, "resources": {"r": {"uri": f"cid://{name}"}}}}
    assert build(source(project, document), own, [others]) == Built(document, [])
    assert names_in(own) == []
    text = fault(project, document)
    assert "mcps.source.json:2: entry 'a': tools_transform_cid: " in text
    assert "resources.r.uri: " in text
    assert text.count("mcpctl mcps build") == 2


def test_a_script_in_its_own_id_is_stored(project: Path, tmp_path: Path) -> None:
    script = b"#!/bin/sh\necho hi\n"
    document = {"hi": {"definition_cid": content_id_256t(script)}}
    assert build(source(project, document), tmp_path / "cas").map == document
    assert read(content_id(script), [tmp_path / "cas"]) == script


def test_T10_5_what_a_map_names_is_looked_at(tmp_path: Path) -> None:
    tools, script = write(tmp_path, TOOLS.encode()), write(tmp_path, b"def f(:\n")
    raw = {
        "definition_cid": script,
        "tools_transform_cid": f"cid://{tools}",
        "resources_transform_cid": tools,
        "prompts_transform_cid": "file:prompts.py",
        "resources": {
            "a": {"uri": "cid://" + "0" * 64},
            "b": {"uri": "b://b", "source": "file:b"},
            "c": {"uri": "server://c/d"},
        },
    }
    entry = parse_entry("a", raw, "map")
    faults = dict(content_faults(raw, entry, [tmp_path]))
    assert {field: fault.partition(" ")[0] for field, fault in faults.items()} == {
        "definition_cid": f"{script}:1:",
        "resources_transform_cid": tools,
        "prompts_transform_cid": "a",
        "resources.a.uri": "the",
        "resources.b.source": "a",
    }
    assert "mcpctl mcps build" in faults["resources.b.source"]
    raw = {"resources": {"a": {"uri": "file:logo.png"}}}
    ((field, said),) = content_faults(raw, parse_entry("a", raw, "map"), [tmp_path])
    assert (field, "mcpctl mcps build" in said) == ("resources.a.uri", False)
    assert '"source": "file:…"' in said


def test_a_file_is_a_source_and_not_a_uri(project: Path) -> None:
    said = fault(project, {"a": {"resources": {"logo": {"uri": "file:logo.png"}}}})
    assert "mcps.source.json:2: entry 'a': resources.logo.uri: file:logo.png is not a URI" in said
    assert '"source": "file:…"' in said


def test_a_rule_may_report_further_faults(project: Path) -> None:
    def rule(server_id: str, entry: McpsEntry) -> None:
        if entry.permissions:
            raise InvalidManifest(f"{server_id}: no permissions here")

    cas = project.parent / "none"
    with pytest.raises(InvalidManifest, match=r"mcps.source.json:1: entry 'a': no permissions here$"):
        build(source(project, '{"a": {"permissions": ["x"]}, "b": {"definition_cid": "greet.sh"}}'), cas, (), rule)
    assert not cas.exists()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"tools_transform_cid": "transforms/resources.py"},
            "no function generate_tools(server_name, context)",
        ),
        ({"tools_transform_cid": "missing.py"}, "tools_transform_cid: missing.py: No such file"),
        ({"tools_transform_cid": "broken.py"}, "tools_transform_cid: broken.py:2: invalid syntax"),
        ({"prompts_transform_cid": "cid://nothing"}, "prompts_transform_cid: 'cid://nothing' is not a content id"),
        ({"definition_cid": "broken.sh"}, "definition_cid: broken.sh:3: "),
        ({"definition_cid": "nameless.sh"}, "begin it with #!/bin/sh"),
        ({"definition_cid": "liar.py"}, "has a Python file name"),
        ({"definition_cid": "../outside.py"}, "is not below"),
        ({"definition_cid": "/etc/passwd"}, "is not below"),
        ({"definition_cid": "link.py"}, "is not below"),
        ({"definition_cid": "door/outside.py"}, "is not below"),
        ({"definition_cid": "transforms"}, "not a regular file"),
        ({"definition_cid": "pipe.py"}, "not a regular file"),
        ({"definition_cid": "loop.py"}, "loop.py: "),
        ({"definition_cid": "x" * 5000}, "File name too long"),
        (
            {"resources": {"r": {"uri": "r://r", "source": "file:big"}}},
            "r.source: big is larger than 16777216 bytes",
        ),
        ({"resources": {"r": {"uri": "r://r", "source": "file:"}}}, "resources.r.source: : not a regular file"),
        ({"enabled": "yes"}, "enabled: "),
        ([], "must be an object"),
    ],
)
def test_T10_1_what_is_wrong_is_named_and_nothing_is_stored(project: Path, entry: object, said: str) -> None:
    (project / "broken.py").write_text("x = 1\ndef f(:\n")
    (project / "broken.sh").write_text("#!/bin/sh\n\nif )\n")
    (project / "nameless.sh").write_text("echo hi\n")
    (project / "liar.py").write_text("#!/bin/sh\necho hi\n")
    (project.parent / "outside.py").write_text(TOOLS)
    (project / "link.py").symlink_to(project.parent / "outside.py")
    (project / "door").symlink_to(project.parent)
    (project / "loop.py").symlink_to("loop.py")
    os.mkfifo(project / "pipe.py")
    with (project / "big").open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    good = {"good": {"tools_transform_cid": "transforms/tools.py"}}
    text = fault(project, good | {"bad": entry})
    assert text.startswith(f"{project}/mcps.source.json:5: entry 'bad': ")
    assert said in text


def test_T10_1_all_that_is_wrong_is_said_at_once(project: Path) -> None:
    text = fault(project, {"../a": {}, "b": {"definition_cid": "x"}, "c": {"mcp_enabled": 1}})
    assert len(text.splitlines()) == 3
    assert "entry '../a': '../a' is not a server id" in text


def test_T10_1_a_link_that_stays_inside_is_followed(project: Path, tmp_path: Path) -> None:
    (project / "alias.py").symlink_to("transforms/../transforms/tools.py")
    built = build(source(project, {"a": {"tools_transform_cid": "alias.py"}}), tmp_path / "cas")
    assert built.map["a"]["tools_transform_cid"] == f"cid://{content_id(TOOLS.encode())}"


def test_T10_1_no_link_leads_out_by_a_way_back(project: Path) -> None:
    (project.parent / "outside.py").write_text(TOOLS)
    (project / "up.py").symlink_to("transforms/../../outside.py")
    (project / "transforms/up").symlink_to("..")
    for name in ("up.py", "transforms/up/../outside.py", f"{project}/transforms/tools.py"):
        assert "is not below" in fault(project, {"a": {"tools_transform_cid": name}})
    path = source(project, {"a": {"tools_transform_cid": "transforms/up/transforms/./tools.py"}})
    assert len(build(path, project.parent / "cas").stored) == 1
    link = project / "link.source.json"
    link.symlink_to(project.parent / "mcps.source.json")
    path.rename(project.parent / "mcps.source.json")
    with pytest.raises(InvalidManifest, match=r"link\.source\.json is not below"):
        build(link, project.parent / "none")


@pytest.mark.parametrize("of", ["directory", "inner"])
def test_T10_1_nothing_else_is_read_while_somebody_swaps_directories(tmp_path: Path, of: str) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    for root, text in ((own, TOOLS), (others, TOOLS.replace("server_name}", "'not yours'}"))):
        (root / "transforms").mkdir(parents=True)
        (root / "transforms/tools.py").write_text(text)
    source(own, {"a": {"tools_transform_cid": "transforms/tools.py"}})
    real, evil = (own, others) if of == "directory" else (own / "transforms.real", others / "transforms")
    link = tmp_path / "project" if of == "directory" else own / "transforms"
    if of == "inner":
        link.rename(real)
    link.symlink_to(real.name)
    done = threading.Event()

    def swap() -> None:
        beside = link.with_name("beside")
        for target in itertools.cycle((str(evil), real.name)):
            if done.is_set():
                return
            beside.symlink_to(target)
            beside.replace(link)

    built, cas = 0, tmp_path / "cas"
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        while built < 300:
            with suppress(McpdError):
                build((tmp_path / "project" if of == "directory" else own) / "mcps.source.json", cas)
                built += 1
    finally:
        done.set()
        thread.join()
    assert {name for name in names_in(cas) if len(name) == 64} == {content_id(TOOLS.encode())}


@pytest.mark.parametrize("text", ["", "[]", '{"a": ', "null", '"cid://AAAAAAAA"', "[" * 100_000])
def test_T10_1_a_source_that_is_no_map_is_refused(project: Path, text: str) -> None:
    assert fault(project, text).startswith(str(project / "mcps.source.json"))


def test_T10_1_a_source_that_is_not_there(project: Path) -> None:
    with pytest.raises(McpdError, match=r"reading .*absent.json: No such file"):
        build(project / "absent.json", project.parent / "none")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
REFERENCE = st.sampled_from(
    ["tools.py", "file:tools.py", "../tools.py", "file:/etc/passwd", "cid://x", "a" * 64, "file:", "\0", "\ud800", "."]
)
FIELDS = st.sampled_from(
    ["definition_cid", "tools_transform_cid", "resources_transform_cid", "prompts_transform_cid", "enabled", "tools"]
)
HOSTILE = st.dictionaries(
    st.text(max_size=4) | st.sampled_from(["a", "b"]),
    st.dictionaries(FIELDS, REFERENCE | ANYTHING, max_size=3)
    | st.fixed_dictionaries({"resources": st.dictionaries(st.text(max_size=3), ANYTHING, max_size=2)})
    | st.fixed_dictionaries(
        {"resources": st.fixed_dictionaries({"r": st.fixed_dictionaries({"source": REFERENCE | ANYTHING})})}
    )
    | ANYTHING,
    max_size=3,
)


@given(HOSTILE)
def test_T10_1_no_source_stores_what_it_should_not(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, object]
) -> None:
    root = tmp_path_factory.mktemp("hostile")
    project, cas = root / "project", root / "cas"
    project.mkdir()
    (root / "tools.py").write_text("def generate_tools(a, b): return ['not below']\n")
    (project / "tools.py").write_text(TOOLS)
    path = project / "mcps.source.json"
    path.write_text(json.dumps(document))
    built = None
    with suppress(InvalidManifest):
        built = build(path, cas)
    stored = {content_id(TOOLS.encode())} if built is not None and built.stored else set()
    assert {name for name in names_in(cas) if len(name) == 64} == stored
