# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mcpctl doctor`` checks of the registries, and of the keys whose signatures are trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.checks import Check
from mcpd.cli.registries import faults_shown, of_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.cli.checks import Result
    from mcpd.paths import Paths, Scope

_BAD: Final[Mapping[str, tuple[Result, str]]] = {
    "invalid": ("fail", "mend it in {file}, or remove it there"),
    "untrusted": (
        "fail",
        "'mcpctl key add' trusts the key that signs it, then 'mcpctl refresh'; 'mcpctl source remove {url}' ends this",
    ),
    "failed": ("fail", "'mcpctl refresh' tries again; 'mcpctl source remove {url}' ends this"),
    "refused": ("warn", "what was read before is used; if what is there now is meant, the problem says what to do"),
    "partly": ("warn", "the other files are used, and of these what was read before; 'mcpctl refresh' tries again"),
    "offline": ("warn", "what was read before is used; 'mcpctl refresh' tries again"),
}
"""By the state of a registry that is not as it should be."""
_UNUSED: Final = frozenset({"untrusted", "invalid"})
_FAULTS: Final = 3
"""Faults in the entries of a registry that are named."""


def key_checks(paths: Paths, scope: Scope) -> Iterator[Check]:
    """Files among the trusted keys that cannot be used, by what mcpd would find there."""
    from mcpd.trust.keys import Keys  # noqa: PLC0415 - with all models, which other commands do without

    keys = Keys(paths, scope)
    for problem in keys.problems():
        yield Check("key", "warn", problem, "nothing is trusted for it; put a public Ed25519 key there, or remove it")
    yield Check("keys", "ok", f"{len(keys.list())} trusted")


def source_checks(sources: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """What is wrong with *sources*, as ListSources gives them."""
    for source in sources:
        place = source.get("url") or source.get("file", "")
        if source["state"] in _BAD:
            result, advice = _BAD[source["state"]]
            if source["state"] == "refused" and not source.get("updated"):
                result, advice = "fail", "nothing of it is known; what is to be done, the problem says"
            problem = str(source.get("problem") or source["state"]).removeprefix(f"{place}: ")
            yield Check(
                "registry", result, f"{place}: {problem}", advice.format(url=place, file=source.get("file", ""))
            )
        if source["state"] not in _UNUSED and (number := of_faults(source)):
            said = f"{place}: {number}: {'; '.join(faults_shown(source, _FAULTS, 'mcpctl source list'))}"
            yield Check("registry", "warn", said, "who publishes it can mend them; its other entries are offered")
    yield Check("registries", "ok", f"{len(sources)} listed")
