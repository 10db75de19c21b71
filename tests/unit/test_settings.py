# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidConfig
from mcpd.settings import Settings, load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "system.toml", tmp_path / "user.toml"


def test_without_files_the_defaults_hold(files: tuple[Path, Path]) -> None:
    assert load(files, {}) == Settings()
    assert Settings().runtime.sandbox == "on"


def test_later_files_win_key_by_key(files: tuple[Path, Path]) -> None:
    files[0].write_text("[install]\nkeep_generations = 5\nstep_timeout = 60\n[runtime]\nmax_sessions = 7\n")
    files[1].write_text('[install]\nkeep_generations = 2\n[bridge]\nallowed_origins = ["https://a.example"]\n')
    settings = load(files, {})
    assert settings.install.keep_generations == 2
    assert settings.install.step_timeout == 60
    assert settings.runtime.max_sessions == 7
    assert settings.bridge.allowed_origins == ("https://a.example",)


def test_the_environment_wins(files: tuple[Path, Path]) -> None:
    files[1].write_text("[install]\nkeep_generations = 2\n")
    environment = {
        "MCPD_INSTALL_KEEP_GENERATIONS": "9",
        "MCPD_BRIDGE_ALLOWED_ORIGINS": "https://a.example, https://b.example,",
        "MCPD_BRIDGE_LISTEN": "127.0.0.1:0",
        "MCPD_UNKNOWN": "x",
    }
    settings = load(files, environment)
    assert settings.install.keep_generations == 9
    assert settings.bridge.allowed_origins == ("https://a.example", "https://b.example")
    assert settings.bridge.listen == "127.0.0.1:0"


def test_the_environment_cannot_unconfine_where_only_files_may(files: tuple[Path, Path]) -> None:
    off = {"MCPD_RUNTIME_SANDBOX": "off"}
    assert load(files, off).runtime.sandbox == "off"
    with pytest.raises(InvalidConfig, match=r'MCPD_RUNTIME_SANDBOX=off.*write sandbox = "off"'):
        load(files, off, sandbox_off_from_files_only=True)
    files[0].write_text('[runtime]\nsandbox = "off"\n')
    assert load(files, {}, sandbox_off_from_files_only=True).runtime.sandbox == "off"
    on = {"MCPD_RUNTIME_SANDBOX": "on"}
    assert load(files, on, sandbox_off_from_files_only=True).runtime.sandbox == "on"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[runtime]\nsandbox = 'maybe'\n", "runtime.sandbox"),
        ("[runtime]\nsand_box = 'off'\n", "runtime.sand_box"),
        ("[nonsense]\n", "nonsense"),
        ("runtime = 3\n", "runtime"),
        ("[install]\nkeep_generations = 0\n", "install.keep_generations"),
        ("[install\n", "line 1"),
        ("a = " + "[" * 20_000, "nested too deeply"),
        ("a = " + "9" * 5000, "a number with thousands of digits"),
        ("a" + ".a" * 100_000 + " = 1", "a key of more than 64 parts"),
    ],
)
def test_a_faulty_file_is_named_with_the_key(files: tuple[Path, Path], text: str, named: str) -> None:
    files[0].write_text("[install]\nkeep_generations = 5\n")
    files[1].write_text(text)
    with pytest.raises(InvalidConfig, match=named) as caught:
        load(files, {})
    assert str(files[1]) in caught.value.message


def test_a_file_that_is_not_text_is_named(files: tuple[Path, Path]) -> None:
    files[0].write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match=r"system\.toml"):
        load(files, {})


def test_a_faulty_variable_is_named(files: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidConfig, match=r"^MCPD_INSTALL_KEEP_GENERATIONS: "):
        load(files, {"MCPD_INSTALL_KEEP_GENERATIONS": "many"})
