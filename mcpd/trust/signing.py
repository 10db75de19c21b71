# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ed25519 keys in PEM, and signatures in ``FILE.sig``: the base64 of the signature of the file's bytes.

Importing this module takes much memory, so import it only when it is needed.
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
_NEW_KEY: Final = "'mcpctl key new FILE' creates one"


def new_key() -> tuple[bytes, bytes]:
    """Return a new key: its private half (PKCS #8, without a password) and its public half, both in PEM."""
    secret = Ed25519PrivateKey.generate()
    return secret_pem(secret), public_pem(secret.public_key())


def sign(data: bytes, private_pem: bytes) -> bytes:
    """Return the content of ``FILE.sig`` for a file with *data*: base64 and a newline.

    Raises :class:`~mcpd.errors.InvalidArgument` if *private_pem* is not a private Ed25519 key; the message does not
    quote it.
    """
    return base64.b64encode(_load_given(private_pem).sign(data)) + b"\n"


def public_of(private_pem: bytes) -> bytes:
    """Return the public half, in PEM, of the key *private_pem*.

    Raises the same errors as :func:`sign`.
    """
    return public_pem(_load_given(private_pem).public_key())


def load_public(data: bytes) -> Ed25519PublicKey:
    """Return the public Ed25519 key in *data*, which is PEM (SubjectPublicKeyInfo) and contains only this key.

    Raises ValueError with a message that says what is wrong with *data*.
    """
    if b"PRIVATE KEY-----" in data:
        raise ValueError("a private key; use its public half, and keep the private key secret")
    if data.count(b"-----BEGIN ") > 1:
        raise ValueError("more than one key; put each in its own file")
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"not a public key in PEM, which begins with {_BEGIN!r}; 'mcpctl key new FILE' writes one to FILE.pub"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")  # noqa: TRY004 - what is wrong is a file, not a call
    return key


def load_secret(data: bytes) -> Ed25519PrivateKey:
    """Return the private Ed25519 key in *data*, which is PEM.

    Raises ValueError with a message that says what is wrong with *data*, without quoting it.
    """
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise ValueError("encrypted with a password, which is not supported") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("not a private key in PEM") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("not an Ed25519 key")  # noqa: TRY004 - what is wrong is a file, not a call
    return key


def public_pem(public: Ed25519PublicKey) -> bytes:
    """Return *public* as PEM (SubjectPublicKeyInfo)."""
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def secret_pem(secret: Ed25519PrivateKey) -> bytes:
    """Return *secret* as PEM (PKCS #8)."""
    return secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def is_signature(public: bytes, data: bytes | memoryview, signature: bytes) -> bool:
    """Return whether *signature* (64 bytes) is a valid signature of *data* by the key *public* (32 bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _load_given(private_pem: bytes) -> Ed25519PrivateKey:
    try:
        return load_secret(private_pem)
    except ValueError as error:
        raise InvalidArgument(f"cannot sign with this key: {error}; {_NEW_KEY}") from error
