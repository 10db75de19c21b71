# SPDX-License-Identifier: LGPL-2.1-or-later
"""The configurations of a scope together with the caller's own client files."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.cli.client_runtime import changing, is_writable, profile_option, service
from mcpd.clients.audit import Audit
from mcpd.clients.deployments import Deployments
from mcpd.clients.files import client_file, real_place
from mcpd.clients.service import now
from mcpd.clients.tree import Tree
from mcpd.errors import NotSupported
from mcpd.paths import Scope, from_environment

if TYPE_CHECKING:
    import argparse

    from mcpd.clients.audit import Outcome
    from mcpd.clients.families import Family
    from mcpd.clients.history import Deployment
    from mcpd.clients.service import Orchestration
    from mcpd.model import JsonValue
    from mcpd.paths import Paths


def file_option(file: Path) -> str:
    """Return the option for *file* in a suggested command."""
    return f" --file {shlex.quote(str(file))}"


@dataclass(frozen=True, slots=True)
class Machine:
    """The configurations of the scope, and the deployments into the caller's files."""

    paths: Paths
    configurations: Orchestration
    deployments: Deployments
    is_mine: bool
    """True if the caller may change the configurations."""

    @classmethod
    def of(cls, args: argparse.Namespace, *, publishes: bool = False) -> Machine:
        """Open the configurations and deployments that *args* select.

        Raises :class:`~mcpd.errors.NotAuthorized` if *publishes* is true and the caller may not publish.
        """
        paths = from_environment()
        configurations = changing(args) if publishes else service(args)
        deployments = Deployments(paths.user, now, home=paths.home)
        return cls(paths, configurations, deployments, is_mine=not args.system or is_writable(configurations.tree.root))

    @property
    def recording_tree(self) -> Tree | None:
        """The tree of configurations to record deployments in, if the caller may write it."""
        return self.configurations.tree if self.is_mine else None

    def file(self, family: Family, given: str | None) -> Path:
        """Return the file *given* on the command line, else the usual file of *family*."""
        return client_file(family, self.paths.home, os.environ, Path(given).absolute() if given else None)

    def deploying(self, family: Family, file: Path) -> str:
        """Return the mcpctl command that redeploys into *file* the latest configuration of its profile."""
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
        """Audit *event* in the directory of the caller's deployments, which no server can access."""
        Audit(Tree(self.paths.user.deployments, Scope.USER), now).record(
            event, client_id=family.id, profile_id=profile_id, artifact_id=artifact_id, outcome=outcome, details=details
        )

    def last(self, family: Family, file: Path | None) -> Deployment | None:
        """Return the last deployment into *file* (None: any file) that has not been undone; None if there is none."""
        records = self.deployments.history(family.id, file)
        return next((each for each in records if each.undone_at is None), None)
