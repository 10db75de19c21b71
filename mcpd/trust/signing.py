# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ed25519 keys in PEM, and what ``FILE.sig`` holds: the base64 of the signature of the file's bytes.

Importing this costs as much memory as an idle mcpd should not have, so whoever may do without imports it late.
"""

from __future__ import annotations

import base64
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from mcpd.errors import InvalidArgument

_BEGIN: Final = "-----BEGIN PUBLIC KEY-----"
_NEW_KEY: Final = "'mcpctl key new FILE' makes one"


def new_key() -> tuple[bytes, bytes]:
    """A new key: its private half in PEM (PKCS #8, without a password), and its public half in PEM."""
    secret = Ed25519PrivateKey.generate()
    return secret_pem(secret), public_pem(secret.public_key())


def sign(data: bytes, private_pem: bytes) -> bytes:
    """What ``FILE.sig`` holds for a file that holds *data*: base64 and a newline.

    Raises :class:`~mcpd.errors.InvalidArgument` if *private_pem* is no private Ed25519 key; nothing of it is said.
    """
    return base64.b64encode(_given(private_pem).sign(data)) + b"\n"


def public_of(private_pem: bytes) -> bytes:
    """The public half, in PEM, of the key *private_pem*.

    Raises :class:`~mcpd.errors.InvalidArgument` as :func:`sign` does.
    """
    return public_pem(_given(private_pem).public_key())


def load_public(data: bytes) -> Ed25519PublicKey:
    """The one public Ed25519 key in *data*, which is PEM (SubjectPublicKeyInfo).

    Raises ValueError, whose text says what *data* is instead.
    """
    if b"PRIVATE KEY-----" in data:
        raise ValueError("a private key, which nobody but its owner may have; its public half is needed")
    if data.count(b"-----BEGIN ") > 1:
        raise ValueError("more than one key; keep each in a file of its own")
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"not a public key in PEM, which begins with {_BEGIN!r}; 'mcpctl key new FILE' writes one to FILE.pub"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not a key for Ed25519")  # noqa: TRY004 - what is wrong is a file, not a call
    return key


def load_secret(data: bytes) -> Ed25519PrivateKey:
    """The private Ed25519 key in *data*, which is PEM.

    Raises ValueError, whose text says what *data* is instead and nothing of what it holds.
    """
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise ValueError("protected with a password, which nobody is there to give") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("not a private key as PEM") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("not a key for Ed25519")  # noqa: TRY004 - what is wrong is a file, not a call
    return key


def public_pem(public: Ed25519PublicKey) -> bytes:
    """*public* as PEM (SubjectPublicKeyInfo)."""
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def secret_pem(secret: Ed25519PrivateKey) -> bytes:
    """*secret* as PEM (PKCS #8)."""
    return secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def is_signature(public: bytes, data: bytes | memoryview, signature: bytes) -> bool:
    """Whether the 64 bytes of *signature* are one of *data* by the key whose 32 bytes are *public*."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _given(private_pem: bytes) -> Ed25519PrivateKey:
    try:
        return load_secret(private_pem)
    except ValueError as error:
        raise InvalidArgument(f"cannot sign with this: {error}; {_NEW_KEY}") from error
