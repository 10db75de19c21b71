# SPDX-License-Identifier: LGPL-2.1-or-later
"""The part of mcpctl's command line that is about registries, and about whose signatures are trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcpd.cli.parser import _Adder


def add_trust(add: _Adder) -> None:
    """Add ``mcpctl source``, ``key`` and ``sign``."""
    _sources(add.group("source", "manage the registries"))
    _keys(add.group("key", "manage the keys whose signatures are trusted"))
    sign = add("sign", "sign:sign", "sign registries and manifests")
    sign.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="the file to sign, whose signature goes into FILE.sig (-: standard input and output)",
    )
    sign.add_argument(
        "--key", metavar="PRIVATE.pem", required=True, help="the private key, as 'mcpctl key new' makes one"
    )


def _sources(source: _Adder) -> None:
    source("list", "sources:list_sources", "list the registries", json=True)
    new = source("add", "sources:add_source", "add a registry, or change what is asked of it")
    new.add_argument(
        "url",
        metavar="URL",
        help="an https: or file: URL of a registry, of an API like that of the official registry (ends in "
        "/v0.1/servers), or of a directory of registries (file:)",
    )
    new.add_argument("--name", metavar="NAME", help="of the file that describes it; needed with what follows")
    new.add_argument(
        "--type", choices=("registry", "official", "directory"), help="what is at URL (default: as it ends)"
    )
    new.add_argument(
        "--signature",
        choices=("required", "warn", "off"),
        help="what becomes of it if no trusted key signed it: it is refused, used with a warning (default), or used",
    )
    new.add_argument("--key", metavar="KEY", help="name of the only key that may sign it (default: any trusted one)")
    source("remove", "sources:remove_source", "remove a registry").add_argument(
        "url", metavar="URL|NAME", help="its URL or its name, as 'mcpctl source list' shows them"
    )


def _keys(key: _Adder) -> None:
    key("list", "keys:list_keys", "list the trusted keys", json=True)
    trust = key("add", "keys:add_key", "trust a key")
    trust.add_argument("file", metavar="FILE", help="a public Ed25519 key in PEM (-: standard input)")
    trust.add_argument("--name", metavar="NAME", help="what to call it (default: the name of FILE without its suffix)")
    key("remove", "keys:remove_key", "trust a key no longer").add_argument(
        "name", metavar="NAME", help="its name, as 'mcpctl key list' shows it"
    )
    key("new", "keys:new", "make a key to sign with").add_argument(
        "file", metavar="FILE", help="where the private key goes; the public one goes into FILE.pub"
    )
