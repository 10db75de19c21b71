# SPDX-License-Identifier: LGPL-2.1-or-later
"""What has to be agreed to before something is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from mcpd.install.job import Need
from mcpd.model import strip_credentials
from mcpd.model.placeholders import expand, placeholders
from mcpd.model.steering import is_steering
from mcpd.runtime import permissions
from mcpd.store import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcpd.model import Entry, JsonValue, Manifest
    from mcpd.store import InstalledServer

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def unverified(entry: Entry, *, vouched: bool, given: bool) -> Iterator[Need]:
    """That nobody vouches for the files of *entry*, unless they are *vouched* for; *given*: the caller brought them."""
    source = entry.source
    if source is not None and source.is_file and not vouched:
        where = entry.id if given else strip_credentials(source.url).rpartition("/")[2] or entry.id
        yield Need("unverified", where, "nobody vouches for this file: no trusted key signed its hash")


def needs_of(
    manifest: Manifest,
    installed: InstalledServer | None,
    given: Mapping[str, JsonValue],
    kept: Mapping[str, JsonValue] | None = None,
) -> tuple[Need, ...]:
    """What goes beyond the plain sandbox and was not consented to before.

    *given* are values for this installation; *kept* what it finds set apart from any manifest, secrets left out, and
    None where there is nothing, no secret either.
    """
    before = installed.manifest if installed and installed.writable and installed.manifest else None
    needs = [*_elsewhere(manifest, installed, kept)]
    needs += [
        Need("permission", text, filled_in(text, manifest, given))
        for text in granted(manifest)
        if not (before and text in before.all_permissions and _grants_the_same(text, before, manifest))
    ]
    needs += [
        Need("variable", f"{name}={strip_credentials(value)}", "decides which code runs, or where it connects to")
        for name, value in manifest.env.items()
        if is_steering(name) and not (before and before.env.get(name) == value)
    ]
    if manifest.runtime.run_as == "system" and not (before and before.runtime.run_as == "system"):
        needs.append(Need("run-as", "system", "runs as the system's own account mcp-server"))
    return tuple(needs)


def granted(manifest: Manifest) -> list[str]:
    """The permissions of *manifest* that grant something, as it says them."""
    words = permissions.parse(manifest.id, manifest.all_permissions, {}).ignored
    return [text for text in manifest.all_permissions if text not in words]


def filled_in(text: str, manifest: Manifest, given: Mapping[str, JsonValue]) -> str:
    """The permission *text* with the values that it would have; as it is where there are none."""
    shown = {key: value for key, value in given.items() if (prop := manifest.property(key)) and not prop.sensitive}
    if any((prop := manifest.property(key)) and prop.sensitive for key in placeholders(text)):
        return text
    found = expand(text, configuration.merge(manifest, [manifest.config, shown]))
    return ", ".join(found) or text


def _grants_the_same(text: str, before: Manifest, after: Manifest) -> bool:
    """Whether the permission *text* comes to what was consented to: a new default may make more of the same words."""
    then, now = (
        permissions.parse(manifest.id, [text], configuration.merge(manifest, [before.config]))
        for manifest in (before, after)
    )
    return then == now


def _elsewhere(
    manifest: Manifest, installed: InstalledServer | None, kept: Mapping[str, JsonValue] | None
) -> Iterator[Need]:
    """That a server is somewhere else than what it takes the place of, which gets what was set and said for that."""
    if (installed is None and kept is None) or manifest.stdio is not None or manifest.remote is None:
        return
    before = installed.manifest if installed else None
    if before is None:
        # A broken manifest may hold values, too, and nobody can tell for which place they were meant.
        shown, _ = configuration.split(manifest, kept or {})
        yield Need(
            "remote",
            ", ".join(_origins(manifest.remote.address, configuration.merge(manifest, [shown]))),
            description="will get what clients ask and the values that are kept from before; where those went until now"
            " cannot be told",
        )
        return
    now = _origins(manifest.remote.address, configuration.merge(manifest, [before.config]))
    then: list[str] = []
    if before.stdio is None and before.remote is not None:
        then = _origins(before.remote.address, configuration.merge(before, [before.config]))
    if now != then:
        past = f"until now it is {', '.join(then)}" if then else "until now the server runs on this machine"
        yield Need(
            "remote", ", ".join(now), description=f"will get what clients ask and the values that are set; {past}"
        )


def _origins(address: str, values: Mapping[str, JsonValue]) -> list[str]:
    """Scheme, host and port of *address*, as it is written if *values* do not fill it in."""
    return sorted({_origin(text) for text in expand(address, values) or [address]})


def _origin(address: str) -> str:
    try:
        parts = urlsplit(address)
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError:
        return strip_credentials(address)
    if not scheme or not host:
        return strip_credentials(address)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" + (f":{port}" if port not in (None, _PORTS.get(scheme)) else "")
