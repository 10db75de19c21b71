# SPDX-License-Identifier: LGPL-2.1-or-later
"""The difference that is shown before a deployment names no secret of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.dialects import to_client
from mcpd.clients.families import Families
from tests.unit.clients.deployment_parts import ABOUT, BY_HAND, ENTRY, OTHER, SECRET, User, family

if TYPE_CHECKING:
    from mcpd.clients.plans import Plan

SHIPPED = Path(__file__).parents[3] / "data/clients"


def plan(user: User, data: bytes | object, client_id: str = "cursor", **how: Any) -> Plan:
    path = user.write(data, client_id)
    return user.deployments.plan(family(client_id), path, {"github": ENTRY, "time": OTHER}, **how)


def test_the_difference_is_that_of_the_text(user: User) -> None:
    found = plan(user, b'{\n  "mcpServers": {\n    "mine": {\n      "command": "npx"\n    }\n  }\n}\n')
    path = user.file()
    assert (
        found.diff
        == f"""\
--- {path}
+++ {path}
@@ -2,6 +2,23 @@
   "mcpServers": {{
     "mine": {{
       "command": "npx"
+    }},
+    "github": {{
+      "command": "mcpctl",
+      "args": [
+        "run",
+        "github"
+      ]
+    }},
+    "time": {{
+      "command": "mcpctl",
+      "args": [
+        "run",
+        "time"
+      ],
+      "env": {{
+        "TZ": "${{env:TZ}}"
+      }}
     }}
   }}
 }}
"""
    )


def test_the_difference_of_a_new_file_begins_with_nothing(user: User) -> None:
    found = user.deployments.plan(family(), user.file(), {"github": ENTRY})
    assert found.diff.startswith(f"--- /dev/null\n+++ {user.file()}\n@@ -0,0 +1")
    assert "***" not in found.diff


JSON = b"""{
  "apiKey": "SECRET",
  "mcpServers": {
    "mine": {"command": "npx", "args": ["--token", "SECRET"], "env": {"KEY": "SECRET", "B": "${env:B}"}}
  },
  "token": "SECRET", "pin": 918273645, "x": ["SECRET"]
}
"""
JSONC = b"""{
  // the key is SECRET
  "servers": {
    /* SECRET */ "mine": {"url": "https://x/?key=SECRET"} // SECRET
  }, /* "SECRET": */
  // "SECRET": "SECRET"
  "password": "SECRET"
  /*
   * "SECRET": "SECRET"
   "SECRET": 5 */
}"""
TOML = b"""key = "SECRET"
# SECRET
[mcp_servers.mine]
command = "npx" # SECRET
args = ["--token=SECRET", 'SECRET']
pin = 918273645
[mcp_servers.mine.env]
KEY = '''SECRET'''
OTHER = \"\"\"
SECRET
SECRET = "SECRET"
[SECRET]
\"\"\"
"""
YAML = b"""key: SECRET
mcpServers:
  - name: mine
    command: npx
    args: [--token, SECRET]
    env:
      KEY: SECRET
      QUOTED: 'SECRET'  # SECRET
      PIN: 918273645
      BLOCK: |
        SECRET
        and SECRET more
        SECRET:
        "SECRET": 'SECRET': SECRET
      FOLDED: words and
        SECRET
# SECRET
other: {token: SECRET}
"""
FOREIGN = {
    "json": ("cursor", JSON),
    "jsonc": ("vscode", JSONC),
    "toml": ("codex", TOML),
    "yaml": ("continue", YAML),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_secrets_around_the_change_are_hidden(user: User, name: str) -> None:
    client_id, text = FOREIGN[name]
    found = plan(user, text.replace(b"SECRET", SECRET.encode()), client_id)
    assert SECRET.encode() in (found.new or b"")
    assert "github" in found.diff
    assert "mcpctl" in found.diff
    assert "***" in found.diff
    for word in (SECRET, "918273645", "51HxYz"):
        assert word not in found.diff


@pytest.mark.parametrize("name", FOREIGN)
def test_secrets_in_what_is_taken_over_and_taken_out_are_hidden(user: User, name: str) -> None:
    client_id, text = FOREIGN[name]
    text = text.replace(b"SECRET", SECRET.encode()).replace(b"mine", b"github")
    found = plan(user, text, client_id, take_over=["github"])
    assert found.changed == ["github"]
    assert SECRET not in found.diff
    assert "918273645" not in found.diff
    user.deployments.apply(found, ABOUT)
    back = user.deployments.plan(family(client_id), user.file(client_id), {})
    assert back.removed == ["github", "time"]
    assert SECRET not in back.diff


def test_names_programs_and_placeholders_are_shown(user: User) -> None:
    mine = b'"mine": {"command": "npx", "env": {"A": "${env:A}", "B": "b"}}'
    found = plan(user, b'{\n  "mcpServers": {\n    ' + mine + b"\n  }\n}\n")
    assert '"command": "npx"' in found.diff
    assert '"A": "${env:A}"' in found.diff
    assert '"B": "***"' in found.diff


def test_a_program_that_is_a_whole_command_is_hidden(user: User) -> None:
    found = plan(user, {"mcpServers": {"mine": {"command": f"TOKEN={SECRET} npx"}}})
    assert SECRET not in found.diff


def test_a_file_of_one_line_is_compared_by_its_servers(user: User) -> None:
    data = {"history": "x" * 10_000, "token": SECRET, "mcpServers": {"mine": BY_HAND}}
    found = plan(user, json.dumps(data).encode())
    assert SECRET not in found.diff
    assert "xxx" not in found.diff
    assert '+    "github": {\n+      "command": "mcpctl",\n' in found.diff
    assert all(len(line) < 500 for line in found.diff.splitlines())


def test_what_changes_in_a_line_of_some_length_is_shown(user: User) -> None:
    found = plan(user, json.dumps({"mcpServers": {"mine": {"command": "npx", "args": ["x"] * 100}}}).encode())
    assert '+    "github": {' in found.diff


GOOSE = f"""\
# {SECRET}
GOOSE_MODEL: {SECRET}
extensions:
  mine:  # {SECRET}
    type: stdio
    cmd:  npx
    envs: {{KEY: {SECRET}}}
    "quoted" : x
GOOSE_MODE: 'auto'
"""


def test_yaml_is_shown_as_it_is_written(user: User) -> None:
    goose = Families([SHIPPED]).get("goose")
    path = user.home / "config.yaml"
    path.write_text(GOOSE)
    found = user.deployments.plan(goose, path, to_client(goose, {"notes": {"command": "notes-server", "args": ["-v"]}}))
    assert (
        found.diff
        == f"""\
--- {path}
+++ {path}
@@ -6,4 +6,13 @@
     cmd:  npx
     envs: {{KEY: ***}}
     "quoted" : ***
+  notes:
+    name: notes
+    type: stdio
+    cmd: notes-server
+    args:
+      - "-v"
+    description: ""
+    enabled: true
+    timeout: 300
 GOOSE_MODE: '***'
"""
    )
    path.write_text("GOOSE_MODEL: x\nextensions: {}\n")
    found = user.deployments.plan(goose, path, to_client(goose, {"notes": {"command": "notes-server", "args": []}}))
    assert " GOOSE_MODEL: ***\n-extensions: {}\n+extensions:\n+  notes:\n" in found.diff


def test_a_yaml_list_is_shown_as_it_is_written(user: User) -> None:
    text = (
        f"name: {SECRET}\nmcpServers:\n  - name: mine\n    command:  npx\n    env:\n      KEY: {SECRET}\nmodels: []\n"
    )
    found = plan(user, text.encode(), "continue")
    assert found.diff.splitlines()[2:] == [
        "@@ -4,4 +4,16 @@",
        "     command:  npx",
        "     env:",
        "       KEY: ***",
        "+  - name: github",
        "+    command: mcpctl",
        "+    args:",
        "+      - run",
        "+      - github",
        "+  - name: time",
        "+    command: mcpctl",
        "+    args:",
        "+      - run",
        "+      - time",
        "+    env:",
        '+      TZ: "${env:TZ}"',
        " models: []",
    ]


def test_tabs_stay_tabs(user: User) -> None:
    found = plan(user, b'{\n\t"mcpServers":\t{\n\t\t"mine": {\n\t\t\t"command": "npx"\n\t\t}\n\t}\n}\n')
    assert ' \t"mcpServers":\t{\n' in found.diff
    assert '+\t\t"github": {\n+\t\t\t"command": "mcpctl",\n' in found.diff


def test_a_name_that_is_a_key_is_hidden(user: User) -> None:
    key = "ghp_" + "a1B2" * 9
    found = plan(user, {"approved": {key: True}, "mcpServers": {"mine": {"env": {key: "x"}, "approved": 1}}})
    assert key not in found.diff
    assert '"approved": ***' in found.diff


def test_control_characters_are_shown_as_what_they_are(user: User) -> None:
    found = plan(user, {"mcpServers": {"mine\x1b[2J": {"command": "npx"}, "\u202e": {"command": "npx"}}})
    assert "\x1b" not in found.diff
    assert "\u202e" not in found.diff
    assert found.diff.isascii()


def test_a_large_file_is_compared_in_time(user: User) -> None:
    lines = "".join(f'  "k{number}": "{SECRET}",\n' for number in range(30_000))
    text = f'{{\n{lines}  "mcpServers": {{}},\n{lines.replace("k", "l")}  "end": 1\n}}\n'
    found = plan(user, text.encode())
    assert SECRET not in found.diff
    assert len(found.diff.splitlines()) < 60


_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F), max_size=20)
_VALUES = st.recursive(
    st.builds("Zq{}qZ".format, _TEXT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["mine", "github", "other"]), st.dictionaries(st.sampled_from("abc"), _VALUES)),
    st.dictionaries(st.sampled_from(["theme", "token", "projects"]), _VALUES),
    st.sampled_from([None, 0, 2, "\t"]),
    st.booleans(),
)
def test_no_value_of_the_users_is_ever_shown(
    user: User, servers: dict[str, Any], rest: dict[str, Any], indent: Any, take_over: bool
) -> None:
    data = json.dumps({**rest, "mcpServers": servers}, indent=indent, ensure_ascii=indent == 2).encode()
    found = plan(user, data, take_over=["github"] if take_over else [])
    assert "time" in found.diff
    assert "Zq" not in found.diff
    assert "qZ" not in found.diff


_AROUND = {
    "vscode": '{{\n/*\n{0}\n*/ "servers": {{"mine": {{"command": "npx"}} /*\n{0} */\n}}, "b": 1 /*\n{0}\n*/}}',
    "codex": "a = '''\n{0}'''\n[mcp_servers.github]\ncommand = 'npx'\nb = '''\n{0}\n'''\n[c]\nd = '''\n{0}'''\n",
    "continue": "a: |\n{1}\nmcpServers:\n  - name: github\n    command: npx\n    b: |\n{1}\nc: >-\n{1}\n",
}
_LINES = st.sampled_from(
    [
        "Zq: qZ",
        "Zq:",
        '"Zq": "qZ"',
        "'Zq': qZ",
        "[Zq.qZ]",
        'Zq = "qZ"',
        "Zq = 1",
        "Zq=qZ",
        "- Zq: qZ",
        "- Zq",
        "# Zq",
        "// Zq",
        '* "Zq": 1',
        "Zq, qZ",
        "{Zq}",
        '["Zq", "qZ"]',
        "-----BEGIN Zq-----",
        "",
        '"Zq',
        "'",
    ]
)


@given(st.sampled_from(sorted(_AROUND)), st.lists(_LINES, min_size=1, max_size=4), st.booleans())
def test_lines_of_a_text_or_comment_are_hidden_whatever_they_look_like(
    user: User, client_id: str, lines: list[str], take_over: bool
) -> None:
    indented = "\n".join(" " * 8 + line for line in ["x", *lines])
    data = _AROUND[client_id].format("\n".join(lines), indented).encode()
    taken = ["github"] if take_over and client_id != "vscode" else []
    found = plan(user, data, client_id, take_over=taken)
    assert "time" in found.diff
    assert "Zq" not in found.diff
    assert "qZ" not in found.diff
