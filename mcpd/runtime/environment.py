# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a server finds in its environment (design §6)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.model.steering import STEERING

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
