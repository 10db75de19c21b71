# SPDX-License-Identifier: LGPL-2.1-or-later
"""The host's configuration of pip, npm and git: mirrors, certificates and credentials.

Commands of an installation run with an empty environment and no home directory, so the configuration is passed to them
explicitly: variables of the daemon's environment, configuration files at their usual places, and the local directories
that these name as package indexes. In the system scope no home directory is read.
"""

from __future__ import annotations

import configparser
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.catalog.registries import file_path
from mcpd.errors import from_oserror
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PIP_VARIABLES: Final = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_TRUSTED_HOST",
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_PROXY",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES",
)
NPM_VARIABLES: Final = (
    "NPM_CONFIG_REGISTRY",
    "NPM_CONFIG_CAFILE",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
    "NPM_CONFIG_NOPROXY",
    "NPM_CONFIG_STRICT_SSL",
    "NPM_CONFIG_FETCH_TIMEOUT",
    "NPM_CONFIG_FETCH_RETRIES",
)
PIP_SYSTEM_FILES: Final = (Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"))
NPM_SYSTEM_FILE: Final = Path("/etc/npmrc")
NPM_PREFIX_FILE: Final = Path("/usr/etc/npmrc")
NPM_REGISTRY: Final = "https://registry.npmjs.org/"
PYPI_INDEX: Final = "https://pypi.org/simple"
PYPI_FILES: Final = "https://files.pythonhosted.org/"
"""Location of the files that PyPI and many of its mirrors link to."""
_PIP_LOCATIONS: Final = ("index-url", "extra-index-url", "find-links")
_UV_VARIABLES: Final = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "constraint": "UV_CONSTRAINT",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
}
"""Environment variables of uv, by the corresponding setting of pip."""
_TRUE: Final = ("1", "true", "yes", "on")
_PIP_FILES: Final = ("cert", "client-cert", "constraint")


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The host's configuration for one command."""

    env: dict[str, str] = field(repr=False)
    """Environment variables; may contain credentials of a mirror."""
    readable: tuple[Path, ...]
    """Files and directories to bind read-only."""
    locations: tuple[str, ...] = field(default=(), repr=False)
    """URLs of the configured registries and of other configured package locations."""
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Proxy URLs for ``http`` and ``https``; ``no`` lists the hosts to connect to directly, like ``no_proxy``."""
    options: tuple[str, ...] = ()
    """Command line options for settings that have no environment variable."""


def pip_config(scope: Scope, home: Path, environ: Mapping[str, str] | None = None) -> HostConfig:
    """Return pip's configuration for an installation in *scope*; *home* is the home directory of the user."""
    return _pip_and_settings(scope, home, os.environ if environ is None else environ)[0]


def uv_config(scope: Scope, home: Path, environ: Mapping[str, str] | None = None) -> HostConfig:
    """Return pip's configuration, like :func:`pip_config`, as environment variables for uv."""
    pip, settings = _pip_and_settings(scope, home, os.environ if environ is None else environ)
    found = {name: settings[key] for key, name in _UV_VARIABLES.items() if settings.get(key)}
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = ",".join(found["UV_FIND_LINKS"].split())
    options = ("--no-index",) if settings.get("no-index", "").lower() in _TRUE else ()
    return HostConfig(found, pip.readable, pip.locations, pip.proxies, options)


def _pip_and_settings(scope: Scope, home: Path, environ: Mapping[str, str]) -> tuple[HostConfig, dict[str, str]]:
    env = _given(environ, *PIP_VARIABLES)
    files = [file for file in PIP_SYSTEM_FILES if file.is_file()]
    own = _own_pip_file(scope, home, environ)
    if own is not None:
        env["PIP_CONFIG_FILE"] = str(own)
        files.append(own)
    settings = [*_pip_settings(files), *_pip_variables(env)]
    named = {path for key, value in settings for path in _local_paths(key, value)}
    locations = [word for key, value in settings if key in _PIP_LOCATIONS for word in value.split() if "://" in word]
    if "index-url" not in dict(settings):
        locations.append(PYPI_INDEX)
    proxy = dict(settings).get("proxy")
    config = HostConfig(
        env,
        (*files, *sorted(path for path in named if path.exists())),
        (*locations, PYPI_FILES),
        _proxies(environ, {"http": proxy, "https": proxy}),
    )
    return config, dict(settings)


def _own_pip_file(scope: Scope, home: Path, environ: Mapping[str, str]) -> Path | None:
    """Return pip's user configuration file; ``PIP_CONFIG_FILE`` takes precedence, and ``/dev/null`` means none."""
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen:
        candidates = [Path(chosen)]
    elif scope is Scope.USER:
        config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        candidates = [config_home / "pip/pip.conf", home / ".pip/pip.conf"]
    else:
        candidates = []
    return next((file for file in candidates if file.is_file()), None)


def npm_config(scope: Scope, home: Path, environ: Mapping[str, str] | None = None) -> HostConfig:
    """Return npm's configuration for an installation in *scope*; *home* is the home directory of the user."""
    environ = os.environ if environ is None else environ
    env = {name: value for name in NPM_VARIABLES if (value := environ.get(name) or environ.get(name.lower()))}
    readable: list[Path] = []
    files = [NPM_PREFIX_FILE] if NPM_PREFIX_FILE.is_file() else []
    if NPM_SYSTEM_FILE.is_file() and not NPM_PREFIX_FILE.is_file():
        env["NPM_CONFIG_GLOBALCONFIG"] = str(NPM_SYSTEM_FILE)
        files.append(NPM_SYSTEM_FILE)
        readable.append(NPM_SYSTEM_FILE)
    user_file = home / ".npmrc"
    if scope is Scope.USER and user_file.is_file():
        env["NPM_CONFIG_USERCONFIG"] = str(user_file)
        files.append(user_file)
        readable.append(user_file)
        # A token is usually written as ${NPM_TOKEN}.
        for name in re.findall(r"\$\{(\w+)\??\}", _text(user_file)):
            if name in environ:
                env[name] = environ[name]
    env |= _given(environ, "NODE_EXTRA_CA_CERTS")
    readable += [Path(env[name]) for name in ("NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS") if name in env]
    settings = _npm_settings(files, environ) | {
        name.removeprefix("NPM_CONFIG_").lower().replace("_", "-"): value
        for name, value in env.items()
        if name.startswith("NPM_CONFIG_")
    }
    registries = [value for key, value in settings.items() if key == "registry" or key.endswith(":registry")]
    if "registry" not in settings:
        registries.append(NPM_REGISTRY)
    http, https = settings.get("proxy"), settings.get("https-proxy")
    own = {"http": http or https, "https": https or http, "no": settings.get("noproxy")}
    return HostConfig(env, tuple(path for path in readable if path.exists()), tuple(registries), _proxies(environ, own))


def _npm_settings(files: Iterable[Path], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in *files*, where later files take precedence; variables are expanded as npm does."""
    found: dict[str, str] = {}
    for file in files:
        for key, value in re.findall(r"^[ \t]*([^\s=;#\[]+)[ \t]*=[ \t]*(.*?)\s*$", _text(file), re.MULTILINE):
            text = re.sub(r"\$\{(\w+)\??\}", lambda name: environ.get(name[1], ""), value.strip("\"'"))
            if text != "null":
                found[key] = "" if text == "false" else text
    return found


def git_config(environ: Mapping[str, str] | None = None) -> HostConfig:
    """Return git's configuration: the CA certificates to trust, if they are not the system's."""
    env = _given(os.environ if environ is None else environ, "GIT_SSL_CAINFO")
    return HostConfig(env, tuple(path for path in map(Path, env.values()) if path.exists()))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        raise from_oserror(error, f"reading the configuration file {file}") from error


def _given(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: environ[name] for name in names if environ.get(name)}


def _proxies(environ: Mapping[str, str], own: Mapping[str, str | None]) -> dict[str, str]:
    """Return the proxies of *environ*, overridden by the tool's *own* configuration."""
    found: dict[str, str] = {}
    for kind in ("http", "https", "no"):
        names = (f"{kind}_proxy", *(() if kind == "no" else ("all_proxy",)))
        given = next((value for name in names if (value := environ.get(name) or environ.get(name.upper()))), "")
        chosen = own.get(kind)
        found[kind] = given if chosen is None else chosen
    return found


def _pip_settings(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # pip reports the error itself
        for section in parser.sections():
            yield from ((key.replace("_", "-"), value) for key, value in parser.items(section))


def _pip_variables(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in env.items():
        yield name.removeprefix("PIP_").lower().replace("_", "-"), value


def _local_paths(key: str, value: str) -> Iterator[Path]:
    """Yield the local paths that pip's setting *key* names."""
    if key in _PIP_LOCATIONS:
        yield from _directories(value)
    elif key in _PIP_FILES and value.startswith("/"):
        yield Path(value)


def _directories(value: str) -> Iterator[Path]:
    """Yield the local directories among the space-separated locations in *value*.

    An index ``…/simple`` links to files next to itself, so its parent has to be readable.
    """
    for word in value.split():
        path = file_path(word) if word.startswith("file:") else Path(word)
        if path.is_absolute() and "//" not in word.removeprefix("file://"):
            yield path.parent if path.name == "simple" else path
