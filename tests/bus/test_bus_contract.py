# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is shipped in ``dbus/`` against each other, against the code, and against the tools that read it."""

from __future__ import annotations

import configparser
import inspect
import itertools
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from shutil import which

import pytest

from mcpd.bus import contract
from mcpd.bus.authorization import ACTION_PREFIX
from mcpd.bus.codec import split
from mcpd.bus.contract import camel_case, handlers
from mcpd.bus.job import JobObject
from mcpd.bus.manager import Manager
from mcpd.bus.names import BUS_NAME, JOB, MANAGER, SERVER, SESSION, escape
from mcpd.bus.object_manager import STANDARD, StandardMethods
from mcpd.bus.server import ServerObject
from mcpd.bus.session import SessionObject
from mcpd.bus.systemd import TransientUnits
from mcpd.runtime.launchers import SystemdUserLauncher, UnitManager
from tests.bus.harness import DBUS_DIR

OURS = (MANAGER, SERVER, JOB, SESSION)
POLICY = DBUS_DIR / "org.mcpd.mcp1.policy"
POLKIT_DTD = Path("/usr/share/polkit-1/policyconfig-1.dtd")
ACTIONS = {
    "install-trusted", "install-untrusted", "update", "rollback", "uninstall", "configure", "set-secret",
    "manage-sources", "spawn", "cancel-foreign", "refresh", "approve",
}  # fmt: skip


IMPLEMENTATIONS = {MANAGER: Manager, SERVER: ServerObject, JOB: JobObject, SESSION: SessionObject}
METHODS = {
    (name, member): handler for name, cls in IMPLEMENTATIONS.items() for member, handler in handlers(cls).items()
}
VARDICT = ("Options", "Mapping[str, Any]", "Mapping[str, Variant]", "dict[str, Variant]")
TYPES = {
    "s": ("str",), "o": ("str",), "b": ("bool",), "t": ("int",), "h": ("int",), "v": ("object", "Variant"),
    "as": ("Sequence[str]", "list[str]"), "a{sv}": VARDICT, "aa{sv}": ("list[Raw]", "list[dict[str, Variant]]"),
    "a{uh}": ("Mapping[int, int]", "dict[int, int]"), "a{oa{sa{sv}}}": ("Raw",),
}  # fmt: skip
"""The annotations that fit a D-Bus type."""


@pytest.mark.parametrize("cls", [*IMPLEMENTATIONS.values(), StandardMethods])
def test_the_methods_of_an_interface_are_those_of_its_xml(cls: type) -> None:
    names = [name for name, known in IMPLEMENTATIONS.items() if known is cls] or STANDARD
    declared = {member: method for name in names for member, method in contract.interfaces()[name].methods.items()}
    functions = {camel_case(name): function for name, function in vars(cls).items() if inspect.isfunction(function)}
    assert set(handlers(cls)) == set(declared)
    for member, method in declared.items():
        signature = inspect.signature(functions[member])
        given, expected = [p.annotation for p in signature.parameters.values()][2:], split(method.in_signature)
        assert len(given) - len(expected) in (0, 1), f"{member} takes the arguments {expected}"
        for annotation, kind in zip(reversed(given), reversed(expected), strict=False):
            assert annotation in TYPES[kind], f"{member}: {annotation} is not {kind}"
        results = [", ".join(each) for each in itertools.product(*map(TYPES.__getitem__, split(method.out_signature)))]
        shapes = {f"tuple[{each}]" if ", " in each else each or "None" for each in results} | set(results)
        assert signature.return_annotation in shapes, f"{member} returns {method.out_signature}"


def test_methods_that_need_no_authorization_only_read() -> None:
    reading = {
        "ListServers", "GetServer", "GetManifestPath", "ListAvailable", "ListSources", "GetConfig", "GetAvailable",
        "GetIcon", "GetEntry", "GetHistory", "GetPending", "GetTools", "ListKeys",
    }  # fmt: skip
    assert {member for (_, member), one in METHODS.items() if one.authorize is None} == reading | {"ListSessions"}


def test_every_authorized_method_ends_in_options() -> None:
    for (interface, member), handler in METHODS.items():
        if handler.authorize is not None:
            assert contract.interfaces()[interface].methods[member].in_signature.endswith("a{sv}"), member


@pytest.mark.parametrize("name", OURS)
def test_everything_is_documented(name: str) -> None:
    text = (DBUS_DIR / f"{name}.xml").read_text()
    comments = "\n".join(re.findall(r"<!--(.*?)-->", text, re.DOTALL))
    interface = contract.interfaces()[name]
    for member in (*interface.methods, *interface.signals, *interface.properties):
        assert re.search(rf"\b{member}:", comments), f"{member} has no doc comment"
    for element in ET.fromstring(text).iter("arg"):
        assert element.get("name"), "an argument has no name"


@pytest.mark.parametrize("name", OURS)
def test_complex_types_have_names_for_qt(name: str) -> None:
    for member in ET.fromstring((DBUS_DIR / f"{name}.xml").read_text()).iter("method"):
        hints = {a.get("name", "").rpartition(".")[2] for a in member.iter("annotation")}
        for direction, word in (("in", "In"), ("out", "Out")):
            types = [a.get("type", "") for a in member.iter("arg") if a.get("direction") == direction]
            needed = {f"{word}{i}" for i, kind in enumerate(types) if "{" in kind}
            assert needed <= hints, member.get("name")


@pytest.mark.skipif(which("qdbusxml2cpp") is None, reason="qdbusxml2cpp is not installed")
@pytest.mark.parametrize("name", OURS)
def test_qdbusxml2cpp_accepts_the_interface(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["qdbusxml2cpp", "-p", "proxy", str(DBUS_DIR / f"{name}.xml")],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    header = (tmp_path / "proxy.h").read_text()
    assert f'return "{name}"' in header
    for member in contract.interfaces()[name].methods:
        assert f" {member}(" in header


def test_the_bus_policy_names_every_interface_and_denies_nothing() -> None:
    policy = ET.fromstring((DBUS_DIR / "org.mcpd.Mcp1.conf").read_text())
    allowed = {rule.get("send_interface") for rule in policy.iter("allow")} - {None}
    assert allowed == set(contract.interfaces())
    assert [rule.get("own") for rule in policy.iter("allow") if rule.get("own")] == [BUS_NAME]
    assert all(rule.get("send_destination") == BUS_NAME for rule in policy.iter("allow") if not rule.get("own"))
    assert not list(policy.iter("deny"))


@pytest.mark.parametrize("folder", ["services", "system-services"])
def test_activation_goes_through_systemd(folder: str) -> None:
    parsed = configparser.ConfigParser()
    parsed.read(DBUS_DIR / folder / f"{BUS_NAME}.service")
    service = parsed["D-BUS Service"]
    assert (service["Name"], service["Exec"], service["SystemdService"]) == (BUS_NAME, "/bin/false", "mcpd.service")
    assert service.get("User") == ("mcpd" if folder == "system-services" else None)


def test_every_action_is_in_the_policy_with_mcpd_as_its_owner() -> None:
    actions = {action.get("id"): action for action in ET.fromstring(POLICY.read_text()).iter("action")}
    assert set(actions) == {ACTION_PREFIX + name for name in ACTIONS}
    for action in actions.values():
        notes = {note.get("key"): note.text for note in action.iter("annotate")}
        assert notes["org.freedesktop.policykit.owner"] == "unix-user:mcpd"
        assert action.findtext("description")
        assert action.findtext("message")


def test_decisions_that_must_be_taken_one_by_one_are_not_kept() -> None:
    for action in ET.fromstring(POLICY.read_text()).iter("action"):
        values = {e.text for e in action.find("defaults") or ()}
        if action.get("id", "").rpartition(".")[2] in {"install-untrusted", "manage-sources", "set-secret", "approve"}:
            assert values <= {"auth_admin", "no"}
        assert "yes" not in {action.findtext("defaults/allow_any"), action.findtext("defaults/allow_inactive")}


@pytest.mark.skipif(not POLKIT_DTD.exists(), reason="polkit's DTD is not installed")
def test_the_policy_follows_polkits_dtd() -> None:
    dtd = POLKIT_DTD.read_text()
    children = {
        name: set(re.findall(r"[a-z_]+", model)) - {"PCDATA"}
        for name, model in re.findall(r"<!ELEMENT\s+(\w+)\s+([^>]+)>", dtd)
    }
    attributes: dict[str, set[str]] = {}
    for name, declared in re.findall(r"<!ATTLIST\s+(\w+)\s+([^>]+)>", dtd):
        attributes.setdefault(name, set()).update(re.findall(r"([\w:]+)\s+(?:CDATA|ID|NMTOKEN)", declared))
    assert children["policyconfig"] >= {"vendor", "action"}
    for element in ET.fromstring(POLICY.read_text()).iter():
        assert element.tag in children
        assert {child.tag for child in element} <= children[element.tag], element.tag
        assert set(element.attrib) <= attributes.get(element.tag, set()), element.tag


@pytest.mark.parametrize(
    ("label", "escaped"),
    [("com.example", "com_2eexample"), ("1a", "_31a"), ("", "_"), ("a-b_c", "a_2db_5fc"), ("é", "_c3_a9")],
)
def test_ids_are_escaped_as_systemd_does(label: str, escaped: str) -> None:
    assert escape(label) == escaped


def test_transient_units_are_what_the_launcher_wants() -> None:
    units: UnitManager = TransientUnits.__new__(TransientUnits)
    assert SystemdUserLauncher(units).name == "systemd-user"
