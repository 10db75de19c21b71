# SPDX-License-Identifier: LGPL-2.1-or-later
"""Git repositories, local and behind https on the loopback."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import subprocess
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.loopback import Loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV = {
    "PATH": "/usr/bin:/bin",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@t",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@t",
}


class Repository:
    """A git repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.path), *arguments], env=ENV, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str] | None = None) -> str:
        """Commit what is there and *files*; returns the commit's id."""
        for name, text in (files or {}).items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "HEAD")

    def source(self, **fields: str) -> dict[str, str]:
        return {"type": "git", "url": self.path.as_uri(), **fields}


class Server(Loopback):
    """Serves the repositories in *root* over https, the smart protocol below ``/smart`` and files below ``/dumb``."""

    def __init__(self, root: Path, certificate: Path) -> None:
        key = _certificate(certificate)
        self.asked: list[tuple[str, str]] = []
        """Of each request, the ``Authorization`` and the command lines of all git processes of the machine."""
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked.append((self.headers.get("Authorization", ""), _command_lines()))
                _, kind, path = self.path.split("/", 2)
                if kind == "smart":
                    _backend(self, root, path)
                    return
                file = root / path.partition("?")[0]
                content = file.read_bytes() if file.is_file() else b""
                self.send_response(200 if file.is_file() else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.serve(Handler, context)


def _command_lines() -> str:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(line for line in found if "git" in line)


def _backend(handler: BaseHTTPRequestHandler, root: Path, path: str) -> None:
    name, _, query = path.partition("?")
    body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    env = ENV | {
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": f"/{name}",
        "QUERY_STRING": query,
        "REQUEST_METHOD": handler.command,
        "CONTENT_TYPE": handler.headers.get("Content-Type") or "",
        "CONTENT_LENGTH": str(len(body)),
        "GIT_PROTOCOL": handler.headers.get("Git-Protocol") or "",
        "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding") or "",
    }
    answer = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=True).stdout
    head, _, content = answer.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    handler.send_response(int(headers.pop("Status", "200 OK").split()[0]))
    for key, value in {**headers, "Content-Length": str(len(content))}.items():
        handler.send_header(key, value)
    handler.end_headers()
    handler.wfile.write(content)


def _certificate(path: Path) -> Path:
    """Write a certificate for 127.0.0.1 to *path*; returns its key's file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = path.with_suffix(".key")
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    private.chmod(0o600)
    return private
