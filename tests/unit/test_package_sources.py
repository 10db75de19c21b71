# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of package sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpd.cli.parser_catalog import TARGET_HELP
from mcpd.install.plan import RECIPES
from mcpd.package_sources import INDEXES, NPM, PACKAGE_SOURCES, PYPI, SourceType


def test_every_type_has_its_object_its_recipe_and_its_words_in_the_help_of_mcpctl_install() -> None:
    assert set(PACKAGE_SOURCES) == set(RECIPES) == set(SourceType)
    assert all(index.form() in TARGET_HELP for index in INDEXES.values())


@pytest.mark.parametrize(
    ("document", "form"),
    [("docs/manifest.md", "| `{}` |"), ("docs/glossary.md", "`{}`"), ("man/mcp-manifest.5.scd", "\n*{}*\n")],
)
def test_every_type_is_documented(document: str, form: str) -> None:
    text = (Path(__file__).parents[2] / document).read_text()
    assert [kind for kind in SourceType if form.format(kind) not in text] == []


def test_the_usual_runner_of_each_index_is_one_word() -> None:
    assert all(index.runners[0] == (index.runner,) for index in INDEXES.values())


@pytest.mark.parametrize(
    ("command", "package", "arguments"),
    [
        ("npx -y @scope/server@1.2.3 --root /srv", "@scope/server", ["--root", "/srv"]),
        ("npm exec server", "server", []),
        ("npx other", "server", None),
        ("npx --package server other", "server", None),
        ("node server", "server", None),
        ("npx", "server", None),
    ],
)
def test_a_runner_of_npm_hands_on_the_arguments_after_its_package(
    command: str, package: str, arguments: list[str] | None
) -> None:
    assert NPM.arguments_after(command.split(), package) == arguments


def test_a_runner_of_pypi_may_spell_the_name_of_its_package_in_another_way() -> None:
    assert PYPI.arguments_after(["uvx", "-q", "Time_Server==1.0", "x"], "time-server") == ["x"]
    assert PYPI.arguments_after(["pipx", "run", "time.server[extra]"], "time-server") == []


@pytest.mark.parametrize("pin", ["", "latest", "^1.0.0", "main"])
def test_what_can_move_is_no_pin(pin: str) -> None:
    assert not any(source.is_exact(pin) for source in PACKAGE_SOURCES.values())
