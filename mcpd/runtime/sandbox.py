# SPDX-License-Identifier: LGPL-2.1-or-later
"""Launch specifications of servers and of installation steps.

All paths, variables and arguments are resolved here, in mcpd. ``mcpd-exec`` builds the sandbox from the specification
and adds the flags that every sandbox has.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd import paths as locations
from mcpd.errors import InvalidConfig, InvalidManifest, NotStdio, SpawnFailed, from_oserror
from mcpd.files import is_missing
from mcpd.model.placeholders import as_text, expand, placeholders
from mcpd.model.property import Target
from mcpd.model.steering import STEERING
from mcpd.package_sources import INDEXES
from mcpd.paths import CALLS_SOCKET, Scope, make_private
from mcpd.runtime import bundled as programs
from mcpd.runtime import mounts, permissions
from mcpd.runtime.guard import Guard
from mcpd.runtime.launch import UNCONFINED_MANIFEST, Bus, LaunchSpec, Mount, MountKind, Overlay
from mcpd.runtime.permissions import PathGrant, Permissions, parse
from mcpd.store.config import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcpd.model import JsonValue, Manifest, Transport
    from mcpd.paths import Layout, Paths
    from mcpd.runtime.calls import Access
    from mcpd.settings import Settings
    from mcpd.store import InstalledServer, LaunchManifest

PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

FIXED: Final = {"PYTHONNOUSERSITE": "1"}
"""Variables that cannot be overridden: Python must not load code from ``~/.local``, which a server can write to."""

_LOCALE: Final = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLORTERM|NO_COLOR")
_PROXY: Final = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
CA_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Paths of the trusted CA certificates, in one file, on different distributions."""
_CA_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)


def base_environment(home: str, runtime_dir: str, search: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the environment of every process; *search* is prepended to the usual ``PATH``."""
    own = {name: value for name, value in os.environ.items() if _LOCALE.fullmatch(name)}
    return {
        "LANG": "C.UTF-8",
        **own,
        **FIXED,
        "PATH": ":".join((*search, PATH)),
        "HOME": home,
        "XDG_RUNTIME_DIR": runtime_dir,
    }


def network_environment() -> dict[str, str]:
    """Return the variables for processes with network access: the system's certificates, and mcpd's own proxies."""
    found: dict[str, str] = {}
    bundle = next((path for path in CA_BUNDLES if Path(path).exists()), None)
    if bundle:
        found = dict.fromkeys(_CA_VARIABLES, bundle)
    for name in (*_PROXY, *(name.upper() for name in _PROXY)):
        if name in os.environ:
            found[name] = os.environ[name]
    return found


def inherited(caller: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the *caller*'s environment that a server in the user scope inherits."""
    return {name: value for name, value in caller.items() if is_passable(name, value) and not STEERING.fullmatch(name)}


def is_passable(name: str, value: str) -> bool:
    """Return whether *name* and *value* can be passed as an environment variable."""
    return bool(name) and "=" not in name and "\0" not in name and "\0" not in value


def installed_grants(paths: Paths, scope: Scope) -> list[PathGrant]:
    """Return read-only grants of the directories with installed servers and configuration; the guard hides secrets.

    Missing directories of the user are created, so that a running server sees files that are added later.
    """
    system, user = paths.system, paths.user
    wanted = [paths.vendor.parent, system.settings.parent, *_trees(system)]
    if scope is Scope.USER:
        for own in (user.settings.parent, user.secrets.parent):
            with suppress(OSError):
                own.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted += [user.settings.parent, user.secrets.parent, *_trees(user)]
    # os.path, as pathlib raises for inaccessible paths.
    shown = [path for path in dict.fromkeys(wanted) if os.path.isdir(path)]  # noqa: PTH112
    return [PathGrant(str(path), writable=False, permission=f"installed ({path})") for path in shown]


def _trees(layout: Layout) -> tuple[Path, ...]:
    return layout.installed, layout.generations, layout.scripts, layout.contents


MCP_SOCKET_VARIABLE: Final = "MCPD_SOCKET"
"""Environment variable with the path of the socket to other servers, for a server with the permission ``mcp``."""
MCP_TOKEN_VARIABLE: Final = "MCPD_SOCKET_TOKEN"  # noqa: S105 -- a name, not a token
"""Environment variable with the token to send over that socket."""
_HIDDEN_IN_DEV: Final = ("/dev/pts", "/dev/shm")  # noqa: S108 - hidden
"""Directories with the terminals and the shared memory of all the user's programs."""
McpSocket: TypeAlias = "Callable[[str, tuple[str, ...]], Access]"
"""Function that returns the access to other servers for a server's id and the ids that it may call (empty: all)."""
MAX_FILES: Final = 1024
"""Maximum number of entries in a server's directory that are mounted one by one."""


def server_spec(
    server: InstalledServer,
    launch: LaunchManifest,
    *,
    paths: Paths,
    scope: Scope,
    settings: Settings,
    caller_environment: Mapping[str, str] | None = None,
    mcp_socket: McpSocket | None = None,
) -> LaunchSpec:
    """Return the launch specification of *server* with the configuration in *launch*.

    *scope* is that of this instance. *caller_environment* is used in the user scope only. *mcp_socket* creates the
    access to other servers that the permission ``mcp`` grants. A missing state directory is created.

    Raises :class:`~mcpd.errors.NotStdio`, :class:`~mcpd.errors.InvalidManifest` for permissions that cannot be granted
    and for a secret on the command line, :class:`~mcpd.errors.InvalidConfig` for a secret that cannot be protected
    without a sandbox, and :class:`~mcpd.errors.SpawnFailed` for a missing path.
    """
    manifest = launch.manifest
    confined = settings.runtime.sandbox == "on"
    state = _state_directory(paths, scope, server.id)
    runtime_dir = f"/run/user/{os.getuid()}" if scope is Scope.USER else f"/run/{mounts.SYSTEM_USER}"
    # No grant can be mounted over this path.
    private = f"/{MANIFEST}" if confined else UNCONFINED_MANIFEST
    argv, granted, bundled = _command(server, manifest, launch.values, private)
    generation = _working_directory(server, state, Path(runtime_dir, "server") if confined else state)
    directories = (generation / index.programs for index in INDEXES.values())  # searched before the system's
    search = tuple(str(path) for path in directories if path.is_dir())
    env = base_environment(str(state), runtime_dir, search) | _bridge_address(server, paths, scope)
    if scope is Scope.USER:
        env |= inherited(caller_environment or {})
    env |= _configured_environment(manifest, launch.values) | FIXED
    if granted.network:
        env |= network_environment()
    if scope is Scope.USER and any(grant.path.startswith("~") for grant in granted.paths):
        # Paths of its configuration are passed to it with "~", but its own HOME is another directory.
        env[locations.HOME_VARIABLE] = str(paths.home)
    if granted.installed:
        env |= locations.to_environment(paths)
    if not confined:
        _refuse_secrets(server.id, manifest, launch.values)
        del env["XDG_RUNTIME_DIR"]
        overlay = Overlay(private, launch.data) if server.script is not None else None
        return LaunchSpec(server.id, argv, str(generation), env, (), granted.network, overlay, confined=False)
    env[locations.CONFINED_VARIABLE] = "1"
    bus = _bus(server.id, granted, scope, paths, runtime_dir)
    if bus:
        env["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={bus.socket}"
    guard = Guard.of(paths, scope, signs=programs.command_of(server) == programs.ORCHESTRATION)
    # A script server has no access to the file with its manifest.
    files = [server.directory, generation, *([server.manifest_path] if server.manifest_path else [])]
    wanted = [*granted.paths, *(installed_grants(paths, scope) if granted.installed else ())]
    binds = guard.grants(server.id, wanted, () if server.script else files)
    writable = [Path(mount.source) for mount in binds if mount.kind is MountKind.BIND]
    asked = [*_program(argv[0], generation, env["PATH"], (generation,), guard, writable), *bundled, *binds]
    shown = [
        *mounts.base(network=granted.network, home=str(state), runtime_dir=runtime_dir, system=scope is Scope.SYSTEM),
        *asked,
    ]
    shown += guard.covers(shown)
    own = script_mounts(server, shown) if server.script else _files(server.directory, generation, shown)
    # The generation itself is checked as well, even if its entries are mounted one by one.
    guard.check(server.id, [*asked, *own, *([] if server.script else [mounts.bind(generation)])])
    # Another tool may have installed a server anywhere.
    shown += [*own, *guard.covers(own)]
    # The mounts from here on are placed on top of those of the guard.
    shown.append(mounts.bind(state, state, MountKind.BIND))
    if granted.devices:
        shown.append(Mount(MountKind.DEV_BIND, "/dev", "/dev"))
        # A process that can open the user's terminals can read what is typed, including passwords.
        shown += [Mount(MountKind.TMPFS, path) for path in _HIDDEN_IN_DEV if os.path.isdir(path)]  # noqa: PTH112
    if granted.mcp is not None:
        if mcp_socket is None:
            raise SpawnFailed(
                f"{server.id} may call other servers (permission mcp), but there is no bridge to reach them"
            )
        access = mcp_socket(server.id, granted.mcp)
        env[MCP_SOCKET_VARIABLE] = f"{runtime_dir}/mcp/{CALLS_SOCKET}"
        env[MCP_TOKEN_VARIABLE] = access.token
        shown.append(mounts.bind(access.directory, Path(env[MCP_SOCKET_VARIABLE]).parent))
    return LaunchSpec(
        id=server.id,
        argv=argv,
        cwd=str(generation),
        env=env,
        mounts=tuple(shown),
        network=granted.network,
        manifest=_overlay(server, generation, private, launch, own),
        bus=bus,
        confines=(command := programs.command_of(server)) is not None and programs.COMMANDS[command].confines,
    )


def build_spec(  # noqa: PLR0913 - each says one thing about the command
    server_id: str,
    argv: Sequence[str],
    cwd: Path,
    writable: Sequence[Path],
    readable: Sequence[Path],
    network: bool,
    env: Mapping[str, str],
    *,
    paths: Paths | None = None,
    scope: Scope = Scope.USER,
    confined: bool = True,
    proxied: Sequence[str] = (),
) -> LaunchSpec:
    """Return the launch specification of one command of an installation, with *writable* and *readable* directories.

    *proxied* is a command that executes *argv* behind a proxy: with the environment for a *network*, but in a network
    namespace of its own.
    HOME is a private temporary directory, unless *env* sets it. mcpd's own secrets stay hidden, even in a *readable*
    directory. *confined* is False only with the setting ``sandbox = "off"``.

    Raises :class:`~mcpd.errors.InvalidManifest` for a path that is never shown.
    """
    home = "/tmp/home"  # noqa: S108 - inside the sandbox, private
    runtime_dir = "/run/build"
    merged = {**base_environment(home, runtime_dir), **(network_environment() if network else {}), **env}
    merged |= FIXED
    spec_id = f"build:{server_id}"
    if not confined:
        del merged["XDG_RUNTIME_DIR"]
        return LaunchSpec(spec_id, (*proxied, *argv), str(cwd.resolve()), merged, (), network, None, confined=False)
    guard = Guard.of(paths or locations.from_environment(), scope)
    given = sorted(
        {
            **{path.resolve(): MountKind.RO_BIND for path in readable},
            **{path.resolve(): MountKind.BIND for path in writable},
        }.items()
    )
    asked = [
        *_program(argv[0], cwd, merged["PATH"], [path for path, _ in given], guard),
        *(mounts.bind(path, path, kind) for path, kind in given),
    ]
    guard.check(server_id, asked)
    shown = [
        *mounts.base(network=network, home=home, runtime_dir=runtime_dir, system=False),
        Mount(MountKind.DIR, home),
        *asked,
        *guard.covers([mounts.bind(path) for path in readable]),
    ]
    return LaunchSpec(
        spec_id, (*proxied, *argv), str(cwd.resolve()), merged, tuple(shown), network and not proxied, None
    )


def _working_directory(server: InstalledServer, state: Path, spare: Path) -> Path:
    """Return the directory that the server is started in: its generation, if it has one.

    A server of an old index may have no generation; it gets the directory *spare* for its manifest.
    """
    if server.script is not None and server.script.path is None:
        return state
    generation = server.generation.resolve()
    return spare if server.script is None and _is_missing(generation) else generation


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return is_missing(error)
    return False


def _overlay(
    server: InstalledServer, generation: Path, private: str, launch: LaunchManifest, own: Sequence[Mount]
) -> Overlay | None:
    """Return the private manifest: mounted over the public one or, for a script server, at *private*.

    None if a server has no public manifest and no directory in *own* to create it in.
    """
    public = generation / MANIFEST
    has_room = any(mount.kind is MountKind.TMPFS and mount.target == str(generation) for mount in own)
    if server.script is None and not (public.is_file() or has_room):
        return None
    return Overlay(str(public) if server.script is None else private, launch.data)


def script_mounts(server: InstalledServer, shown: Sequence[Mount] = ()) -> list[Mount]:
    """Return mounts of the scripts directory, from which scripts may import, and of the content used by the entry.

    Of a script behind a symlink, only the file itself is mounted, not its directory. Paths already in *shown* are
    omitted.
    """
    script = server.script
    if script is None:
        return []
    wanted = [*([server.directory, script.path] if script.path is not None else []), *script.contents]
    binds = [Path(mount.target) for mount in shown if mount.kind in {MountKind.RO_BIND, MountKind.BIND}]
    found: list[Mount] = []
    # os.path, as pathlib raises for inaccessible paths.
    for path in dict.fromkeys(Path(os.path.realpath(each)) for each in wanted if os.path.exists(each)):  # noqa: PTH110
        if not any(path.is_relative_to(bound) for bound in binds):
            found.append(mounts.bind(path, path))
            binds.append(path)
    return found


def _command(
    server: InstalledServer, manifest: Manifest, values: Mapping[str, JsonValue], private: str
) -> tuple[tuple[str, ...], Permissions, list[Mount]]:
    """Return the command line, the permissions, and the mounts needed besides the program.

    *private* is the path of a script server's manifest.
    """
    server_id = server.id
    sensitive = {item.key for item in manifest.configurable_properties if item.sensitive}
    granted = parse(server_id, manifest.permissions, values, sensitive=sensitive)
    if server.script is not None:
        program = programs.scripts_program(server_id, private)
        return program.argv, granted, program.mounts()
    name = programs.command_of(server)
    if manifest.stdio is not None and name is not None:
        program = programs.command(server_id, name)
        return (*program.argv, *_arguments(manifest, manifest.stdio, values)), granted, program.mounts()
    if manifest.stdio is not None:
        return (manifest.stdio.command, *_arguments(manifest, manifest.stdio, values)), granted, []
    if manifest.remote is None:
        raise NotStdio(f"{server_id} has neither a program to start nor a URL that mcpd supports")
    program = programs.remote_program(server_id)
    # The proxy program needs only the network, whatever permissions the manifest has.
    return program.argv, Permissions(network=True), program.mounts()


def _state_directory(paths: Paths, scope: Scope, server_id: str) -> Path:
    """Return the state directory of *server_id*; create it if it is missing.

    A server may change the mode of its own directory; the parent directory keeps others out. In the system scope the
    parent directory is created by the package, and only the servers' group has access.
    """
    state = paths.layout(scope).state / server_id
    try:
        make_private(state.parent)
        with contextlib.suppress(FileExistsError):
            state.mkdir(mode=0o700)
            # In the system scope it belongs to mcpd; the servers' group, inherited from its parent, can write.
            state.chmod(0o770 if scope is Scope.SYSTEM else 0o700)
        if scope is Scope.USER:
            for directory in (state.parent, state):
                if stat.S_IMODE(directory.stat().st_mode) != 0o700:
                    directory.chmod(0o700)
    except OSError as error:
        raise from_oserror(error, f"creating the state directory {state}") from error
    return state.resolve()


def _bridge_address(server: InstalledServer, paths: Paths, scope: Scope) -> dict[str, str]:
    """Return the URL of the user's bridge as a variable, for the bundled server that publishes its key there."""
    if scope is not Scope.USER or programs.command_of(server) != programs.ORCHESTRATION:
        return {}
    try:
        url = (paths.user.runtime / locations.BRIDGE_URL).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return {}
    return {programs.ORCHESTRATION_URL: url} if url else {}


def _configured_environment(manifest: Manifest, values: Mapping[str, JsonValue]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in manifest.env.items():
        if filled := expand(text, values):
            found[name] = ":".join(filled)
    for item in manifest.configurable_properties:
        value = values.get(item.key)
        if item.target is Target.ENV and value is not None:
            found[item.key] = as_text(value)
    for name, value in found.items():
        if not is_passable(name, value):
            raise InvalidConfig(
                f"{manifest.id}: {name[:128]!r} is not a valid environment variable, or its value contains NUL"
            )
    return found


def _arguments(manifest: Manifest, transport: Transport, values: Mapping[str, JsonValue]) -> list[str]:
    """Return the arguments: ``{config.KEY}`` filled in, then ``--KEY=VALUE`` for unused values with target ``arg``."""
    argv = [filled for text in transport.args for filled in expand(text, values)]
    used = {key for text in transport.args for key in placeholders(text)}
    for item in manifest.configurable_properties:
        if item.sensitive and (item.target is Target.ARG or item.key in used):
            raise InvalidManifest(
                f"{manifest.id}: {item.key!r} is sensitive and would be an argument, which every user on this machine"
                " can read; the manifest must set its target to 'env' or 'manifest'"
            )
        value = values.get(item.key)
        if item.target is not Target.ARG or item.key in used or value is None or value is False:
            continue
        if value is True:
            argv.append(f"--{item.key}")
        else:
            argv += (f"--{item.key}={as_text(one)}" for one in (value if isinstance(value, list) else [value]))
    if any("\0" in argument for argument in argv):
        raise InvalidConfig(f"{manifest.id}: a value with target 'arg' contains NUL")
    return argv


def _refuse_secrets(server_id: str, manifest: Manifest, values: Mapping[str, JsonValue]) -> None:
    for item in manifest.configurable_properties:
        if item.sensitive and item.target in {Target.MANIFEST, Target.HEADER} and values.get(item.key) is not None:
            raise InvalidConfig(
                f"{server_id}: the secret {item.key!r} is passed in the private manifest of the server, which requires"
                ' the sandbox; set sandbox = "on" in mcpd.toml, or unset the secret'
            )


def _bus(server_id: str, granted: Permissions, scope: Scope, paths: Paths, runtime_dir: str) -> Bus | None:
    if not granted.bus_names:
        return None
    if scope is Scope.SYSTEM:
        raise InvalidManifest(f"{server_id}: permission session-bus: a system server has no session bus")
    socket = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "bus"
    address = os.environ.get("DBUS_SESSION_BUS_ADDRESS") or (f"unix:path={socket}" if socket.exists() else "")
    if not address:
        raise SpawnFailed(f"{server_id}: permission session-bus: there is no session bus; log in to a session first")
    runtime = paths.user.runtime
    try:
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise from_oserror(error, f"creating {runtime}") from error
    proxy = runtime.resolve() / f"bus-{token_hex(8)}"
    rules = tuple(f"{'call' if name in permissions.SHARED else 'talk'}:{name}" for name in granted.bus_names)
    return Bus(rules, address, str(proxy), f"{runtime_dir}/bus")


def _program(
    command: str, cwd: Path, search: str, shown: Sequence[Path], guard: Guard, writable: Sequence[Path] = ()
) -> list[Mount]:
    homes = (Path("/home"), guard.home.resolve(), guard.home.resolve() / ".local")
    return mounts.program(command, cwd, search.split(":"), shown, homes, writable)


def _files(directory: Path, generation: Path, shown: Sequence[Mount]) -> list[Mount]:
    """Return mounts of the generation, in which the private manifest can be created if there is no public one.

    It cannot be created if the generation has too many entries to mount them one by one, or if *shown* has mounts in
    it.
    """
    if (generation / MANIFEST).is_file():
        return _generation(directory, generation, shown)
    entries: list[os.DirEntry[str]] = []
    if not _is_missing(generation):
        try:
            with os.scandir(generation) as found:
                entries = [entry for entry in found if entry.name != MANIFEST]
        except OSError as error:
            raise from_oserror(error, f"reading {generation}") from error
    if len(entries) > MAX_FILES or any(Path(mount.target).is_relative_to(generation) for mount in shown):
        return _generation(directory, generation, shown)
    made = [Mount(MountKind.TMPFS, str(generation))]
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.is_symlink():
            made.append(Mount(MountKind.SYMLINK, entry.path, str(Path(entry.path).readlink())))
        elif entry.is_dir() or entry.is_file():
            # Not resolved again: an entry that was replaced by a symlink is not mounted.
            made.append(Mount(MountKind.RO_BIND, entry.path, entry.path))
    return made + [mount for mount in _generation(directory, generation, shown) if mount.kind is MountKind.SYMLINK]


def _generation(directory: Path, generation: Path, shown: Sequence[Mount]) -> list[Mount]:
    """Return the generation as a read-only mount at its real path, and symlinks to it at its other paths."""
    if generation.is_relative_to("/usr"):
        return []
    found = [mounts.bind(generation)]
    # Behind a symlink of another mount the path exists, and nothing can be created below it.
    there = {MountKind.RO_BIND, MountKind.BIND, MountKind.SYMLINK}
    binds = [Path(mount.target) for mount in shown if mount.kind in there]
    found += (
        Mount(MountKind.SYMLINK, str(link), str(generation))
        for link in dict.fromkeys((directory.parent.resolve() / directory.name, directory))
        if link != generation and not any(link.is_relative_to(path) for path in binds)
    )
    return found
