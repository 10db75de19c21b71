# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mcpd.model import Manifest
from mcpd.paths import Layout, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from mcpd.store import InstalledServer, Store


def layout(scope: Scope, root: Path) -> Layout:
    return Layout(
        scope=scope,
        sources_list=root / "etc/sources.list",
        settings=root / "etc/mcpd.toml",
        installed=root / "share/installed",
        secrets=root / "share/secrets",
        state=root / "state",
        cache=root / "cache",
        runtime=root / "run",
        overlay=root / "share/overlay",
        scripts=root / "share/scripts",
        contents=root / "share/cas",
        orchestration=root / "orchestration",
        deployments=root / "share/deployments",
    )


def document(server_id: str = "com.example.one", version: str = "1", **more: Any) -> dict[str, Any]:
    """A manifest with configurable properties."""
    return {
        "id": server_id,
        "name": "One",
        "summary": "The first",
        "version": version,
        "transports": [{"type": "stdio", "command": "python3", "args": ["server.py"]}],
        "source": {"type": "git", "url": "https://example.com/one.git"},
        "configurableProperties": [
            {"key": "api_key", "label": "API Key", "sensitive": True, "required": True},
            {"key": "timeout", "label": "Timeout", "default": "30", "type": "integer"},
            {"key": "endpoint", "label": "Endpoint"},
        ],
        **more,
    }


def install(store: Store, server_id: str = "com.example.one", version: str = "1", **more: Any) -> InstalledServer:
    generation = store.new_generation(server_id)
    (generation.path / "server.py").write_text(f"# {version}\n")
    return store.activate(generation, Manifest.parse(document(server_id, version, **more), "test"))


def hold(store: Store, version: str = "2", tools: list[dict[str, Any]] | None = None, **more: Any) -> int:
    """Make the next generation the pending update; return its number."""
    generation = store.new_generation("com.example.one")
    (generation.path / "server.py").write_text(f"# {version}\n")
    store.hold(generation, Manifest.parse(document(version=version, **more), "test"), tools)
    return generation.number


def foreign(root: Path, server_id: str = "com.example.one", version: str = "1", **more: Any) -> Path:
    """A plain directory, as other tools make them."""
    directory = root / server_id
    directory.mkdir(parents=True)
    (directory / "server.py").write_text("# foreign\n")
    (directory / "manifest.json").write_text(json.dumps(document(server_id, version, **more)))
    return directory


def names_in(directory: Path) -> list[str]:
    """The names in *directory*, in order; none if it is not there."""
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def text_of_tree(root: Path) -> str:
    """Everything any file below *root* says, names included, secrets apart."""
    return "\n".join(
        f"{path}\n{path.read_text(errors='replace')}"
        for path in sorted(root.rglob("*"))
        if path.is_file() and "secrets" not in path.parts
    )


@contextmanager
def failing_write(monkeypatch: pytest.MonkeyPatch, which: int, number: int) -> Iterator[None]:
    """Have the write, fsync or symlink that is number *which* (from 1) fail with the errno *number*."""
    real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in ("write", "fsync", "symlink")}
    left = which

    def call(name: str, *args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(number, os.strerror(number))
        return real[name](*args, **options)

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(os, name, lambda *args, _name=name, **options: call(_name, *args, **options))
        yield
