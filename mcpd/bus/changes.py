# SPDX-License-Identifier: LGPL-2.1-or-later
"""The methods of Manager that change which servers there are, and those that tell what such a change would be or was.

What is authorized is exactly what is carried out: the offer, update or file that the action was chosen by is kept with
the call.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.dispatcher import Row
from mcpd.bus.names import MANAGER, job_path
from mcpd.bus.options import install_options, option
from mcpd.bus.readfd import read_all, save_all
from mcpd.bus.records import pending_version
from mcpd.bus.wire import Variant
from mcpd.catalog.listing import text
from mcpd.errors import (
    Busy,
    IntegrityMismatch,
    InvalidArgument,
    NotAuthorized,
    NotFound,
    NotSupported,
    SignatureInvalid,
)
from mcpd.store.files import make_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcpd.bus.caller import Call
    from mcpd.bus.manager import Manager
    from mcpd.catalog import CatalogEntry
    from mcpd.install.job import Job

BUNDLE_TIMEOUT: Final = 300.0
"""Seconds in which a bundle must have arrived."""
_PINS: Final = {"npm": "version", "pypi": "version", "git": "rev"}
"""What names one version of a source, in an entry and in what the lock file says that it came out as."""
_TRUSTED: Final = "install-trusted"
_UNTRUSTED: Final = "install-untrusted"


async def install_action(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> str:
    """What ``Install`` asks for: less where a trusted key vouches for the very thing."""
    await manager.core.stocked()
    offer = call.memo["offer"] = await manager.core.installer.find(server_id, install_options(options))
    return _TRUSTED if _is_vouched_for(offer) else _UNTRUSTED


def _is_vouched_for(offer: CatalogEntry) -> bool:
    """Whether it is known already that a trusted key vouches for *offer*: of a summary the rest is fetched later."""
    return offer.verified and not offer.entry.is_summary


def install_details(_manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What a prompt says about an installation from the registries: the version is that which would be installed."""
    offer = call.memo["offer"]
    said = {"id": server_id, "source": offer.origin, "version": install_options(options).version or offer.entry.version}
    said["signed-by"] = offer.signer if _is_vouched_for(offer) else ""
    return {key: text(value) for key, value in said.items() if value}


def install(manager: Manager, call: Call, _server_id: str, options: Mapping[str, Any]) -> str:
    """``Install``."""
    return _path(manager.core.installer.install_offer(call.memo["offer"], install_options(options), call.uid))


async def manifest_action(manager: Manager, call: Call, manifest: int, options: Mapping[str, Any]) -> str:
    """What ``InstallManifest`` asks for: less where a trusted key signed it, and it pins what is wanted."""
    from mcpd.catalog.pins import pins_what_it_names  # noqa: PLC0415 -- not needed to start
    from mcpd.install.brought import brought_entry  # noqa: PLC0415 -- nor this

    signature = option(options, "signature", str, "")
    if not signature:
        return _UNTRUSTED
    data = call.memo["manifest"] = await _manifest(call, manifest)
    key = await asyncio.to_thread(manager.core.keys.signer, data, signature.encode())
    if key is None:
        raise SignatureInvalid(
            "the manifest is signed, but by none of the keys that are trusted ('mcpctl key list'); add the key, or"
            " install it without its signature"
        )
    call.memo["signer"] = key.name
    pins = pins_what_it_names(await asyncio.to_thread(brought_entry, data))
    return _TRUSTED if pins and not option(options, "version", str, "") else _UNTRUSTED


async def install_manifest(manager: Manager, call: Call, manifest: int, options: Mapping[str, Any]) -> str:
    """``InstallManifest``."""
    found, signer = install_options(options), call.memo.get("signer", "")
    data = call.memo["manifest"] if signer else await _manifest(call, manifest)
    return _path(manager.core.installer.install_manifest(data, found, call.uid, signer))


async def _manifest(call: Call, index: int) -> bytes:
    from mcpd.install.summary import MAX_MANIFEST  # noqa: PLC0415 -- not needed to start

    return await read_all(call.fds.get(index), MAX_MANIFEST, "the manifest")


async def bundle_action(manager: Manager, call: Call, _bundle: int, options: Mapping[str, Any]) -> str:
    """What ``InstallBundle`` asks for: less where a signed registry pins it."""
    pinned = "" if option(options, "unverified", bool, default=False) else option(options, "sha256", str, "").lower()
    call.memo["pinned"] = bool(pinned and await asyncio.to_thread(manager.core.catalog.pins_sha256, pinned))
    return _TRUSTED if call.memo["pinned"] else _UNTRUSTED


async def install_bundle(manager: Manager, call: Call, bundle: int, options: Mapping[str, Any]) -> str:
    """``InstallBundle``."""
    from mcpd.install.archive import MAX_ARCHIVE  # noqa: PLC0415 -- not needed to start
    from mcpd.install.bundle import describe  # noqa: PLC0415 -- nor this

    found = install_options(options)
    if found.version:
        raise InvalidArgument("InstallBundle: a bundle has one version; drop the option 'version'")
    directory = manager.core.bundles
    await asyncio.to_thread(make_directory, directory, 0o700)
    path = directory / f"{secrets.token_hex(16)}.mcpb"
    sha256 = await save_all(call.fds.get(bundle), path, MAX_ARCHIVE, "the bundle", BUNDLE_TIMEOUT)
    with ExitStack() as unless_begun:
        unless_begun.callback(path.unlink, missing_ok=True)
        wanted = option(options, "sha256", str, "").lower()
        if wanted and wanted != sha256:
            raise IntegrityMismatch(f"the bundle has sha256 {sha256}, not {text(wanted)}; nothing was installed")
        described = await asyncio.to_thread(describe, path, sha256)
        # It may have taken minutes to arrive.
        signer = await asyncio.to_thread(manager.core.installer.bundle_signer, described)
        if call.memo["pinned"] and not signer:
            said = f"no trusted key vouches for this bundle as {described.entry.id}"
            if await asyncio.to_thread(manager.core.catalog.pins_sha256, sha256):
                raise SignatureInvalid(
                    f"{said}, for the registry that has this file has it under another id; the option 'unverified' has"
                    " it installed like any other file"
                )
            raise NotAuthorized(f"{said} any more; try again to be asked for more")
        job = manager.core.installer.install_bundle(described, found, call.uid, signer)
        unless_begun.pop_all()
    return _path(job)


def uninstall(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> str:
    """``Uninstall``."""
    installer = manager.core.installer
    keep = option(options, "keep-config", bool, default=False)
    if option(options, "forget", bool, default=False):
        if keep:
            raise InvalidArgument("Uninstall: 'forget' and 'keep-config' contradict each other")
        return _path(installer.forget(server_id, call.uid))
    return _path(installer.uninstall(server_id, call.uid, keep_config=keep))


async def update_action(manager: Manager, call: Call, ids: Sequence[str], options: Mapping[str, Any]) -> str:
    """What ``Update`` asks for: less where a key vouches for each new version, least if nothing is agreed to."""
    found = install_options(options)
    if found.config:
        raise InvalidArgument("Update: an update takes no config; use SetConfig")
    newer = call.memo["newer"] = await manager.core.installer.newer(list(dict.fromkeys(ids)), found)
    # What is installed again may be what an administrator went back from.
    if found.reinstall or not all(map(_is_vouched_for, newer)):
        return _UNTRUSTED
    return _TRUSTED if found.consent and newer else "update"


def update_details(_manager: Manager, call: Call, ids: Sequence[str], *_args: object) -> dict[str, str]:
    """What a prompt says about updates: of one its id, of several their ids."""
    named = list(dict.fromkeys(ids)) or [offer.entry.id for offer in call.memo["newer"]]
    return {"id" if len(named) == 1 else "ids": text(named)} if named else {}


def update(manager: Manager, call: Call, ids: Sequence[str], options: Mapping[str, Any]) -> str:
    """``Update``."""
    wanted = list(dict.fromkeys(ids))
    return _path(manager.core.installer.update_to(wanted, call.memo["newer"], install_options(options), call.uid))


async def rollback_details(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What a prompt says about going back: to which generation, and to no other."""
    from mcpd.install.history import way_back  # noqa: PLC0415 -- not needed to start

    wanted = _generation(options)
    with suppress(NotFound):  # which the installer tells in its own words
        wanted = await asyncio.to_thread(way_back, manager.core.store, server_id, wanted)
    call.memo["generation"] = wanted
    return _generation_details(server_id, wanted)


async def rollback(manager: Manager, call: Call, server_id: str, _options: Mapping[str, Any]) -> str:
    """``Rollback``."""
    generation = await manager.core.installer.way_back(server_id, call.memo["generation"])
    return _path(manager.core.installer.rollback(server_id, call.uid, generation=generation))


async def approve_details(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What a prompt says about an approval: which update it is about, and no other."""
    held = _generation(options) or await asyncio.to_thread(manager.core.store.held, server_id)
    call.memo["generation"] = held
    return _generation_details(server_id, held)


def approve(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> str:
    """``Approve``."""
    held = call.memo["generation"]
    if held is None:
        raise NotFound(f"no update of {text(server_id)} waits for approval")
    drop = option(options, "drop", bool, default=False)
    return _path(manager.core.installer.approve(server_id, call.uid, generation=held, drop=drop))


def verify(manager: Manager, call: Call, ids: Sequence[str], _options: Mapping[str, Any]) -> str:
    """``Verify``; one at a time for a user, as it keeps a disk busy."""
    for job in manager.core.installer.jobs.list():
        if job.kind == "verify" and job.owner_uid == call.uid and not job.state.finished:
            raise Busy(f"job {job.number} verifies already; wait for it or cancel it")
    return _path(manager.core.installer.verify(ids, call.uid))


async def set_pinned(manager: Manager, _call: Call, server_id: str, pinned: bool, _options: Mapping[str, Any]) -> None:
    """``SetPinned``."""
    # What a job has on trial may be taken back, with what was said of it.
    manager.core.installer.jobs.check_free([server_id])
    await asyncio.to_thread(manager.core.store.set_pinned, server_id, pinned)
    await manager.core.look_for_updates()
    manager.servers.sync()


def check_updates(manager: Manager, call: Call, _options: Mapping[str, Any]) -> str:
    """``CheckUpdates``."""
    return _path(manager.core.installer.check_updates(call.uid))


def refresh(manager: Manager, call: Call, _options: Mapping[str, Any]) -> str:
    """``Refresh``."""
    return _path(manager.core.installer.refresh(call.uid))


async def get_entry(manager: Manager, _call: Call, server_id: str) -> str:
    """``GetEntry``."""
    from mcpd.formats.seed import registrys  # noqa: PLC0415 -- not needed to start
    from mcpd.install.lockfile import read_lock  # noqa: PLC0415 -- nor this

    await manager.servers.looked()
    server = manager.servers.get(server_id).server
    if server.script is not None or server.manifest is None:
        raise NotSupported(f"{server_id} was not installed from an entry")
    lock = await asyncio.to_thread(read_lock, server.generation)
    entry, resolved = lock.get("entry"), lock.get("resolved")
    if not isinstance(entry, dict):
        # What another tool installed, or the system's packages brought, is described by its manifest.
        entry = {key: value for key, value in server.manifest.to_json().items() if key != "scope"}
    entry = registrys(entry)
    if server.manifest.version:
        entry["version"] = server.manifest.version
    if isinstance(source := entry.get("source"), dict) and isinstance(resolved, dict):
        # What leaves open which version it is, would be another one for whoever installs it next.
        pin = _PINS.get(str(source.get("type")), "")
        if resolved.get(pin) and not source.get(pin):
            entry["source"] = {**source, pin: resolved[pin]}
    return json.dumps(entry)


async def get_history(manager: Manager, _call: Call, server_id: str) -> list[dict[str, Variant]]:
    """``GetHistory``."""
    from mcpd.install.history import history  # noqa: PLC0415 -- not needed to start

    found = await asyncio.to_thread(history, manager.core.store, server_id)
    return [
        {
            "generation": Variant("u", one.number),
            "version": Variant("s", text(one.version)),
            "state": Variant("s", one.state),
            "registry": Variant("s", text(one.registry)),
            "resolved": Variant("s", text(one.resolved)),
            "installed": Variant("t", max(0, int(one.installed))),
            "verified": Variant("b", one.verified),
        }
        for one in found
    ]


async def get_pending(
    manager: Manager, call: Call, server_id: str
) -> tuple[dict[str, Variant], list[dict[str, Variant]]]:
    """``GetPending``."""
    from mcpd.install.definitions import compare  # noqa: PLC0415 -- not needed to start

    store = manager.core.store

    def look() -> tuple[dict[str, Variant], list[dict[str, Variant]]]:
        server, held = store.get(server_id), store.held(server_id)
        if held is None:
            raise NotFound(f"no update of {server_id} waits for approval")
        about = {
            "generation": Variant("u", held),
            "version": Variant("s", pending_version(server)),
            "from-version": Variant("s", text(server.manifest.version if server.manifest else "")),
        }
        changes = compare(store.tools(server_id) or [], store.generation_tools(server_id, held) or [])
        return about, [
            {
                "tool": Variant("s", text(change.tool)),
                "change": Variant("s", change.change),
                **{
                    key: Variant("s", text(json.dumps(tool, ensure_ascii=False, sort_keys=True)))
                    for key, tool in (("before", change.before), ("after", change.after))
                    if tool is not None
                },
            }
            for change in changes
        ]

    return await manager.core.in_turn(call.uid, look)


def _path(job: Job) -> str:
    return job_path(job.number)


def _generation(options: Mapping[str, Any]) -> int | None:
    return option(options, "generation", int, 0) or None


def _id_details(_target: Manager, _call: Call, server_id: str, *_args: object) -> dict[str, str]:
    return {"id": text(server_id)}


def _generation_details(server_id: str, number: int | None) -> dict[str, str]:
    return {"id": text(server_id)} | ({"generation": str(number)} if number else {})


def _manifest_details(_target: Manager, call: Call, *_args: object) -> dict[str, str]:
    signer = call.memo.get("signer", "")
    return {"source": "manifest"} | ({"signed-by": text(signer)} if signer else {})


def _bundle_details(_target: Manager, _call: Call, *_args: object) -> dict[str, str]:
    return {"source": "bundle"}


METHODS: Final = {
    (MANAGER, "GetEntry"): Row(get_entry, changes=False),
    (MANAGER, "GetHistory"): Row(get_history, changes=False),
    (MANAGER, "GetPending"): Row(get_pending, changes=False),
    (MANAGER, "Install"): Row(install, install_action, install_details, changes=True),
    (MANAGER, "InstallManifest"): Row(install_manifest, manifest_action, _manifest_details, changes=True),
    (MANAGER, "InstallBundle"): Row(install_bundle, bundle_action, _bundle_details, changes=True),
    (MANAGER, "Update"): Row(update, update_action, update_details, changes=True),
    (MANAGER, "Uninstall"): Row(uninstall, "uninstall", _id_details, changes=True),
    (MANAGER, "Rollback"): Row(rollback, "rollback", rollback_details, changes=True),
    (MANAGER, "Approve"): Row(approve, "approve", approve_details, changes=True),
    (MANAGER, "SetPinned"): Row(set_pinned, "configure", _id_details, changes=True),
    # What only reads the disk or the network changes nothing.
    (MANAGER, "Verify"): Row(verify, "refresh", changes=False),
    (MANAGER, "CheckUpdates"): Row(check_updates, "refresh", changes=False),
    (MANAGER, "Refresh"): Row(refresh, "refresh", changes=False),
}
