# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import pytest

from mcpd.runtime import sandbox

STEERING = """LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH PYTHONSTARTUP NODE_OPTIONS NODE_PATH XDG_RUNTIME_DIR XDG_CONFIG_HOME
DBUS_SESSION_BUS_ADDRESS SSH_AUTH_SOCK BASH_ENV ENV GIT_SSH_COMMAND GIT_CONFIG_GLOBAL npm_config_registry
NPM_CONFIG_PREFIX PATH HOME PERL5LIB RUBYOPT JAVA_TOOL_OPTIONS IFS SHELLOPTS BASH_FUNC_ls%% PS4 SSLKEYLOGFILE
SSL_CERT_FILE TMPDIR DISPLAY WAYLAND_DISPLAY NOTIFY_SOCKET LISTEN_FDS MCPD_RUNTIME_SANDBOX MCP_ROOT GCONV_PATH
GLIBC_TUNABLES PIP_INDEX_URL UV_INDEX_URL VIRTUAL_ENV EDITOR PAGER LESSOPEN"""


@pytest.mark.parametrize("name", STEERING.split())
def test_variable_that_steers_is_not_inherited(name: str) -> None:
    assert sandbox.inherited({name: "x", "API_KEY": "y"}) == {"API_KEY": "y"}


@pytest.mark.parametrize(
    "name", ["GITHUB_TOKEN", "API_KEY", "MCP_API_KEY", "OPENAI_BASE_URL", "LOG_LEVEL", "TZ", "LANG"]
)
def test_other_variables_are_inherited(name: str) -> None:
    assert sandbox.inherited({name: "x"}) == {name: "x"}


def test_impossible_variables_are_left_out() -> None:
    assert sandbox.inherited({"": "x", "A=B": "x", "C": "\0", "D\0": "x", "E": ""}) == {"E": ""}


def test_base_takes_the_locale_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_TIME", "de_DE.UTF-8")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.delenv("LANG", raising=False)
    found = sandbox.base_environment("/state", "/run/user/1", ("/gen/.venv/bin",))
    assert found["LC_TIME"] == "de_DE.UTF-8"
    assert found["TZ"] == "Europe/Berlin"
    assert found["LANG"] == "C.UTF-8"
    assert found["HOME"] == "/state"
    assert found["PATH"].startswith("/gen/.venv/bin:/usr/local/bin:/usr/bin")
    assert "SECRET" not in found


def test_network_brings_certificates_and_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "localhost")
    found = sandbox.network_environment()
    assert found["https_proxy"] == "http://proxy:3128"
    assert found["NO_PROXY"] == "localhost"
    bundles = {found.get(name) for name in ("SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO")}
    assert len(bundles) == 1
