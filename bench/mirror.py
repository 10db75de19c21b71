# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mirror of PyPI and the npm registry on the loopback, so that no network decides how long an installation takes."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.loopback import Loopback

if TYPE_CHECKING:
    from pathlib import Path

PYPI: Final = "https://pypi.org"
FILES: Final = "https://files.pythonhosted.org"
NPM: Final = "https://registry.npmjs.org"
_UPSTREAM: Final = {"/pypi": PYPI, "/files": FILES, "/npm": NPM}
_FOREVER: Final = "max-age=365000000, immutable, public"


class Mirror(Loopback):
    """Fetches a document when it is asked for it the first time, and serves it from memory from then on, by https."""

    def __init__(self, directory: Path) -> None:
        """Its key and its certificate go into *directory*."""
        self._documents: dict[tuple[str, str], tuple[int, str, bytes]] = {}
        self._upstream = httpx2.Client(follow_redirects=True, timeout=120)
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, kind, body = mirror.document(self.path, self.headers.get("Accept", "*/*"))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", _FOREVER if _is_file(self.path) else "max-age=600")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self._authority = directory / "authority.pem"
        chain = directory / "mirror.pem"
        for file, content in zip((self._authority, chain), _authority_and_mirror(), strict=True):
            file.write_bytes(content)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(chain)
        self.serve(Handler, tls)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._upstream.close()

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that make pip, uv and npm use the mirror."""
        return {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"{self.url}/pypi/simple",
            "PIP_CERT": str(self._authority),
            "UV_DEFAULT_INDEX": f"{self.url}/pypi/simple",
            "SSL_CERT_FILE": str(self._authority),
            "NPM_CONFIG_REGISTRY": f"{self.url}/npm/",
            "NPM_CONFIG_CAFILE": str(self._authority),
        }

    def document(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Status, media type and content of *path*, with every URL in it leading here."""
        key = path, "" if _is_file(path) else accept
        if key not in self._documents:
            prefix = next((each for each in _UPSTREAM if path.startswith(f"{each}/")), "")
            if not prefix:
                return 404, "text/plain", b""
            answer = self._upstream.get(_UPSTREAM[prefix] + path.removeprefix(prefix), headers={"Accept": accept})
            body = answer.content
            if not _is_file(path):
                for here, there in _UPSTREAM.items():
                    body = body.replace(there.encode(), (self.url + here).encode())
            self._documents[key] = answer.status_code, answer.headers.get("Content-Type", ""), body
        return self._documents[key]


def _is_file(path: str) -> bool:
    return path.startswith("/files/") or path.endswith(".tgz")


def _authority_and_mirror() -> tuple[bytes, bytes]:
    """Make the certificate of an authority, and one from it for the loopback with its key, all in PEM."""
    authority, mirror = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mirror")])
    now = dt.datetime.now(dt.UTC)
    begun = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )
    root = (
        begun.subject_name(issuer)
        .public_key(authority.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        begun.subject_name(subject)
        .public_key(mirror.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    key = mirror.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return root.public_bytes(Encoding.PEM), key + leaf.public_bytes(Encoding.PEM)
