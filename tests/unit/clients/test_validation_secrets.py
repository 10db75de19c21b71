# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from payload_parts import family

from mcpd.clients.families import Families, packaged
from mcpd.clients.secret_values import (
    PLACEHOLDER,
    is_secret_name,
    literal_secrets,
    placeholders_of,
    secret_in,
)

if TYPE_CHECKING:
    from mcpd.clients.families import Family


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
        text = client.placeholder("SOME_KEY", field)  # type: ignore[arg-type]
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
    arguments = [text, f"--token={text}", "-c", text]
    list(literal_secrets({"command": text, "env": {text: text}, "args": arguments, "url": text}))
