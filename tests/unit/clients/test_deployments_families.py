# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every client that is shipped can be deployed to and gets its file back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deployment_parts import ABOUT, User

from mcpd.cli.clients.detect import detect
from mcpd.servers.orchestration.dialects import to_client
from mcpd.servers.orchestration.families import Families

if TYPE_CHECKING:
    from mcpd.model import JsonValue
    from mcpd.servers.orchestration.family import Family

SHIPPED = Path(__file__).parents[3] / "data/clients"
IDS = sorted(path.stem for path in SHIPPED.glob("*.toml"))


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def shipped(client_id: str) -> Family:
    return Families([SHIPPED]).get(client_id)


def entries(family: Family, *names: str) -> dict[str, JsonValue]:
    return to_client(family, {name: {"command": "mcpctl", "args": ["run", name]} for name in names})


@pytest.mark.parametrize("client_id", IDS)
def test_every_shipped_client_takes_deployments_and_undoes_them(user: User, client_id: str) -> None:
    family, deployments = shipped(client_id), user.deployments
    path = (family.linux_locations(user.home, {}) or [user.home / "elsewhere/file"])[0]
    deployments.apply(deployments.plan(family, path, entries(family, "one", "two")), ABOUT)
    first = path.read_bytes()
    (drift,) = deployments.drift(family)
    assert (drift.status, drift.missing, drift.extended, drift.unexpected) == ("in-sync", (), (), ())
    assert deployments.plan(family, path, entries(family, "one", "two")).is_empty
    plan = deployments.plan(family, path, entries(family, "two", "three"))
    assert (plan.added, plan.changed, plan.removed) == (["three"], [], ["one"])
    assert "***" not in plan.diff
    deployments.apply(plan, ABOUT)
    assert deployments.undo(family, path).number == 2
    assert path.read_bytes() == first
    deployments.undo(family)
    assert list(user.home.iterdir()) == []


def test_every_deployed_client_is_found(user: User) -> None:
    families = [shipped(client_id) for client_id in IDS if shipped(client_id).linux_locations(user.home, {})]
    expected = {}
    for family in families:
        path = family.linux_locations(user.home, {})[0]
        user.deployments.apply(user.deployments.plan(family, path, entries(family, "one", "two")), ABOUT)
        expected[path] = 2
    found = detect(families, user.home, {})
    assert [each.family.id for each in found] == [family.id for family in families]
    assert {each.file: each.servers for each in found} == expected
    assert {each.problem for each in found} == {""}
