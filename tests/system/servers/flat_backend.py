# SPDX-License-Identifier: LGPL-2.1-or-later
"""A build backend for the test servers that needs nothing else: every module beside it goes into the wheel."""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from pathlib import Path


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    """See PEP 517."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    scripts = "".join(f"{script} = {target}\n" for script, target in project.get("scripts", {}).items())
    info = f"{name}-{version}.dist-info"
    files = {path.name: path.read_bytes() for path in sorted(Path().glob("*.py")) if path.name != "flat_backend.py"} | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: flat\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{scripts}".encode(),
    }
    record = "".join(f"{file},{_digest(data)},{len(data)}\n" for file, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w") as archive:
        for file, data in files.items():
            archive.writestr(file, data)
    return wheel


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
