# SPDX-License-Identifier: LGPL-2.1-or-later
"""Environment variables that decide which code a program runs and what it finds."""

from __future__ import annotations

import re
from typing import Final

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

_MORE: Final = re.compile(r"[A-Z]+_PROXY|MCPCTL_.*")
"""Variables that servers inherit or ignore, but that steer ``mcpctl`` itself."""


def is_steering(name: str) -> bool:
    """Return whether the variable *name*, in any case, steers a program's behavior or the hosts it connects to."""
    upper = name.upper()
    return any(pattern.fullmatch(each) for pattern in (STEERING, _MORE) for each in (name, upper))
