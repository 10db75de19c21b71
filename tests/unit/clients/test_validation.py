# SPDX-License-Identifier: LGPL-2.1-or-later
"""Validation: the form of a configuration, the client's limits, and secrets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.families import Families, packaged
from mcpd.clients.secret_values import (
    PLACEHOLDER,
    is_secret_name,
    literal_secrets,
    placeholders_of,
    secret_in,
)
from mcpd.clients.validation import MAX_FINDINGS, Finding, validate
from tests.unit.clients.payload_parts import family, payload

if TYPE_CHECKING:
    from pydantic import JsonValue

    from mcpd.clients.families import Family

STDIO: dict[str, Any] = {"command": "npx", "args": ["-y", "files"]}
URL = {"type": "http", "url": "https://example.com/mcp"}
PLAIN = family()
BARE = family(expansion=None, http=None, sse=None, stdio=None)


def found(value: Any, client: Any = PLAIN) -> list[tuple[str, str, str | None, str | None]]:
    return [(each.code, each.severity, each.server_id, each.field) for each in validate(value, client)]


def of_one(entry: Any, client: Any = PLAIN) -> list[tuple[str, str, str | None]]:
    findings = found(payload(one=entry), client)
    assert all(server_id == "one" for _, _, server_id, _ in findings)
    return [(code, severity, field) for code, severity, _, field in findings]


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(STDIO, id="stdio"),
        pytest.param({**STDIO, "type": "stdio"}, id="with-type"),
        pytest.param({"command": "/opt/x y/z", "args": []}, id="no-arguments"),
        pytest.param({**STDIO, "cwd": "/srv", "env": {"A": "b", "API_KEY": "${API_KEY}"}}, id="all"),
        pytest.param(URL, id="url"),
        pytest.param({**URL, "type": "sse", "headers": {"X-A": "b", "Authorization": "Bearer ${T}"}}, id="headers"),
        pytest.param({**URL, "url": "http://127.0.0.1:${PORT}/mcp/x"}, id="placeholder-in-url"),
        pytest.param({**URL, "url": "${BASE}/mcp"}, id="placeholder-first"),
        pytest.param({**URL, "url": "HTTP://[::1]:7412/mcp/x?a=b"}, id="upper-case"),
    ],
)
def test_a_good_entry_has_no_faults(entry: Any) -> None:
    assert of_one(entry) == []


def test_the_example_of_the_specification_is_valid() -> None:
    example = payload(
        filesystem={
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/user/projects"],
        },
        brave={
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-brave-search"],
            "env": {"BRAVE_API_KEY": "${BRAVE_API_KEY}"},
        },
    )
    assert validate(example, PLAIN) == []


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        pytest.param({}, ("MISSING_COMMAND", "error", "command"), id="nothing"),
        pytest.param({"command": "", "args": []}, ("MISSING_COMMAND", "error", "command"), id="empty-command"),
        pytest.param({"command": None, "url": None}, ("MISSING_COMMAND", "error", "command"), id="null-command"),
        pytest.param({"command": "x"}, ("MISSING_ARGS", "warning", "args"), id="no-args"),
        pytest.param({"command": "x", "args": "-y"}, ("INVALID_ARGS_TYPE", "error", "args"), id="args-text"),
        pytest.param({"command": "x", "args": None}, ("INVALID_ARGS_TYPE", "error", "args"), id="args-null"),
        pytest.param({"command": "x", "args": ["a", 1]}, ("INVALID_ARGS_TYPE", "error", "args[1]"), id="args-number"),
        pytest.param({**STDIO, "env": ["A=b"]}, ("INVALID_ENV_TYPE", "error", "env"), id="env-list"),
        pytest.param({**STDIO, "env": None}, ("INVALID_ENV_TYPE", "error", "env"), id="env-null"),
        pytest.param({**STDIO, "env": {"A": 1}}, ("INVALID_ENV_TYPE", "error", "env.A"), id="env-number"),
        pytest.param({**STDIO, "env": {"A": ""}}, ("EMPTY_ENV_VAR", "warning", "env.A"), id="env-empty"),
        pytest.param({**STDIO, "env": {"A=B": "x"}}, ("VALIDATION_ERROR", "error", "env.A=B"), id="env-name"),
        pytest.param({"command": ["x"], "args": []}, ("VALIDATION_ERROR", "error", "command"), id="command-list"),
        pytest.param({"command": "x\ny", "args": []}, ("VALIDATION_ERROR", "error", "command"), id="command-lines"),
        pytest.param({**STDIO, "cwd": ""}, ("VALIDATION_ERROR", "error", "cwd"), id="cwd-empty"),
        pytest.param({**STDIO, "cwd": 1}, ("VALIDATION_ERROR", "error", "cwd"), id="cwd-number"),
        pytest.param({**STDIO, "type": "http"}, ("VALIDATION_ERROR", "error", "type"), id="wrong-type"),
        pytest.param({**STDIO, "disabled": True}, ("VALIDATION_ERROR", "error", "disabled"), id="unknown-field"),
        pytest.param({**STDIO, **URL}, ("VALIDATION_ERROR", "error", "url"), id="both"),
        pytest.param({"url": URL["url"]}, ("VALIDATION_ERROR", "error", "type"), id="url-without-type"),
        pytest.param({**URL, "type": "ws"}, ("VALIDATION_ERROR", "error", "type"), id="url-wrong-type"),
        pytest.param({**URL, "url": ""}, ("VALIDATION_ERROR", "error", "url"), id="url-empty"),
        pytest.param({**URL, "url": 1}, ("VALIDATION_ERROR", "error", "url"), id="url-number"),
        pytest.param({**URL, "url": "file:///etc/passwd"}, ("VALIDATION_ERROR", "error", "url"), id="url-file"),
        pytest.param({**URL, "url": "javascript:alert(1)"}, ("VALIDATION_ERROR", "error", "url"), id="url-javascript"),
        pytest.param({**URL, "url": "https://"}, ("VALIDATION_ERROR", "error", "url"), id="url-without-host"),
        pytest.param({**URL, "url": "https://[::1/x"}, ("VALIDATION_ERROR", "error", "url"), id="url-bracket"),
        pytest.param({**URL, "url": "https://a b"}, ("VALIDATION_ERROR", "error", "url"), id="url-space"),
        pytest.param({**URL, "args": []}, ("VALIDATION_ERROR", "error", "args"), id="url-with-args"),
        pytest.param({**URL, "headers": []}, ("VALIDATION_ERROR", "error", "headers"), id="headers-list"),
        pytest.param({**URL, "headers": {"X": 1}}, ("VALIDATION_ERROR", "error", "headers.X"), id="header-number"),
        pytest.param(
            {**URL, "headers": {"X": "a\r\nb"}}, ("VALIDATION_ERROR", "error", "headers.X"), id="header-lines"
        ),
        pytest.param({**URL, "headers": {"X Y": "a"}}, ("VALIDATION_ERROR", "error", "headers.X Y"), id="header-name"),
        pytest.param("npx", ("VALIDATION_ERROR", "error", None), id="text"),
        pytest.param(None, ("VALIDATION_ERROR", "error", None), id="null"),
    ],
)
def test_a_fault_has_its_code_and_its_field(entry: Any, expected: tuple[str, str, str | None]) -> None:
    assert of_one(entry) == [expected]


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\x1b[2J", "\x01", "a\u202eb", "x" * 129], ids=ascii)
def test_a_name_that_nobody_can_read_or_write_is_an_error(name: str) -> None:
    (finding,) = validate({"mcpServers": {name: STDIO}}, PLAIN)
    assert finding.code == "VALIDATION_ERROR"
    assert finding.message.isprintable()


@pytest.mark.parametrize("name", ["a", "My server", "io.github.me/files", "Zugriff auf Ordner ä", "x" * 128])
def test_names_may_hold_what_people_write(name: str) -> None:
    assert validate({"mcpServers": {name: STDIO}}, PLAIN) == []


def test_an_empty_configuration_is_an_error() -> None:
    assert found(payload()) == found({}) == [("EMPTY_CONFIG", "error", None, "mcpServers")]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        pytest.param(None, None, id="null"),
        pytest.param([], None, id="list"),
        pytest.param({"mcpServers": []}, "mcpServers", id="list-of-servers"),
        pytest.param({"mcpServers": {"a": {**STDIO, "cwd": "a\0b"}}}, None, id="nul"),
        pytest.param({"mcpServers": {"a": STDIO}, "inputs": []}, None, id="another-key"),
    ],
)
def test_what_is_no_configuration_is_an_error(value: Any, field: str | None) -> None:
    assert found(value) == [("VALIDATION_ERROR", "error", None, field)]


def test_hostile_depth_is_an_error() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert found(payload(a={"command": deep})) == [("VALIDATION_ERROR", "error", None, None)]


def test_the_limits_of_the_client_are_checked() -> None:
    client = family(limitations={"max_servers": 2, "max_env_vars_per_server": 1})
    two, three = payload(a=STDIO, b=STDIO), payload(a=STDIO, b=STDIO, c=STDIO)
    assert found(two, client) == []
    assert found(three, client) == [("TOO_MANY_SERVERS", "error", None, "mcpServers")]
    assert found(three, PLAIN) == []
    assert of_one({**STDIO, "env": {"A": "1"}}, client) == []
    assert of_one({**STDIO, "env": {"A": "1", "B": "2"}}, client) == [("TOO_MANY_ENV_VARS", "error", "env")]


def test_what_the_client_cannot_be_told_is_an_error() -> None:
    assert of_one({**STDIO, "cwd": "/srv"}, BARE) == [("VALIDATION_ERROR", "error", None)]
    assert of_one(URL, BARE) == [("VALIDATION_ERROR", "error", None)]
    (finding,) = validate(payload(one=URL), BARE)
    assert finding.message.startswith("server 'one': Plain ")


def test_a_client_that_is_not_known_is_a_warning_and_the_rest_is_checked() -> None:
    assert found(payload(one=STDIO), None) == [("UNKNOWN_CLIENT", "warning", None, None)]
    assert found(payload(one={"command": "x", "args": 1}), None) == [
        ("UNKNOWN_CLIENT", "warning", None, None),
        ("INVALID_ARGS_TYPE", "error", "one", "args"),
    ]


@pytest.mark.parametrize(
    ("client", "advice"),
    [
        pytest.param(
            family(expansion={"prefix": "${env:", "suffix": "}", "fields": ["env"]}), "write ${env:A}", id="own"
        ),
        pytest.param(family(expansion=None), "it substitutes none there", id="none"),
    ],
)
def test_a_placeholder_of_another_client_is_a_warning(client: Any, advice: str) -> None:
    (finding,) = validate(payload(one={**STDIO, "env": {"API_KEY": "${A}"}}), client)
    assert (finding.code, finding.severity, finding.field) == ("UNEXPANDED_PLACEHOLDER", "warning", "env.API_KEY")
    assert finding.message.endswith(f"Plain does not substitute ${{A}}, and passes it on literally; {advice}")


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        pytest.param({**STDIO, "env": {"API_KEY": "hunter2"}}, "env.API_KEY", id="variable"),
        pytest.param({**STDIO, "env": {"X": "ghp_" + "a1B2" * 10}}, "env.X", id="shape"),
        pytest.param({"command": "x", "args": ["--token", "hunter2"]}, "args[1]", id="argument"),
        pytest.param({**URL, "headers": {"Authorization": "Bearer hunter2"}}, "headers.Authorization", id="header"),
        pytest.param({**URL, "url": "https://me:hunter2@example.com/"}, "url", id="url"),
    ],
)
def test_a_secret_is_an_error_that_does_not_show_it(entry: Any, field: str) -> None:
    (finding,) = validate(payload(one=entry), PLAIN)
    assert (finding.code, finding.severity, finding.field) == ("SECRET_VALUE", "error", field)
    assert "hunter2" not in repr(finding)
    assert "a1B2" not in repr(finding)


RUN = {"command": "mcpctl", "args": ["run", "notes"]}


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(RUN, id="usual"),
        pytest.param({**RUN, "command": "/usr/bin/mcpctl"}, id="absolute"),
        pytest.param({"command": "env", "args": ["mcpctl", "run", "notes"]}, id="between"),
        pytest.param({"command": "sh", "args": ["-c", "exec mcpctl run notes"]}, id="shell"),
    ],
)
@pytest.mark.parametrize("name", ["OPENSSL_CONF", "LD_PRELOAD", "PATH", "https_proxy", "NODE_OPTIONS", "MCPCTL_DEBUG"])
def test_nobody_steers_mcpctl_by_its_environment(entry: Any, name: str) -> None:
    for value in ("/tmp/x", f"${{{name}:-/tmp/x}}", "${OTHER}"):
        assert ("VALIDATION_ERROR", "error", f"env.{name}") in of_one({**entry, "env": {name: value}})
    assert of_one({**entry, "env": {name: f"${{{name}}}", "LOG_LEVEL": "debug"}}) == []
    assert of_one({**STDIO, "env": {name: "/tmp/x"}}) == []


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        pytest.param({**RUN, "args": 7}, "INVALID_ARGS_TYPE", id="args"),
        pytest.param({**RUN, "env": 3}, "INVALID_ENV_TYPE", id="env"),
        pytest.param({**STDIO, "args": {"a": 1}}, "INVALID_ARGS_TYPE", id="args-object"),
        pytest.param({**STDIO, "env": True}, "INVALID_ENV_TYPE", id="env-boolean"),
    ],
)
def test_what_is_of_another_type_is_an_error_and_nothing_else(entry: Any, code: str) -> None:
    assert [each[0] for each in of_one(entry)] == [code]


def test_what_a_client_of_its_own_syntax_fills_in_is_no_secret() -> None:
    entry = {**STDIO, "env": {"API_KEY": "<<API_KEY>>"}}
    assert of_one(entry, family(expansion={"prefix": "<<", "suffix": ">>", "fields": ["env"]})) == []
    assert of_one(entry) == [("SECRET_VALUE", "error", "env.API_KEY")]


def test_findings_are_in_the_order_of_the_servers_and_complete() -> None:
    value = payload(b={"command": "x"}, a={"url": 1}, c={})
    assert found(value) == [
        ("VALIDATION_ERROR", "error", "a", "type"),
        ("VALIDATION_ERROR", "error", "a", "url"),
        ("MISSING_ARGS", "warning", "b", "args"),
        ("MISSING_COMMAND", "error", "c", "command"),
    ]


def test_a_finding_is_told_as_JSON() -> None:
    (finding,) = validate(payload(one={"command": "x"}), PLAIN)
    assert finding.to_json() == {
        "code": "MISSING_ARGS",
        "severity": "warning",
        "message": "server 'one': args: it has no 'args'; use [] if the command takes none",
        "server_id": "one",
        "field": "args",
    }
    assert isinstance(finding, Finding)


def test_more_faults_than_anybody_reads_are_cut_and_an_error_after_warnings_is_told() -> None:
    many: dict[str, Any] = {f"s{number:05}": {"command": "x"} for number in range(1000)}
    findings = validate({"mcpServers": {**many, "z": {}}}, PLAIN)
    assert len(findings) == MAX_FINDINGS + 2
    assert [each.server_id for each in findings if each.severity == "error"] == ["z"]
    faulty = validate({"mcpServers": {name: {} for name in many}}, PLAIN)
    assert len(faulty) == MAX_FINDINGS + 1
    assert faulty[-1].message.startswith("there may be more than these")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["command", "args", "env", "cwd", "type", "url", "headers", "x"])


@given(st.dictionaries(st.text(max_size=5), st.dictionaries(FIELDS, JSON, max_size=4), max_size=3) | JSON)
def test_whatever_is_given_there_is_an_answer(servers: Any) -> None:
    for client in (PLAIN, BARE, None):
        for each in validate({"mcpServers": servers}, client):
            assert each.severity in ("error", "warning")
            assert each.message.isprintable()
            assert json.dumps(each.to_json())


RANDOM = "hunter2hunter2hunter2"


def fields(entry: dict[str, Any]) -> list[str]:
    return [field for field, _ in literal_secrets(entry)]


@pytest.mark.parametrize(
    "name",
    [
        *("API_KEY", "apiKey", "APIKEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "GITHUBTOKEN", "githubToken", "TOKEN"),
        *("DB_PASSWORD", "dbpassword", "PGPASSWORD", "DB_PASS", "PASSPHRASE", "CLIENT_SECRET", "SECRET_ID"),
        *("AWS_SECRET_ACCESS_KEY", "API_KEY_2", "KEY2", "GITHUB_PAT", "CREDENTIALS", "SECRET_KEY_BASE"),
        *("Authorization", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token", "Cookie", "--api-key", "access_token"),
        *("DBPASS", "MYPASS", "dbpass", "SMTPPASS_2", "MYPWD"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PATH",
            "HOME",
            "LOG_LEVEL",
            "NODE_ENV",
            "MONKEY",
            "KEYBOARD",
            "COMPASS",
            "SECRETARY",
            "AUTHOR",
            "PASSENGERS",
        ),
        *(
            "MAX_TOKENS",
            "TOKEN_LIMIT",
            "TOKEN_FILE",
            "PRIVATE_KEY_PATH",
            "AUTH_URL",
            "AUTH_TYPE",
            "PUBLIC_KEY",
            "",
            "1",
        ),
        *("AWS_ACCESS_KEY_ID", "KEY_NAME", "Accept", "Content-Type", "X-Tenant", "TOKENIZERS_PARALLELISM"),
        *("BYPASS", "ENCOMPASS", "LOWPASS", "TWOPASS", "OLDPWD", "PASSTHROUGH"),
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        *("sk-proj-" + "aB3_" * 6, "sk-ant-api03-" + "aB3-" * 6, "ghp_" + "aB3d" * 9, "github_pat_" + "aB3_" * 8),
        *("glpat-" + "aB3d" * 5, "xoxb-123456789012-abcdef", "AKIA" + "ABCD" * 4, "AIza" + "aB3d5" * 7),
        *("sk_live_" + "aB3d" * 4, "npm_" + "aB3d" * 9, "hf_" + "aBcd" * 8, "gsk_" + "aB3d" * 8, "tvly-" + "aB3d" * 8),
        *(
            "123456789:AA" + "aB3-" * 9,
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
            "SG." + "aB3d" * 5 + "." + "aB3d" * 10,
        ),
        *("-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN OPENSSH PRIVATE KEY-----"),
        *("AGE-SECRET-KEY-1" + "QQQQ" * 14, "dapi" + "0a1b" * 8, "prefix=ghp_" + "aB3d" * 9 + "&x"),
    ],
)
def test_tokens_are_known_by_their_form_wherever_they_are(text: str) -> None:
    assert secret_in(text)
    assert fields({"command": "x", "args": ["-y", text]}) == ["args[1]"]
    assert fields({"command": text, "cwd": text}) == ["command", "cwd"]
    assert fields({"url": text, "headers": {"X": text}}) == ["url", "headers.X"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "npx", "-y", "@modelcontextprotocol/server-brave-search", "/home/me/a b", "https://example.com/mcp?a=b"),
        *("sk-learn", "task-force-one-two-three-four", "eyJ", "hf_hub", "https://me@example.com/", "http://[::1]:80/x"),
        *("5d1e89f8b569eb213a5cf1bf10dcee64c305f19b5da834332891eb4c53e9a130", "git+https://example.com/x.git#egg=key"),
        *("-----BEGIN PUBLIC KEY-----", "https://example.com/?key=${KEY}", "https://${U}:${P}@example.com"),
        *(
            "https://serviceaccount2024@example.com/",
            "ssh://git@example.com/x",
            "https://${TOKEN_1A2B3C4D5E6F}@example.com",
        ),
        *('{"key": "theme", "token": "${TOKEN}", "max_tokens": "4", "auth": "none"}', '{"api_key": ""}', '"a":'),
        *("https://example.com/?token_type=bearer", "postgresql://${DB_USER}:${DB_PASSWORD}@localhost:5432/x"),
    ],
)
def test_other_texts_are_no_secrets(text: str) -> None:
    assert not secret_in(text)


@pytest.mark.parametrize(
    "text",
    [
        *("postgres://me:hunter2@localhost/db", "https://:hunter2@example.com", "https://x.y/?a=1&api_key=hunter2"),
        *("https://x.y/mcp?token=hunter2", "https://x.y/#access_token=hunter2", "https://x.y/?api%5Fkey=hunter2"),
        *("https://x.y/?tavilyApiKey=hunter2", f"https://{RANDOM}@example.com/x", f"https://{RANDOM}:@example.com/"),
    ],
)
def test_URLs_with_secrets(text: str) -> None:
    assert secret_in(text)


@pytest.mark.parametrize(
    "value",
    [
        *("", "true", "False", "none", "${API_KEY}", "${env:API_KEY}", "{env:API_KEY}", "$API_KEY", "%API_KEY%"),
        *("${{ secrets.API_KEY }}", "${input:api-key}", "Bearer ${TOKEN}", "Bearer {env:TOKEN}", "token=${T}; x=${Y}"),
        *("${API_KEY:-}", "{file:~/.key}"),
    ],
)
def test_placeholders_are_no_secrets(value: str) -> None:
    assert fields({"command": "x", "env": {"API_KEY": value}, "headers": {"Authorization": value}}) == []


@pytest.mark.parametrize(
    "value",
    [
        *("hunter2", "0123", "Bearer hunter2", "pa$WORD", "${API_KEY:-hunter2}", "$lower", "${", "{x}", "$"),
        *("Bearer aVeryLongPasswordIndeed${X}", "$(cat key)", "/hunter2"),
    ],
)
def test_all_else_under_the_name_of_a_secret_is_one(value: str) -> None:
    assert fields({"command": "x", "env": {"API_KEY": value}}) == ["env.API_KEY"]
    assert fields({"url": "https://x.y", "headers": {"Authorization": value}}) == ["headers.Authorization"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param(["--api-key", "hunter2"], ["args[1]"], id="option"),
        pytest.param(["--api-key=hunter2"], ["args[0]"], id="option-with-value"),
        pytest.param(["-e", "API_KEY=hunter2"], ["args[1]"], id="variable"),
        pytest.param(["--header", "Authorization: Bearer hunter2"], ["args[1]"], id="header"),
        pytest.param(["--header", "Authorization:Bearer hunter2"], ["args[1]"], id="header-without-space"),
        pytest.param(["--url", "https://me:hunter2@x.y"], ["args[1]"], id="url"),
        pytest.param(["--api-key:hunter2"], ["args[0]"], id="option-with-colon"),
        pytest.param(["--token", f"-{RANDOM}"], ["args[1]"], id="value-like-an-option"),
        pytest.param([f"--token=/{RANDOM}"], ["args[0]"], id="value-like-a-file"),
        pytest.param(["--token", f"/{RANDOM}"], ["args[1]"], id="value-like-a-file-after"),
        pytest.param(["--header", "X-Custom: Bearer hunter2"], ["args[1]"], id="bearer-of-any-header"),
        pytest.param(["-c", "x --token hunter2"], ["args[1]"], id="line"),
        pytest.param(["-lc", "A=b; export API_KEY='hunter2'; x"], ["args[1]"], id="line-variable"),
        pytest.param(["-c", "x -H 'Authorization: Bearer hunter2'"], ["args[1]"], id="line-header"),
        pytest.param(["-c", "x 'y --token hunter2"], ["args[1]"], id="line-open-quote"),
        pytest.param(["/c", "x --token hunter2"], ["args[1]"], id="line-windows"),
        pytest.param(["--password", "a", "--token", "b"], ["args[1]", "args[3]"], id="two"),
        pytest.param(["--api-key", "${KEY}"], [], id="placeholder"),
        pytest.param(["--api-key=${KEY}", "-e", "API_KEY"], [], id="named-only"),
        pytest.param(["--header", "Authorization: Bearer ${KEY}"], [], id="header-placeholder"),
        pytest.param(["--api-key", "--verbose"], [], id="no-value"),
        pytest.param(["--key", "/etc/ssl/me.pem", "--key=~/me.pem"], [], id="file"),
        pytest.param(
            ["-c", 'x --token $token --key "$(cat key)" --pat `cat f`; API_KEY="${key}" y'], [], id="line-none"
        ),
        pytest.param(["-c", "x --token ${TOKEN} --verbose", "-c", "a.yaml"], [], id="line-placeholder"),
        pytest.param(["use --token to say who you are"], [], id="prose"),
        pytest.param(["--token", "--verbose-output-please2"], [], id="long-option"),
        pytest.param([f"--key=/srv/{RANDOM}.pem", f"--key=/srv/{RANDOM}/key"], [], id="file-of-odd-name"),
        pytest.param(["--token-file", "x", "--max-tokens", "4096"], [], id="about"),
        pytest.param(["run", "token", "password"], [], id="words"),
    ],
)
def test_secrets_among_arguments(args: list[str], expected: list[str]) -> None:
    assert fields({"command": "x", "args": args}) == expected


@pytest.mark.parametrize(
    "value",
    ["Bearer hunter2", "bearer  hunter2 ", "Basic dXNlcjpwYXNz", "token 0123abcd"],
)
def test_a_credential_is_one_whatever_its_header_is_called(value: str) -> None:
    assert fields({"url": "https://x.y", "headers": {"X-Custom": value}}) == ["headers.X-Custom"]
    assert fields({"command": "x", "env": {"X_CUSTOM": value}}) == ["env.X_CUSTOM"]


@pytest.mark.parametrize("value", ["Bearer ${TOKEN}", "Bearer", "Basic authentication", "token bearer", "a b"])
def test_other_values_of_headers_are_no_credentials(value: str) -> None:
    assert fields({"url": "https://x.y", "headers": {"X-Custom": value}}) == []


@pytest.mark.parametrize(
    "text", ['{"api_key":"hunter2"}', '[{"a": {"dbPassword" : "hunter2"}}]', f'{{"key": "{RANDOM}"}}']
)
def test_secrets_in_JSON(text: str) -> None:
    assert fields({"command": "x", "args": ["--x", text], "env": {"A": text}}) == ["env.A", "args[1]"]


def test_a_command_that_is_a_whole_line_is_read_as_one() -> None:
    assert fields({"command": "x --token hunter2", "args": []}) == ["command"]
    assert fields({"command": "/opt/x y/z --token", "args": []}) == []


def test_each_field_is_told_once() -> None:
    token = "ghp_" + "aB3d" * 9
    assert fields({"command": "x", "args": [f"--token={token}"], "env": {"TOKEN": token}}) == ["env.TOKEN", "args[0]"]


def test_what_has_another_type_is_passed_over() -> None:
    assert fields({"command": 1, "args": [1, None], "env": [], "headers": {"Authorization": 1}, "url": None}) == []


@pytest.mark.parametrize("client", Families([packaged("clients")]).all(), ids=lambda each: each.id)
def test_every_client_that_comes_with_mcpd_has_placeholders_that_are_known(client: Family) -> None:
    for field in ("env", "headers", "args", "url"):
        text = client.placeholder("SOME_KEY", field)
        assert text is None or placeholders_of(client).fullmatch(text)


def test_a_syntax_of_its_own_is_known_for_that_client_only() -> None:
    client = family(expansion={"prefix": "<(", "suffix": ")>", "fields": ["env"]})
    assert placeholders_of(client).fullmatch("<(KEY)>")
    assert placeholders_of(client).fullmatch("${KEY}")
    assert not PLACEHOLDER.search("<(KEY)>")
    assert placeholders_of(None) is PLACEHOLDER


@pytest.mark.parametrize(
    "piece",
    [
        "eyJ-",
        "eyJa.",
        "sk-",
        "${",
        "{env:",
        "://a:",
        "?a",
        "-",
        "a-",
        "$A",
        "%A",
        "SG.",
        "-----BEGIN ",
        "=",
        ":",
        '"a":',
        '"a":"',
        "://a",
        "-c ",
        "a '",
        "bearer ",
    ],
)
def test_hostile_texts_cost_no_more_than_their_length(piece: str) -> None:
    """A search that backtracks would not come to an end."""
    text = piece * (250_000 // len(piece))
    arguments: list[JsonValue] = [text, f"--token={text}", "-c", text]
    list(literal_secrets({"command": text, "env": {text: text}, "args": arguments, "url": text}))
