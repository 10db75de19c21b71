# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl key``: trusted public keys, and new signing keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, note, table, write, write_json
from mcpd.cli.session import open_bus
from mcpd.cli.user_input import STDIN, origin, read_input
from mcpd.errors import InvalidArgument, from_oserror

if TYPE_CHECKING:
    import argparse

_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644


async def list_keys(args: argparse.Namespace) -> int:
    """``mcpctl key list``. JSON: ``{"keys": [{name, fingerprint, file, scope, read-only}]}``."""
    async with open_bus(args) as bus:
        keys: list[dict[str, Any]] = await bus.manager.call("ListKeys")
    if args.json:
        write_json({"keys": keys})
    elif keys:
        columns = ("name", "fingerprint", "scope", "file")
        table([column.upper() for column in columns], [[key.get(column, "") for column in columns] for key in keys])
    else:
        note("No key is trusted, so nothing is verified. 'mcpctl key add FILE' adds one.")
    return 0


async def add_key(args: argparse.Namespace) -> int:
    """``mcpctl key add``. The key is parsed here, so that a private key is never sent to mcpd."""
    from mcpd.trust.keys import MAX_PEM, fingerprint  # slow to import
    from mcpd.trust.signing import load_public  # slow to import

    data = read_input(args.file, MAX_PEM)
    name = args.name or _named(args.file)
    try:
        public = load_public(data)
    except ValueError as error:
        raise InvalidArgument(f"{origin(args.file)}: {error}") from error
    async with open_bus(args, changing=True) as bus:
        await bus.manager.call("AddKey", "ssa{sv}", [name, data.decode("ascii", "replace"), {}])
    write(f"Added the trusted key {clean(name)}, {fingerprint(public.public_bytes_raw())}.")
    write("'mcpctl refresh' verifies the registries with it.")
    return 0


async def remove_key(args: argparse.Namespace) -> int:
    """``mcpctl key remove``."""
    async with open_bus(args, changing=True) as bus:
        await bus.manager.call("RemoveKey", "sa{sv}", [args.name, {}])
    write(f"Removed the trusted key {clean(args.name)}.")
    return 0


def new(args: argparse.Namespace) -> int:
    """``mcpctl key new``."""
    from mcpd.files import write_new  # see mcpd.trust.signing
    from mcpd.trust.keys import fingerprint
    from mcpd.trust.signing import load_public, new_key

    private = Path(args.file)
    public = private.with_name(private.name + ".pub")
    secret_pem, public_pem = new_key()
    # Write the public key first: if its file already exists, no private key is written.
    written: list[Path] = []
    try:
        for path, data, mode in ((public, public_pem, _PUBLIC), (private, secret_pem, _PRIVATE)):
            write_new(path, data, mode)
            written.append(path)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise InvalidArgument(f"{path} exists; choose another file for the new key") from error
        raise from_oserror(error, f"writing {path}") from error
    write(f"Created the key {fingerprint(load_public(public_pem).public_bytes_raw())}.")
    write(f"{clean(private)}: the private key, for 'mcpctl sign'. Keep it secret.")
    write(f"{clean(public)}: the public key; others trust it with: mcpctl key add {clean(public.name)}")
    return 0


def _named(file: str) -> str:
    if file == STDIN:
        raise InvalidArgument("a key from standard input needs a name; set it with --name")
    return os.path.basename(file).removesuffix(".pub").removesuffix(".pem")  # noqa: PTH119 - keeps odd names as they are
