# SPDX-License-Identifier: LGPL-2.1-or-later
"""Command line of mcpctl: registries, trusted keys and signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcpd.cli.parser import _Adder


def add_trust(add: _Adder) -> None:
    """Add ``mcpctl source``, ``key`` and ``sign``."""
    _sources(add.group("source", "manage the registries"))
    _keys(add.group("key", "manage the trusted keys"))
    sign = add("sign", "sign:sign", "sign registries and manifests")
    sign.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="the file to sign; the signature is written to FILE.sig (-: standard input and output)",
    )
    sign.add_argument("--key", metavar="PRIVATE.pem", required=True, help="private key, as created by 'mcpctl key new'")


def _sources(source: _Adder) -> None:
    source("list", "sources:list_sources", "list the registries", json=True)
    new = source("add", "sources:add_source", "add a registry, or change its settings")
    new.add_argument(
        "url",
        metavar="URL",
        help="https: or file: URL of a registry, of an API like the official registry's (ends in /v0.1/servers), or "
        "of a directory of registries (file:)",
    )
    new.add_argument(
        "--name", metavar="NAME", help="name of its settings file; required with --type, --signature and --key"
    )
    new.add_argument(
        "--type",
        choices=("registry", "official", "directory"),
        help="type of registry (default: determined by its URL)",
    )
    new.add_argument(
        "--signature",
        choices=("required", "warn", "off"),
        help="refuse the registry, warn (default), or do nothing if no trusted key signed it",
    )
    new.add_argument("--key", metavar="KEY", help="name of the only key that may sign it (default: any trusted key)")
    source("remove", "sources:remove_source", "remove a registry").add_argument(
        "url", metavar="URL|NAME", help="URL or name of the registry, as 'mcpctl source list' shows it"
    )


def _keys(key: _Adder) -> None:
    key("list", "keys:list_keys", "list the trusted keys", json=True)
    trust = key("add", "keys:add_key", "trust a key")
    trust.add_argument("file", metavar="FILE", help="a public Ed25519 key in PEM (-: standard input)")
    trust.add_argument("--name", metavar="NAME", help="name of the key (default: the name of FILE without its suffix)")
    key("remove", "keys:remove_key", "stop trusting a key").add_argument(
        "name", metavar="NAME", help="name of the key, as 'mcpctl key list' shows it"
    )
    key("new", "keys:new", "create a signing key").add_argument(
        "file", metavar="FILE", help="file for the private key; the public key is written to FILE.pub"
    )
