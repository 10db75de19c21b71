# SPDX-License-Identifier: LGPL-2.1-or-later
"""The configurations of a scope, and the caller's own files of MCP clients, for the commands that need both."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.cli.client_runtime import changing, is_writable, profile_option, service
from mcpd.cli.clients.deployments import Deployments
from mcpd.cli.clients.locations import client_file, real_place
from mcpd.errors import NotSupported
from mcpd.paths import Scope, from_environment
from mcpd.servers.orchestration.audit import Audit
from mcpd.servers.orchestration.service import now
from mcpd.servers.orchestration.tree import Tree

if TYPE_CHECKING:
    import argparse

    from mcpd.cli.clients.history import Deployment
    from mcpd.model import JsonValue
    from mcpd.paths import Paths
    from mcpd.servers.orchestration.audit import Outcome
    from mcpd.servers.orchestration.family import Family
    from mcpd.servers.orchestration.service import Orchestration


def file_option(file: Path) -> str:
    """The option that names *file* in a command that is shown."""
    return f" --file {shlex.quote(str(file))}"


@dataclass(frozen=True, slots=True)
class Machine:
    """The configurations of the scope, and the caller's files."""

    paths: Paths
    configurations: Orchestration
    deployments: Deployments
    is_mine: bool
    """Whether the configurations are the caller's to change."""

    @classmethod
    def of(cls, args: argparse.Namespace, *, publishes: bool = False) -> Machine:
        """What *args* mean; raises :class:`~mcpd.errors.NotAuthorized` if it *publishes*, and the caller may not."""
        paths = from_environment()
        configurations = changing(args) if publishes else service(args)
        deployments = Deployments(paths.user, now, home=paths.home)
        return cls(paths, configurations, deployments, is_mine=not args.system or is_writable(configurations.tree.root))

    @property
    def told(self) -> Tree | None:
        """The tree whose server is to know what is deployed."""
        return self.configurations.tree if self.is_mine else None

    def file(self, family: Family, given: str | None) -> Path:
        """The file of *family*, or the one that was *given*."""
        return client_file(family, self.paths.home, os.environ, Path(given).absolute() if given else None)

    def deploying(self, family: Family, file: Path) -> str:
        """The command line that deploys to *file* again what stands there, or a newer configuration of its kind."""
        last = self.last(family, file)
        scope = " --system" if last is not None and last.scope is Scope.SYSTEM else ""
        profile = "" if last is None else profile_option(last.profile_id)
        try:
            is_usual = real_place(self.file(family, None)) == file
        except NotSupported:
            is_usual = False
        return f"mcpctl{scope} client deploy {family.id}{profile}{'' if is_usual else file_option(file)}"

    def record(
        self,
        event: str,
        profile_id: str,
        artifact_id: str,
        family: Family,
        details: dict[str, JsonValue],
        outcome: Outcome = "ok",
    ) -> None:
        """Record *event* where the caller's deployments are, which no server can read, write or be in the way of."""
        Audit(Tree(self.paths.user.deployments, Scope.USER), now).record(
            event, client_id=family.id, profile_id=profile_id, artifact_id=artifact_id, outcome=outcome, details=details
        )

    def last(self, family: Family, file: Path | None) -> Deployment | None:
        """The deployment that stands in *file*, or in the file that was deployed to last."""
        records = self.deployments.history(family.id, file)
        return next((each for each in records if each.undone_at is None), None)
