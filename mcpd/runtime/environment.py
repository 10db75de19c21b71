# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a server finds in its environment (design §6)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

FIXED: Final = {"PYTHONNOUSERSITE": "1"}
"""What nothing changes: no Python runs what somebody left in ``~/.local``, which is a server's state or a build's."""

_LOCALE: Final = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLORTERM|NO_COLOR")
_PROXY: Final = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
CA_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions keep the certificates that the machine trusts, in one file."""
_CA_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)

STEERING: Final = re.compile(
    # loaders and the C library
    r"LD_.*|DYLD_.*|GCONV_PATH|GETCONF_DIR|GLIBC_TUNABLES|HOSTALIASES|LOCALDOMAIN|LOCPATH|MALLOC_.*|NIS_PATH|NLSPATH"
    r"|RES_OPTIONS|RESOLV_.*|TMPDIR|TEMP|TMP|TZDIR"
    # interpreters and their package managers
    r"|PYTHON.*|PIP_.*|UV_.*|VIRTUAL_ENV.*|CONDA.*|PIPX_.*|POETRY_.*|PYENV.*|__PYVENV_LAUNCHER__|NODE_.*|NPM_.*|npm_.*"
    r"|NVM_.*|COREPACK_.*|YARN_.*|PNPM_.*|BUN_.*|DENO_.*|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|RBENV.*|JAVA_.*|_JAVA_OPTIONS"
    r"|JDK_JAVA_OPTIONS|CLASSPATH|MAVEN_.*|GRADLE_.*|GO(PATH|ROOT|FLAGS|BIN|PROXY|ENV)|CARGO_.*|RUST.*|LUA_.*|PHP.*"
    r"|DOTNET_.*|ELECTRON_.*|TCLLIBPATH|R_(HOME|LIBS.*|PROFILE.*|ENVIRON.*)"
    # shells
    r"|BASH.*|ENV|SHELLOPTS|SHELL|IFS|CDPATH|GLOBIGNORE|PROMPT_COMMAND|PS[0-4]|ZDOTDIR|KSHRC|FPATH|SHLVL|PWD|OLDPWD|_"
    # programs that run what a variable says
    r"|GIT_.*|EDITOR|VISUAL|PAGER|MANPAGER|BROWSER|LESS.*|SUDO_.*|SYSTEMD_.*|MAKEFLAGS|MFLAGS"
    # TLS: what is trusted, and what records the keys
    r"|SSL_CERT_.*|SSLKEYLOGFILE|OPENSSL_.*|REQUESTS_CA_BUNDLE|CURL_.*|AWS_CA_BUNDLE|NIX_.*"
    # the session and its sockets
    r"|PATH|HOME|USER|LOGNAME|MAIL|XDG_.*|DBUS_.*|SSH_.*|GPG_.*|GNUPGHOME|GNOME_.*|KDE_.*|DISPLAY|WAYLAND_.*|XAUTHORITY"
    r"|SESSION_.*|DESKTOP_.*|ICEAUTHORITY|PULSE_.*|PIPEWIRE_.*|GTK_.*|QT_.*|GDK_.*|AT_SPI_.*|TMUX.*|STY|WINDOWID"
    r"|KRB5.*|DOCKER_HOST|CONTAINER_HOST"
    # the service manager and mcpd
    r"|LISTEN_.*|NOTIFY_SOCKET|WATCHDOG_.*|INVOCATION_ID|JOURNAL_STREAM|CREDENTIALS_DIRECTORY|MAINPID|MANAGERPID"
    r"|(RUNTIME|STATE|CACHE|LOGS|CONFIGURATION)_DIRECTORY|MCP_(ROOT|SYSTEM_.*|USER_.*|VENDOR_.*)|MCPD_.*"
)
"""Variables of a caller that a server does not inherit: they steer loaders, interpreters, the session or mcpd."""


def base(home: str, runtime_dir: str, search: tuple[str, ...] = ()) -> dict[str, str]:
    """What every process gets; *search* comes before the usual ``PATH``."""
    own = {name: value for name, value in os.environ.items() if _LOCALE.fullmatch(name)}
    return {
        "LANG": "C.UTF-8",
        **own,
        **FIXED,
        "PATH": ":".join((*search, PATH)),
        "HOME": home,
        "XDG_RUNTIME_DIR": runtime_dir,
    }


def network() -> dict[str, str]:
    """What a process with network gets on top: the system's certificates, and the proxies mcpd itself would use."""
    found: dict[str, str] = {}
    bundle = next((path for path in CA_BUNDLES if Path(path).exists()), None)
    if bundle:
        found = dict.fromkeys(_CA_VARIABLES, bundle)
    for name in (*_PROXY, *(name.upper() for name in _PROXY)):
        if name in os.environ:
            found[name] = os.environ[name]
    return found


def inherited(caller: Mapping[str, str]) -> dict[str, str]:
    """What of a *caller*'s environment a server in the user scope gets (S-33)."""
    return {name: value for name, value in caller.items() if is_passable(name, value) and not STEERING.fullmatch(name)}


def is_passable(name: str, value: str) -> bool:
    """Whether an environment can hold the variable at all."""
    return bool(name) and "=" not in name and "\0" not in name and "\0" not in value
