# SPDX-License-Identifier: LGPL-2.1-or-later
"""Values of the configuration, of secrets above all, do not end where others read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidManifest, McpdError
from mcpd.paths import Scope
from mcpd.runtime.sandbox import server_spec
from mcpd.settings import RuntimeSettings, Settings
from tests.sandbox.world import PYTHON

if TYPE_CHECKING:
    from tests.sandbox.world import World

TOKEN = {"key": "token", "sensitive": True}


def refusal(world: World, value: str | list[str], *, sandbox: str = "on", **fields: Any) -> McpdError:
    server = world.install("server", values={"token": value} if value else {}, **fields)
    settings = Settings(runtime=RuntimeSettings(sandbox=sandbox))
    launch = world.launch_manifest("server")
    with pytest.raises(McpdError) as caught:
        server_spec(server, launch, paths=world.paths, scope=Scope.USER, settings=settings)
    return caught.value


@pytest.mark.parametrize("sandbox", ["on", "off"])
@pytest.mark.parametrize("value", ["s3cr3t", ""], ids=["set", "unset"])
@pytest.mark.parametrize(
    ("target", "args"), [("arg", ["server.py"]), ("env", ["--key={config.token}"]), ("manifest", ["{config.token}"])]
)
def test_a_secret_is_never_an_argument(world: World, target: str, args: list[str], value: str, sandbox: str) -> None:
    transport = {"type": "stdio", "command": PYTHON, "args": args}
    properties = [{**TOKEN, "target": target}]
    error = refusal(world, value, sandbox=sandbox, transports=[transport], configurableProperties=properties)
    assert isinstance(error, InvalidManifest)
    assert "'token' is sensitive" in error.message
    assert "'env' or 'manifest'" in error.message
    assert "s3cr3t" not in error.message


def test_a_secret_is_never_a_path(world: World) -> None:
    error = refusal(
        world, "/s3cr3t", configurableProperties=[TOKEN], permissions=["filesystem:rw:{config.token}?absent"]
    )
    assert isinstance(error, InvalidManifest)
    assert "'filesystem:rw:{config.token}?absent': 'token' is sensitive" in error.message


@pytest.mark.parametrize(
    "value", ["/s3cr3t", "s3cr3t", "/s3cr3t/../x", "/etc/passwd/s3cr3t", "/proc/s3cr3t", "HIDDEN", "PROTECTED", "LOOP"]
)
def test_what_is_said_about_a_permission_holds_no_configuration_value(world: World, value: str) -> None:
    """Nobody can tell whether a value that is not declared at all is a secret."""
    places = {"HIDDEN": world.paths.user.secrets, "PROTECTED": world.paths.user.settings.parent}
    place = places.get(value, world.root) / "s3cr3t"
    place.parent.mkdir(parents=True, exist_ok=True)
    if value == "LOOP":
        place.symlink_to(place)
    elif value in places:
        place.write_text("")
    path = value if "/" in value or value == "s3cr3t" else str(place)
    error = refusal(world, path, permissions=["filesystem:rw:{config.token}"])
    assert "permission 'filesystem:rw:{config.token}': the path that the configuration gives" in error.message
    assert "s3cr3t" not in error.message


def test_of_several_paths_the_message_says_which_it_is_about(world: World) -> None:
    (world.root / "there").mkdir()
    values = [str(world.root / "there"), "/proc/s3cr3t"]
    error = refusal(world, values, permissions=["filesystem:create:{config.token}"])
    assert "'filesystem:create:{config.token}': path 2 that the configuration gives cannot be granted" in error.message
    assert "s3cr3t" not in error.message
