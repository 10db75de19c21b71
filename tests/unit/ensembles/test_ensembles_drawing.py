# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pictures of ensembles hold what is in them, and nothing that a name or a condition could do to a page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from mcpd.errors import InvalidConfig
from mcpd.servers.ensembles import drawing
from mcpd.servers.ensembles.drawing import mermaid, terminal
from mcpd.servers.ensembles.format.models import Ensemble

KINDS: dict[str, dict[str, Any]] = {
    "model": {"model_profile": "fast"},
    "own_model": {"model": "qwen3:4b", "provider": "ollama"},
    "script": {"script": "scripts/count.py"},
    "ensemble": {"ensemble": "other"},
    "loop": {"loop": {"body": "round", "until": "${ok}", "max_iterations": 3}},
    "dispatch": {"dispatch": "${model}"},
    "mcp": {"mcp": {"server": "workstation", "tool": "git_status"}},
}
NODE = re.compile(r'    (?P<id>a\d+)(\("|\["|\[\["|\{\{"|\{"|\[/")[^"]*("\)|"\]|"\]\]|"\}\}|"\}|"/\])')
EDGE = re.compile(r'    a\d+ -->(\|"[^"<>\n]*"\|)? a\d+')


def ensemble(*agents: dict[str, Any]) -> Ensemble:
    return Ensemble.model_validate({"name": "sample", "agents": list(agents)})


def every_kind() -> Ensemble:
    names = list(KINDS)
    agents = [
        {"name": name, **keys, **({"depends_on": names[number - 1]} if number else {})}
        for number, (name, keys) in enumerate(KINDS.items())
    ]
    agents[2] |= {"fan_out": True, "when": '${own_model.ok} == "yes"'}
    return ensemble(*agents)


def test_each_kind_has_a_shape_of_its_own() -> None:
    lines = mermaid(every_kind()).splitlines()
    assert lines[0] == "flowchart TD"
    shapes = [NODE.fullmatch(line) for line in lines[1:8]]
    assert all(shapes)
    assert len({shape[2] for shape in shapes if shape}) == 6
    assert "for each element" in lines[3]
    assert len([line for line in lines if EDGE.fullmatch(line)]) == 6
    assert '    a1 -->|"#36;#123;own_model.ok#125; #61;#61; #34;yes#34;"| a2' in lines


def test_statuses_are_classes() -> None:
    text = mermaid(every_kind(), {"model": "success", "script": "failed", "loop": "unheard-of", "gone": "success"})
    assert "    class a0 success\n    class a2 failed\n" in text
    assert text.count("classDef") == 2
    assert "unheard" not in text


def test_what_is_not_there_is_shown_as_such() -> None:
    text = mermaid(ensemble({"name": "a", "script": "s.py", "depends_on": ["gone"]}))
    assert '    m1["gone<br/>not there"]:::missing\n    m1 --> a0\n    classDef missing' in text


@given(st.text(), st.text(), st.lists(st.sampled_from(["success", "failed", "x"]), max_size=2))
def test_no_text_leaves_its_quotes(script: str, when: str, statuses: list[str]) -> None:
    made = ensemble(
        {"name": "first", "script": script, "when": when},
        {"name": "b", "script": script, "when": when, "depends_on": "first"},
    )
    lines = mermaid(made, dict(zip(["first", "b"], statuses, strict=False))).splitlines()
    assert NODE.fullmatch(lines[1])
    assert NODE.fullmatch(lines[2])
    assert EDGE.fullmatch(lines[3])
    assert all(re.match("    (class|classDef) ", line) for line in lines[4:])
    assert not re.search(r"<(?!br/>)|`|#(?!\d+;)", "".join(lines[1:4]))


@given(st.text(), st.text(), st.integers(1, 200), st.booleans())
def test_no_text_leaves_its_frame(script: str, when: str, width: int, ascii_only: bool) -> None:
    made = ensemble(
        {"name": "a" * 128, "script": script, "when": when},
        {"name": "b", "script": script, "when": when, "depends_on": "a" * 128, "fan_out": True},
    )
    text = terminal(made, width=width, statuses={"b": "success"}, ascii_only=ascii_only)
    framed = [line for line in text.splitlines() if line.strip() not in {"v", "▼"}]
    assert len(framed) == 6
    assert {wcswidth(line) for line in framed} == {max(width, 40)}
    assert text.isascii() or not ascii_only
    assert all(line.isprintable() for line in text.splitlines())


def test_twenty_agents_are_readable_in_eighty_columns() -> None:
    readers = [{"name": f"reader_{number}", "model_profile": "fast", "depends_on": "split"} for number in range(17)]
    made = ensemble(
        {"name": "split", "script": "scripts/split.py"},
        *readers,
        {"name": "summary", "model_profile": "strong", "depends_on": [each["name"] for each in readers]},
        {
            "name": "publish",
            "mcp": {"server": "wiki", "tool": "write"},
            "depends_on": "summary",
            "when": "${summary.ok}",
        },
    )
    text = terminal(made, width=80)
    lines = text.splitlines()
    assert max(map(len, lines)) == 80
    assert text.count("▼") == 3
    assert sum("← split " in line for line in lines) == 17
    assert any(re.search(r"summary +model strong +← reader_0, reader_1.*…", line) for line in lines)
    assert any(re.search(r"publish +mcp wiki write +← summary +when \$\{summary\.ok\}", line) for line in lines)


def test_wide_and_combined_signs_have_the_room_that_there_is() -> None:
    script = "資料を集める" + "e\u0301" * 5
    (_, line, _) = terminal(ensemble({"name": "a", "script": script}), width=80).splitlines()
    assert f" script {script} " in line
    (_, line, _) = terminal(ensemble({"name": "a", "script": "é" * 4}), width=80, ascii_only=True).splitlines()
    assert r" script \xe9\xe9\xe9\xe9 " in line


def test_a_thousand_dependencies_are_not_measured_sign_by_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = 0

    def counted(text: str) -> int:
        nonlocal measured
        measured += len(text)
        assert measured < 2_000_000
        return wcswidth(text)

    monkeypatch.setattr(drawing, "wcswidth", counted)
    names = [f"{number:0128}" for number in range(999)]
    agents = [{"name": name, "script": "s.py"} for name in names]
    made = ensemble(*agents, {"name": "last", "script": "s.py", "depends_on": names})
    text = terminal(made, width=80)
    assert re.search(r"last +script s.py +← 0{20,}…", text)


def test_statuses_have_marks_in_front() -> None:
    text = terminal(every_kind(), width=80, statuses={"model": "success", "script": "failed", "loop": "skipped"})
    assert re.search(r"│ ✔ model ", text)
    assert re.search(r"│ ✘ script ×n ", text)
    assert re.search(r"│ – loop ", text)
    text = terminal(every_kind(), width=80, statuses={"model": "success", "script": "failed"}, ascii_only=True)
    assert re.search(r"\| \+ model ", text)
    assert re.search(r"\| x script \*n ", text)


def test_a_circle_has_no_levels() -> None:
    made = ensemble(
        {"name": "a", "script": "s.py", "depends_on": "b"}, {"name": "b", "script": "s.py", "depends_on": "a"}
    )
    with pytest.raises(InvalidConfig, match="circle"):
        terminal(made, width=80)
    assert "a1 --> a0" in mermaid(made)
