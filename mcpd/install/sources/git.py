# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package source ``git``: a directory of a git repository.

Nothing of the repository is executed: no hooks, templates, submodules or filters. There are no credential prompts,
and the host's git configuration is not read. Objects are checked as they are received; ``.git`` is not kept.
"""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from mcpd.errors import BuildFailed, IntegrityMismatch, InvalidManifest, SourceUnavailable
from mcpd.install.hostconfig import git_config
from mcpd.install.sources.base import Resolution
from mcpd.install.sources.local import check_readable, copy_project, refuse_own
from mcpd.install.sources.project import ProjectBuild, project_directory
from mcpd.install.trees import pin, pinning
from mcpd.install.workbench import find_program
from mcpd.model import COMMIT, check_git_url, strip_credentials
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.install.sources.base import Outcome
    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, Source

REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+@=-]*", re.ASCII)
_ENVIRONMENT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "SSH_ASKPASS": "/bin/false",
    "GIT_ALLOW_PROTOCOL": "file:https",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_ADVICE": "0",
}
_SETTINGS: Final = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.autocrlf", "false"),
    ("protocol.ext.allow", "never"),
    ("submodule.recurse", "false"),
    ("transfer.fsckObjects", "true"),
    ("credential.helper", ""),
    ("gc.auto", "0"),
    ("advice.detachedHead", "false"),
)
_TRUSTING: Final = "[safe]\n\tdirectory = *\n"
_FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-gc")
_NEEDS_WHOLE: Final = ("shallow", "not our ref", "unadvertised", "does not support")


class GitRecipe:
    """Recipe for the directory ``source.path`` of ``source.url`` at ``source.rev``."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._source = source
        self._project = ProjectBuild(bench)
        self._repository = bench.scratch / "repository"
        self._commit = ""
        self._local: Path | None = None

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        check_git_url(source.url)
        if source.rev and not _is_revision(source.rev):
            raise InvalidManifest(f"{entry.id}: source.rev {source.rev[:100]!r} is not a branch, tag or commit id")
        if ".git" in PurePosixPath(source.path).parts:
            raise InvalidManifest(f"{entry.id}: source.path {source.path[:200]!r} is not part of the project")

    async def resolve(self) -> Resolution:
        """See :class:`~mcpd.install.sources.base.Recipe`; dependencies are known only after :meth:`fetch`."""
        return Resolution()

    async def head(self) -> str:
        """Return the current commit of the wanted branch or tag, without fetching it.

        Raises :class:`~mcpd.errors.SourceUnavailable`.
        """
        self._local = await in_thread(_local_repository, self._source.url)
        self._repository.mkdir()
        wanted = self._source.rev or "HEAD"
        answer = await self._git(
            ["ls-remote", "--", self._place(), wanted, f"{wanted}^{{}}"], doing=f"querying {self._name()}", network=True
        )
        lines = [line.partition("\t") for line in answer.decode("utf-8", "replace").splitlines()]
        found = {name: commit for commit, _, name in lines}
        for name in (f"refs/heads/{wanted}", f"refs/tags/{wanted}^{{}}", f"refs/tags/{wanted}", wanted):
            if COMMIT.fullmatch(found.get(name, "")):
                return found[name]
        raise self._unknown()

    async def fetch(self) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        self._local = await in_thread(_local_repository, self._source.url)
        self._repository.mkdir()
        await self._git(["init", "--quiet", "--template="], doing="preparing", network=False)
        fetched = await self._fetch_revision()
        try:
            found = await self._git(["rev-parse", "--verify", f"{fetched}^{{commit}}"], doing="looking", network=False)
        except BuildFailed as error:
            raise self._unknown() from error
        self._commit = found.decode().strip()
        if COMMIT.fullmatch(self._source.rev) and self._commit != self._source.rev:
            raise IntegrityMismatch(f"{self._name()} is at {self._commit}, but the entry pins rev {self._source.rev}")
        await self._git(
            ["checkout", "--quiet", "--force", "--no-recurse-submodules", "--detach", self._commit],
            doing=f"checking out {self._name()}",
            network=False,
        )
        self._bench.stage(30, 40)
        async with pinning(lambda: pin(self._root())) as root:
            await copy_project(self._bench, root)
        await self._project.fetch()

    async def build(self) -> Outcome:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        return await self._project.build({"rev": self._commit})

    async def _fetch_revision(self) -> str:
        """Fetch the wanted revision; return its name in the new repository."""
        wanted = self._source.rev or "HEAD"
        try:
            await self._fetch(["--depth=1"], wanted)
        except SourceUnavailable as error:
            if "find remote ref" in error.message:
                raise self._unknown() from error
            if not any(mark in error.message for mark in _NEEDS_WHOLE):
                raise
            # The server does not support shallow clones, or serves a single commit only as part of a branch.
            everything = COMMIT.fullmatch(wanted)
            await self._fetch([], "+refs/*:refs/remotes/all/*" if everything else wanted)
            return wanted if everything else "FETCH_HEAD"
        return "FETCH_HEAD"

    async def _fetch(self, options: Sequence[str], wanted: str) -> None:
        await self._git(
            [
                *_FETCH,
                *options,
                "--",
                self._place(),
                wanted,
            ],
            doing=f"fetching {self._name()}",
            network=True,
        )

    def _place(self) -> str:
        return self._local.as_uri() if self._local else strip_credentials(self._source.url)

    async def _git(self, arguments: Sequence[str], *, doing: str, network: bool) -> bytes:
        local = self._local
        if local is not None:
            await in_thread(refuse_own, local, self._bench)
            await in_thread(check_readable, local, self._bench.tools.scope)
        settings = [*_SETTINGS, *_credentials(self._source.url)]
        host = git_config()
        environment = _ENVIRONMENT | host.env | {"GIT_CONFIG_COUNT": str(len(settings))}
        if local is not None:
            # Trust a local repository of any owner. The git process that serves it does not get the settings of this
            # one, so the setting has to be in a file.
            trusting = self._bench.scratch / "gitconfig"
            trusting.write_text(_TRUSTING)
            environment["GIT_CONFIG_GLOBAL"] = str(trusting)
        for number, (key, value) in enumerate(settings):
            environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return await self._bench.run(
            [find_program("git"), *arguments],
            doing=doing,
            network=network,
            cwd=self._repository,
            env=environment,
            readable=host.readable,
            pinned=local,
            watch=self._repository if network else None,
        )

    def _root(self) -> Path:
        """Return the project's directory in the checkout.

        Raises :class:`~mcpd.errors.InvalidManifest` if it does not exist, or if a link in its path leaves the
        repository.
        """
        return project_directory(self._repository.resolve(), self._source.path, self._bench.entry.id, self._name())

    def _unknown(self) -> SourceUnavailable:
        return SourceUnavailable(f"{self._name()} does not exist: no branch, tag or full commit id has that name")

    def _name(self) -> str:
        at = f" at {self._source.rev}" if self._source.rev else ""
        return strip_credentials(self._source.url) + at


def _is_revision(rev: str) -> bool:
    return (
        bool(REVISION.fullmatch(rev)) and ".." not in rev and "@{" not in rev and not rev.endswith((".lock", "/", "."))
    )


def _credentials(url: str) -> list[tuple[str, str]]:
    """Return git's setting with the credentials of *url*, which must not be in world-readable command lines."""
    parts = urlsplit(url)
    if not (parts.username or parts.password):
        return []
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    header = f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}"
    return [(f"http.{strip_credentials(url)}.extraHeader", header)]


def _local_repository(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(os.path.realpath(unquote(parts.path))) if parts.scheme == "file" else None
