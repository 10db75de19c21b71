# SPDX-License-Identifier: LGPL-2.1-or-later
"""What git is kept from: running programs that a repository names, asking, fetching, and reading options from names.

A repository may come from anybody, with its ``.git``. Its configuration can name programs (git-config(1)), which
attributes then choose. Git has no switch against that; so whatever it names is set again with a higher precedence: to
what the user's own configuration says, or to nothing. The kernel holds git to the roots besides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, NotAuthorized
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcpd.servers.workstation.settings import Settings

MAX_REVISION: Final = 1000
"""Characters of a revision."""
_MOST: Final = 500
"""How many things to disarm a repository may name: all are handed over with each run."""
OWN: Final = frozenset({"local", "worktree"})
"""The scopes that are the repository's."""
_NOWHERE: Final = "/dev/null"

_FIXED: Final = {
    "advice.detachedHead": "false",
    "color.advice": "false",
    "color.ui": "false",
    "color.branch": "false",
    "color.diff": "false",
    "color.interactive": "false",
    "color.status": "false",
    "column.ui": "never",
    "core.abbrev": "auto",
    "core.pager": "cat",
    "core.quotePath": "false",
    "credential.helper": "",
    "diff.algorithm": "default",
    "diff.indentHeuristic": "true",
    "diff.renameLimit": "1000",
    "diff.suppressBlankEmpty": "false",
    "gc.auto": "0",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "log.showSignature": "false",
    "maintenance.auto": "false",
    "merge.directoryRenames": "false",
    "protocol.allow": "never",
    "user.useConfigOnly": "true",
}
"""For all repositories: for output that is the same everywhere, and for what never takes place in a tool.

Without directory renames, the paths that a merge writes can be told beforehand.
"""
_DISARMED: Final = {
    "core.alternateRefsCommand": "true",
    "core.fsmonitor": "false",
    "core.hooksPath": _NOWHERE,
    "diff.ignoreSubmodules": "dirty",
    "diff.submodule": "short",
    "push.recurseSubmodules": "no",
    "status.submoduleSummary": "false",
    "submodule.recurse": "false",
}
"""For all but those whose programs may run. A git that looks into a submodule obeys the configuration there, too."""
_PROGRAMS: Final = {
    "core.editor": ":",
    "core.gitproxy": "false",
    "core.askpass": "",
    "core.sshcommand": "false",
    "diff.external": "false",
    "gc.recentobjectshook": "",
    "gpg.program": "gpg",
    "gpg.openpgp.program": "gpg",
    "gpg.ssh.program": "ssh-keygen",
    "gpg.ssh.defaultkeycommand": "",
    "gpg.x509.program": "gpgsm",
    "interactive.difffilter": "cat",
    "sequence.editor": ":",
    "uploadpack.packobjectshook": "",
}
"""Keys that name a program, and what they say when the repository may not: git's own default where it has one."""
_DRIVERS: Final = (
    (re.compile(r"diff\..*\.command", re.DOTALL), "false"),
    (re.compile(r"diff\..*\.textconv", re.DOTALL), "cat"),
    (re.compile(r"diff\..*\.cachetextconv", re.DOTALL), "false"),
    # What git does by itself with a file that has no driver. A pattern of the repository may take any amount of memory.
    (re.compile(r"diff\..*\.x?funcname", re.DOTALL), "^[A-Za-z_$].*$"),
    (re.compile(r"merge\..*\.driver", re.DOTALL), "git merge-file --marker-size=%L %A %O %B"),
    (re.compile(r"hook\..*\.command", re.DOTALL), "true"),
    (re.compile(r"hook\..*\.enabled", re.DOTALL), "false"),
    (re.compile(r"trailer\..*\.(command|cmd)", re.DOTALL), ""),
    (re.compile(r"pager\..*", re.DOTALL), "cat"),
    # What Git LFS runs, which may well be a filter of the user's own.
    (re.compile(r"lfs\.extension\..*\.(clean|smudge)", re.DOTALL), "cat"),
    (re.compile(r"lfs\.customtransfer\..*\.path", re.DOTALL), "false"),
    (re.compile(r"lfs\.(.*\.)?standalonetransferagent", re.DOTALL), ""),
    (re.compile(r"submodule\..*\.update", re.DOTALL), "none"),
)
"""The same for keys with a part that anybody may choose."""
_FILTER: Final = re.compile(r"filter\.(?P<name>.*)\.(?P<what>clean|smudge|process|required)", re.DOTALL)
_SUBMODULE: Final = re.compile(r"submodule\.(?P<name>.*)\.[^.]*", re.DOTALL)
FILES: Final = frozenset(
    {
        "blame.ignorerevsfile", "commit.template", "core.attributesfile", "core.excludesfile", "diff.orderfile",
        "format.signaturefile", "gpg.ssh.allowedsignersfile", "gpg.ssh.revocationfile", "mailmap.file",
    }
)  # fmt: skip
"""Keys that name a file to read, which a repository may have in itself only."""
_SEARCH: Final = re.compile(r"\^\{/|(?:^|\.\.):/")
"""What makes a revision of the first commit whose message matches: anywhere, or where one begins."""
_INCLUDES: Final = re.compile(r"include\.path|includeif\..*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a configuration."""

    scope: str
    """``system``, ``global`` (the user's), ``local`` or ``worktree`` (the repository's), ``command`` (ours)."""
    key: str
    """Section and name in lower case."""
    value: str


def parsed(listing: bytes) -> list[Entry]:
    """The entries in the output of ``git config --list --show-scope -z``."""
    parts = listing.decode("utf-8", "surrogateescape").split("\0")
    found = []
    for scope, entry in zip(parts[::2], parts[1::2], strict=False):
        key, _, value = entry.partition("\n")
        found.append(Entry(scope, key, value))
    return found


def fixed(settings: Settings) -> dict[str, str]:
    """Configuration that does not depend on the repository."""
    return dict(_FIXED) if settings.allow_hooks else {**_FIXED, **_DISARMED}


def disarmed(entries: Sequence[Entry]) -> tuple[dict[str, str], frozenset[str]]:
    """What to set for a repository with the configuration *entries*, and the names of the filters that are off.

    Raises :class:`~mcpd.errors.NotAuthorized` for a configuration that cannot be disarmed: it includes other files,
    which may change, or names too much.
    """
    users = {entry.key: entry.value for entry in entries if entry.scope in {"system", "global"}}
    made: dict[str, str] = {}
    filters: set[str] = set()
    names: set[str] = set()
    for entry in entries:
        if entry.scope not in OWN:
            continue
        key = entry.key
        if _INCLUDES.fullmatch(key):
            raise NotAuthorized(
                f"the repository's configuration includes other files ({printable(key)} = {printable(entry.value)}),"
                " which may name programs; take that out of .git/config, or set allow_hooks if you trust the repository"
            )
        if match := _FILTER.fullmatch(key):
            if _has_filter(users, match["name"]):
                made[key] = users.get(key, "false" if match["what"] == "required" else "")
            else:
                filters.add(match["name"])
        elif match := _SUBMODULE.fullmatch(key):
            names.add(match["name"])
        neutral = _neutral(key, entry.value)
        if neutral is not None:
            made[key] = users.get(key, neutral)
    made |= {f"submodule.{name}.ignore": "dirty" for name in names}
    if len(made) + len(filters) > _MOST:
        raise NotAuthorized(
            f"the repository's configuration names more than {_MOST} programs and submodules, which cannot all be"
            " switched off; set allow_hooks if you trust the repository"
        )
    return made, frozenset(filters)


def without_filters(names: Iterable[str], *, writes: bool) -> dict[str, str]:
    """What switches the filters *names* off.

    For reading, files are taken as they are. A command that *writes* fails at a file with such a filter instead: what
    a filter should have encrypted never gets into the repository as it is.
    """
    made: dict[str, str] = {}
    for name in names:
        prefix = f"filter.{name}."
        made |= {prefix + "clean": "", prefix + "smudge": "", prefix + "process": ""}
        made[prefix + "required"] = "true" if writes else "false"
    return made


def _has_filter(users: Mapping[str, str], name: str) -> bool:
    return any(f"filter.{name}.{what}" in users for what in ("clean", "smudge", "process"))


def _neutral(key: str, value: str) -> str | None:
    """What *key* is set to where the repository must not say *value*; None if it may."""
    if key in FILES:
        harmless = not value.startswith(("/", "~", "%", ":")) and ".." not in value.split("/")
        return None if harmless else _NOWHERE
    if key in _PROGRAMS:
        return _PROGRAMS[key]
    return next((neutral for pattern, neutral in _DRIVERS if pattern.fullmatch(key)), None)


def environment(settings: Settings, top: str, config: Mapping[str, str], *, writes: bool) -> dict[str, str]:
    """The variables for git in the repository at *top*, with *config* above all other configuration (git(1)).

    The home is the user's, which ``~`` in the user's configuration means.
    """
    variables = {
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_ASKPASS": "",
        "GIT_CEILING_DIRECTORIES": str(Path(top).parent),
        "GIT_EDITOR": ":",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_MERGE_AUTOEDIT": "no",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "1" if writes else "0",
        "GIT_PAGER": "cat",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_SEQUENCE_EDITOR": ":",
        "GIT_SSH_COMMAND": "false",
        "GIT_TERMINAL_PROMPT": "0",
        "HOME": str(settings.home),
        "SSH_ASKPASS": "",
        "XDG_CONFIG_HOME": str(settings.home / ".config"),
        "GIT_CONFIG_COUNT": str(len(config)),
    }
    for number, (key, value) in enumerate(config.items()):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables


def check_search(text: str) -> None:
    """Raise InvalidArgument if the revision *text* searches messages: its pattern may take any amount of memory."""
    if _SEARCH.search(text):
        raise InvalidArgument(
            f"'{printable(text)}': a search for a message (:/TEXT, ^{{/TEXT}}) is not taken as a revision; git_log with"
            " grep finds the commit's id"
        )


def revision(text: str) -> str:
    """*text*, which git cannot take for an option, for several lines or for a search.

    Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    check_search(text)
    if not text or text.startswith("-") or len(text) > MAX_REVISION or not text.isprintable():
        raise InvalidArgument(
            f"'{printable(text)}' is no revision: that is a branch, a tag, a commit's id or the like, does not begin"
            f" with '-' and has at most {MAX_REVISION} characters"
        )
    return text
