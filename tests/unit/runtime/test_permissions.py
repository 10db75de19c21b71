# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mcpd.errors import InvalidManifest
from mcpd.model.placeholders import expand
from mcpd.runtime.permissions import PERMISSIONS, PathGrant, Permission, explain, parse


def test_each_permission_grants_what_it_says() -> None:
    granted = parse(
        "s",
        [
            "network",
            "devices",
            "filesystem:ro:~/a",
            "filesystem:rw:/b:c",
            "session-bus:talk:org.example.App",
            "session-bus:talk:org.example.Suite.*",
            "mcp:other",
        ],
        {},
    )
    assert granted.network
    assert granted.devices
    assert granted.paths == (
        PathGrant("~/a", False, "filesystem:ro:~/a"),
        PathGrant("/b:c", True, "filesystem:rw:/b:c"),
    )
    assert granted.bus_names == ("org.example.App", "org.example.Suite.*")
    assert granted.mcp == ("other",)
    assert granted.ignored == ()


def test_nothing_is_granted_without_permissions() -> None:
    granted = parse("s", [], {})
    assert (granted.network, granted.devices, granted.paths, granted.bus_names, granted.mcp) == (
        False,
        False,
        (),
        (),
        None,
    )


@pytest.mark.parametrize(
    ("value", "granted"), [(True, True), (False, False), (None, False), ("true", False), (1, False), ([], False)]
)
def test_condition_needs_the_boolean_true(value: object, granted: bool) -> None:
    found = parse("s", ["network?net", "filesystem:rw:/x?net", "devices?net", "mcp?net"], {"net": value})  # type: ignore[dict-item]
    assert (found.network, bool(found.paths), found.devices, found.mcp == ()) == (granted,) * 4
    assert not parse("s", ["network?net"], {}).network


def test_config_path_may_be_a_list() -> None:
    granted = parse("s", ["filesystem:rw:{config.roots}", "filesystem:ro:{config.base}/x"], {"roots": ["/a", "/b"]})
    assert [grant.path for grant in granted.paths] == ["/a", "/b"]
    assert [grant.writable for grant in granted.paths] == [True, True]


def test_mcp_for_all_wins_over_single_ids() -> None:
    assert parse("s", ["mcp:a", "mcp"], {}).mcp == ()
    assert parse("s", ["mcp:b", "mcp:a"], {}).mcp == ("a", "b")


@pytest.mark.parametrize(
    "text",
    [
        "filesystem:/home",
        "filesystem:rx:/home",
        "filesystem:rw:",
        "network:host",
        "devices:usb",
        "session-bus:own:org.x.Y",
        "session-bus:talk:nodots",
        "session-bus:talk:org.x.Y --talk=org.z.Z",
        "session-bus:talk:*",
        "mcp:../x",
        "mcp:a b",
        "network?a b",
    ],
)
def test_permission_that_is_not_right_refuses_the_server(text: str) -> None:
    with pytest.raises(InvalidManifest, match="is not a permission"):
        parse("s", [text], {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org.freedesktop.systemd1", "starts any program"),
        ("org.mcpd.Mcp1", "installs and starts servers"),
        ("org.freedesktop.Flatpak", "starts any program"),
        ("org.freedesktop.portal.Desktop", "at the next login"),
        ("org.freedesktop.portal.Flatpak", "at the next login"),
        ("org.freedesktop.impl.portal.desktop.gtk", "at the next login"),
        ("org.freedesktop.secrets", "passwords"),
        ("org.kde.kwalletd6", "passwords"),
        ("org.kde.konsole-4711", "in a terminal"),
        ("org.gnome.Console", "in a terminal"),
        ("org.kde.kpasswdserver6", "passwords"),
        ("org.kde.klipper", "controls the desktop"),
        ("com.canonical.Unity", "controls the desktop"),
        ("org.gnome.Shell", "controls the desktop"),
        ("org.awesomewm.awful", "controls the desktop"),
        ("im.pidgin.purple.PurpleService", "passwords"),
        ("org.gnome.ArchiveManager1", "any file"),
        ("org.gnome.Shell.Extensions", "controls the desktop"),
        ("org.freedesktop.systemd1.*", "starts any program"),
        ("org.freedesktop.*", "starts any program"),
        ("org.freedesktop.impl.*", "at the next login"),
        ("org.kde.*", "passwords"),
        ("org.mcpd.*", "installs and starts servers"),
        ("com.example.*", "many programs"),
        ("org.freedesktop.Notifications.*", "many programs"),
        ("org.kde.StatusNotifierWatcher.*", "many programs"),
    ],
)
def test_programs_of_the_session_that_run_others_are_never_granted(name: str, reason: str) -> None:
    for text in (f"session-bus:talk:{name}", f"session-bus:talk:{name}?unset"):
        with pytest.raises(InvalidManifest, match=f"is never granted: .*{reason}"):
            parse("s", [text], {})


@pytest.mark.parametrize(
    "name", ["org.freedesktop.Notifications", "org.freedesktop.login", "org.mpris.MediaPlayer2.*", "org.gnome.Music"]
)
def test_other_programs_of_the_session_are_granted(name: str) -> None:
    assert parse("s", [f"session-bus:talk:{name}"], {}).bus_names == (name,)


@pytest.mark.parametrize(
    "text", ["Reads your calendar", "filesystem", "Network", "network access", "mcp: all", "", "camera"]
)
def test_words_for_people_grant_nothing_and_are_reported(text: str) -> None:
    granted = parse("s", [text], {})
    assert granted.ignored == (text,)
    assert (granted.network, granted.devices, granted.paths, granted.mcp) == (False, False, (), None)


def test_expand_fills_in_every_placeholder() -> None:
    values: dict[str, Any] = {"a": ["1", "2"], "b": True, "n": 3}
    assert expand("{config.a}-{config.n}-{config.b}", values) == ["1-3-true", "2-3-true"]
    assert expand("{config.absent}", values) == []
    assert expand("plain {other}", values) == ["plain {other}"]


def test_permission_that_names_a_secret_refuses_the_server() -> None:
    with pytest.raises(InvalidManifest, match=r"'filesystem:ro:/x/\{config\.token\}': 'token' is sensitive") as caught:
        parse("s", ["filesystem:ro:/x/{config.token}"], {"token": "s3cr3t"}, sensitive={"token"})
    assert "s3cr3t" not in caught.value.message
    assert parse("s", ["filesystem:ro:{config.place}"], {"place": "/x"}, sensitive={"token"}).paths


def test_the_documentation_lists_all_permissions_and_begins_with_what_they_grant() -> None:
    text = Path(__file__).parents[3].joinpath("docs/permissions.md").read_text()
    table = text[text.index("| string |") :].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", table, re.MULTILINE)
    assert [form for form, _ in rows] == [each.form for each in PERMISSIONS]
    for (_, documented), each in zip(rows, PERMISSIONS, strict=True):
        assert documented.startswith(each.meaning.format(each.argument))


@pytest.mark.parametrize("each", PERMISSIONS, ids=lambda each: each.form)
def test_every_permission_is_parsed_and_explained(each: Permission) -> None:
    text = each.form.replace("NAME", "org.example.App")
    assert parse("s", [text], {}) not in (parse("s", [], {}), parse("s", [f"{text}?key"], {}))
    assert explain(f"{text}?key") == (f"{explain(text)[0]}, while key is true", "")
