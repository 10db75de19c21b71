# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from shutil import which
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from mcpd.errors import InvalidArgument
from mcpd.trust.keys import fingerprint
from mcpd.trust.signing import load_public, new_key, public_of, sign

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

LOCKED = Ed25519PrivateKey.generate().private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
)


def test_each_new_key_is_another() -> None:
    secret, public = new_key()
    assert public_of(secret) == public
    assert new_key() != (secret, public)
    assert public.startswith(b"-----BEGIN PUBLIC KEY-----\n")
    assert secret.startswith(b"-----BEGIN PRIVATE KEY-----\n")


def test_a_signature_is_one_line_of_base64() -> None:
    secret, public = new_key()
    made = sign(b"data", secret)
    assert made.endswith(b"==\n")
    load_public(public).verify(base64.b64decode(made, validate=False), b"data")
    assert sign(b"data", secret) == made


@pytest.mark.parametrize(
    ("key", "fault"),
    [(b"", "PEM"), (new_key()[1], "PEM"), (LOCKED, "password")],
    ids=["empty", "public", "locked"],
)
def test_what_cannot_sign(key: bytes, fault: str) -> None:
    for use in (lambda: sign(b"", key), lambda: public_of(key)):
        with pytest.raises(InvalidArgument, match=fault) as caught:
            use()
        assert "MC" not in caught.value.message


def test_a_fingerprint_is_written_as_openssh_does() -> None:
    expected = base64.b64encode(hashlib.sha256(bytes(32)).digest()).decode().rstrip("=")
    assert fingerprint(bytes(32)) == f"SHA256:{expected}"


@pytest.mark.skipif(which("openssl") is None, reason="openssl is not installed")
def test_openssl_makes_and_reads_the_same(tmp_path: Path) -> None:
    secret, public, data, made = (tmp_path / name for name in ("k.pem", "k.pub", "data", "sig"))
    data.write_bytes(b"some bytes")

    def openssl(*argv: object) -> None:
        subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True, timeout=120)

    openssl("genpkey", "-algorithm", "ed25519", "-out", secret)
    openssl("pkey", "-in", secret, "-pubout", "-out", public)
    assert public_of(secret.read_bytes()) == public.read_bytes()
    openssl("pkeyutl", "-sign", "-inkey", secret, "-rawin", "-in", data, "-out", made)
    assert sign(data.read_bytes(), secret.read_bytes()) == base64.b64encode(made.read_bytes()) + b"\n"
    openssl("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", data, "-sigfile", made)


def test_without_a_key_cryptography_is_not_loaded(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from mcpd.paths import Scope, from_environment\n"
        "from mcpd.trust.keys import Keys\n"
        "assert Keys(from_environment(), Scope.USER).list() == []\n"
        "assert 'cryptography' not in sys.modules\n"
    )
    environ = {"HOME": str(tmp_path), "MCP_ROOT": str(tmp_path / "root")}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=120)
