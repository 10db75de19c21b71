# SPDX-License-Identifier: LGPL-2.1-or-later
"""Profiles: what each of the shipped ones holds, which a client has, and what is wrong with a broken one."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.errors import ProfileNotFound, error_object
from mcpd.clients.families import packaged
from mcpd.clients.profiles import Profile, Profiles
from mcpd.errors import InvalidConfig
from mcpd.paths import Scope
from tests.unit.clients.family_parts import SHIPPED, machine, some, write

if TYPE_CHECKING:
    from pathlib import Path

NAMED = 'name = "Named"\n'


def profile(**more: Any) -> Profile:
    return Profile.parse("some", {"name": "Some", **more}, "some.toml")


def get(profile_id: str) -> Profile:
    return Profiles([packaged("client-profiles")]).get(SHIPPED["vscode"], profile_id)


def test_the_profiles_of_the_source_document_are_there() -> None:
    default, dev = get("default"), get("dev")
    assert (default.id, default.name, default.description) == (
        "default",
        "Default",
        "Standard configuration for most users",
    )
    assert (dev.id, dev.name, dev.description) == ("dev", "Development", "Development tools and debug servers")


def test_the_shipped_profiles_hold_what_they_are_for() -> None:
    held = {name: (get(name).layers, get(name).scripts, get(name).transport) for name in SHIPPED["vscode"].profiles}
    assert held == {
        "default": (("user", "system"), True, "stdio"),
        "dev": (("user", "system", "vendor"), True, "stdio"),
        "prod": (("user", "system"), False, "stdio"),
        "http": (("user", "system"), True, "http"),
    }


@pytest.mark.parametrize("name", ["default", "dev", "prod", "http"])
def test_a_shipped_profile_leaves_out_no_server_by_name(name: str) -> None:
    shipped = get(name)
    assert shipped.takes("anything.at_all-1")
    assert shipped.variables_of("anything.at_all-1") == []
    assert shipped.description
    assert shipped.url == "http://127.0.0.1:0"


def test_every_file_of_the_directory_is_a_profile() -> None:
    profiles = Profiles([packaged("client-profiles")])
    assert profiles.problems == []
    assert {path.stem for path in packaged("client-profiles").iterdir()} == {"default", "dev", "prod", "http"}


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ProfileNotFound) as caught:
        Profiles([packaged("client-profiles")]).get(SHIPPED["claude-desktop"], "unknown-profile")
    assert error_object(caught.value) == {
        "error": "profile_not_found",
        "message": "Profile 'unknown-profile' not found for client 'claude-desktop'",
        "available_profiles": ["default", "dev", "prod"],
    }


@pytest.mark.parametrize("profile_id", ["prod", "http", "", "../default", "default\n", "\udc80", "x" * 100_000])
def test_a_client_has_its_own_profiles_only(profile_id: str) -> None:
    with pytest.raises(ProfileNotFound) as caught:
        Profiles([packaged("client-profiles")]).get(SHIPPED["cursor"], profile_id)
    assert len(caught.value.message) < 1000
    assert caught.value.message.isprintable()


def test_profiles_come_in_the_order_of_the_client(tmp_path: Path) -> None:
    write(tmp_path, a=NAMED, b=NAMED, c=NAMED, d=NAMED + 'clients = ["so*"]\n', e=NAMED + 'clients = ["other"]\n')
    profiles = Profiles([tmp_path])
    assert profiles.available(some(profiles=["c", "missing", "a"])) == ["c", "a", "d"]
    assert profiles.available(some(profiles=["d", "a", "d"])) == ["d", "a"]
    assert profiles.available(some(profiles=["missing"])) == ["d"]
    assert profiles.get(some(profiles=["c"]), "d").clients == ("so*",)
    with pytest.raises(ProfileNotFound):
        profiles.get(some(profiles=["c"]), "e")


def test_scopes_have_their_directories(tmp_path: Path) -> None:
    paths = machine(tmp_path)
    write(paths.vendor_profiles, default=NAMED.replace("Named", "Vendor's"), dev=NAMED.replace("Named", "Vendor's"))
    write(paths.system.client_profiles, default=NAMED.replace("Named", "Administrator's"))
    write(paths.user.client_profiles, prod=NAMED, mine=NAMED + 'clients = ["*"]\n')
    family = SHIPPED["claude-code"]
    user, system = Profiles.of(paths, Scope.USER), Profiles.of(paths, Scope.SYSTEM)
    assert {name: user.get(family, name).name for name in user.available(family)} == {
        "default": "Administrator's",
        "dev": "Vendor's",
        "prod": "Named",
        "http": "HTTP",
        "mine": "Named",
    }
    assert system.available(family) == ["default", "dev", "prod", "http"]
    assert system.get(family, "prod").name == "Production"


def test_a_broken_profile_is_a_problem_and_hides_nothing(tmp_path: Path) -> None:
    write(tmp_path / "low", default=NAMED)
    write(tmp_path / "high", default="name = 1979-05-27", Dev=NAMED)
    profiles = Profiles([tmp_path / "low", tmp_path / "high"])
    assert profiles.get(some(), "default").name == "Named"
    assert [problem.removeprefix(f"{tmp_path}/high/")[:13] for problem in profiles.problems] == [
        "Dev.toml: Dev",
        "default.toml:",
    ]
    assert "is not the id of a profile" in profiles.problems[0]


def test_a_profile_has_usual_defaults() -> None:
    given = profile()
    assert (given.include, given.exclude, given.clients, given.description) == (("*",), (), (), "")
    assert (given.layers, given.scripts, given.transport) == (("user", "system"), True, "stdio")
    assert given.url == "http://127.0.0.1:0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "name:"),
        ({"name": "two\nlines"}, "name:"),
        ({"nmae": "x"}, "nmae: Extra inputs are not permitted"),
        ({"layers": []}, "layers:"),
        ({"layers": ["root"]}, "layers.0:"),
        ({"include": "x*"}, "include:"),
        ({"exclude": [""]}, "exclude.0:"),
        ({"scripts": "perhaps"}, "scripts:"),
        ({"transport": "smoke"}, "transport:"),
        ({"url": "ftp://x"}, "url:"),
        ({"url": "http://x y"}, "url:"),
        ({"url": "http://x/\n"}, "url:"),
        ({"url": "http://user:secret@x"}, "url:"),
        ({"variables": {"*": ["A B"]}}, "'A B' is not the name of a variable"),
        ({"variables": {"*": "A"}}, "variables."),
        ({"description": "\x00"}, "NUL"),
    ],
)
def test_an_invalid_profile_names_the_file_and_the_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        profile(**change)
    assert caught.value.message.startswith("some.toml: ")
    assert said in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:7412", "http://127.0.0.1:7412"),
        ("https://mcp.example.com/base/", "https://mcp.example.com/base"),
        ("http://[::1]:7412/", "http://[::1]:7412"),
    ],
)
def test_the_base_of_urls_has_no_slash_at_its_end(url: str, base: str) -> None:
    assert profile(url=url).url == base


def test_globs_choose_servers() -> None:
    chosen = profile(include=["io.github.*", "time"], exclude=["*.internal", "io.github.[ab]*"])
    assert [name for name in ("time", "Time", "io.github.x", "io.github.a", "io.github.x.internal", "y") if
            chosen.takes(name)] == ["time", "io.github.x"]  # fmt: skip
    assert not profile(include=[]).takes("time")


def test_variables_are_by_glob_and_named_once() -> None:
    given = profile(variables={"time": ["TZ", "LANG"], "t*": ["TZ", "DEBUG"], "x": ["NEVER"]})
    assert given.variables_of("time") == ["DEBUG", "LANG", "TZ"]
    assert given.variables_of("other") == []


GLOBS = st.lists(st.text(alphabet="ab*?.[]!", min_size=1, max_size=5), max_size=4)


@given(st.text(alphabet="ab.", max_size=6), GLOBS, GLOBS)
def test_what_is_excluded_is_never_taken(name: str, include: list[str], exclude: list[str]) -> None:
    taken = profile(include=include, exclude=exclude).takes(name)
    assert taken == (
        any(fnmatchcase(name, glob) for glob in include) and not any(fnmatchcase(name, glob) for glob in exclude)
    )
    assert not profile(include=include, exclude=[*exclude, "*"]).takes(name)
