# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run git without executing anything from the repository: safe options, and the user's own configuration.

A repository, with its ``.git``, may come from anyone. Its configuration can name programs (git-config(1)), which
attributes then select. Git has no option against that, so each such key is set again with a higher precedence: to the
value in the user's own configuration, or to a neutral one. In addition, the kernel confines git to the roots.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import Busy, InvalidArgument, LimitExceeded, McpdError, NoSpace, NotAuthorized, NotFound, ReadOnly
from mcpd.model import printable
from mcpd.servers.workstation.git.repository import Repository, check_worktree, discover
from mcpd.servers.workstation.processes import MAX_OUTPUT, Command, Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.settings import Settings

MAX_REVISION: Final = 1000
"""Maximum length of a revision in characters."""
_MOST: Final = 500
"""Maximum number of keys to override for a repository, as all are passed to each run."""
OWN: Final = frozenset({"local", "worktree"})
"""Scopes of the repository's own configuration."""
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
"""Configuration for all repositories: makes output uniform, and turns off what tools never need.

Without directory renames, the paths that a merge writes can be determined beforehand.
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
"""Configuration unless hooks are allowed; a git started for a submodule obeys the configuration there, too."""
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
"""Keys that name a program, and their values if the repository may not set them: git's default where it has one."""
_DRIVERS: Final = (
    (re.compile(r"diff\..*\.command", re.DOTALL), "false"),
    (re.compile(r"diff\..*\.textconv", re.DOTALL), "cat"),
    (re.compile(r"diff\..*\.cachetextconv", re.DOTALL), "false"),
    # Git's default for a file without a driver. A pattern of the repository could take any amount of memory.
    (re.compile(r"diff\..*\.x?funcname", re.DOTALL), "^[A-Za-z_$].*$"),
    (re.compile(r"merge\..*\.driver", re.DOTALL), "git merge-file --marker-size=%L %A %O %B"),
    (re.compile(r"hook\..*\.command", re.DOTALL), "true"),
    (re.compile(r"hook\..*\.enabled", re.DOTALL), "false"),
    (re.compile(r"trailer\..*\.(command|cmd)", re.DOTALL), ""),
    (re.compile(r"pager\..*", re.DOTALL), "cat"),
    # Used by Git LFS, which may well be a filter of the user's own.
    (re.compile(r"lfs\.extension\..*\.(clean|smudge)", re.DOTALL), "cat"),
    (re.compile(r"lfs\.customtransfer\..*\.path", re.DOTALL), "false"),
    (re.compile(r"lfs\.(.*\.)?standalonetransferagent", re.DOTALL), ""),
    (re.compile(r"submodule\..*\.update", re.DOTALL), "none"),
)
"""The same for keys with a freely chosen part."""
_FILTER: Final = re.compile(r"filter\.(?P<name>.*)\.(?P<what>clean|smudge|process|required)", re.DOTALL)
_SUBMODULE: Final = re.compile(r"submodule\.(?P<name>.*)\.[^.]*", re.DOTALL)
FILES: Final = frozenset(
    {
        "blame.ignorerevsfile", "commit.template", "core.attributesfile", "core.excludesfile", "diff.orderfile",
        "format.signaturefile", "gpg.ssh.allowedsignersfile", "gpg.ssh.revocationfile", "mailmap.file",
    }
)  # fmt: skip
"""Keys that name a file to read, which must be within the repository if that sets them."""
_SEARCH: Final = re.compile(r"\^\{/|(?:^|\.\.):/")
"""Matches revisions that search commit messages with a regular expression."""
_INCLUDES: Final = re.compile(r"include\.path|includeif\..*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a configuration."""

    scope: str
    """``system``, ``global`` (the user's), ``local`` or ``worktree`` (the repository's), ``command`` (ours)."""
    key: str
    """Full name of the key, with section and name in lower case."""
    value: str


def parsed(listing: bytes) -> list[Entry]:
    """Return the entries in the output of ``git config --list --show-scope -z``."""
    parts = listing.decode("utf-8", "surrogateescape").split("\0")
    found = []
    for scope, entry in zip(parts[::2], parts[1::2], strict=False):
        key, _, value = entry.partition("\n")
        found.append(Entry(scope, key, value))
    return found


def fixed(settings: Settings) -> dict[str, str]:
    """Return the configuration that does not depend on the repository."""
    return dict(_FIXED) if settings.allow_hooks else {**_FIXED, **_DISARMED}


def disarmed(entries: Sequence[Entry]) -> tuple[dict[str, str], frozenset[str]]:
    """Return the overrides for a repository with the configuration *entries*, and the names of the disabled filters.

    Raises :class:`~mcpd.errors.NotAuthorized` for a configuration that cannot be made safe: it includes other files,
    which may change, or has too many keys to override.
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
    """Return the configuration that disables the filters *names*.

    When reading, the content is used unfiltered. A command that *writes* fails at a file with such a filter instead, so
    that content that a filter should have encrypted never gets into the repository in plain text.
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
    """Return the override for *key* if the repository must not set it to *value*, or None if it may."""
    if key in FILES:
        harmless = not value.startswith(("/", "~", "%", ":")) and ".." not in value.split("/")
        return None if harmless else _NOWHERE
    if key in _PROGRAMS:
        return _PROGRAMS[key]
    return next((neutral for pattern, neutral in _DRIVERS if pattern.fullmatch(key)), None)


def environment(settings: Settings, top: str, config: Mapping[str, str], *, writes: bool) -> dict[str, str]:
    """Return the variables for git in the repository at *top*; *config* takes precedence over all files (git(1)).

    HOME is the user's, as ``~`` in the user's configuration refers to it.
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
    """Raise InvalidArgument if the revision *text* searches messages: its pattern could take any amount of memory."""
    if _SEARCH.search(text):
        raise InvalidArgument(
            f"'{printable(text)}': a search for a message (:/TEXT, ^{{/TEXT}}) is not taken as a revision; git_log with"
            " grep finds the commit's id"
        )


def revision(text: str) -> str:
    """Return *text* if git cannot mistake it for an option, for several lines or for a search.

    Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    check_search(text)
    if not text or text.startswith("-") or len(text) > MAX_REVISION or not text.isprintable():
        raise InvalidArgument(
            f"'{printable(text)}' is no revision: that is a branch, a tag, a commit's id or the like, does not begin"
            f" with '-' and has at most {MAX_REVISION} characters"
        )
    return text


_MOST_FILES: Final = 32
_MOST_BYTES: Final = 1024 * 1024
# Matches more than includes: other keys named path are the user's, too.
_PATH: Final = re.compile(r"^[ \t]*(?:\[[^\]\n]*\][ \t]*)?path[ \t]*=[ \t]*(.*?)[ \t]*$", re.IGNORECASE | re.MULTILINE)


def user_files(settings: Settings) -> tuple[str, ...]:
    """Return the user's configuration files that git reads first, including those that they include.

    Git fails if one of them exists but cannot be read.
    """
    base = settings.home / ".config" / "git"
    found: list[Path] = []
    todo = [base / "config", settings.home / ".gitconfig"]
    while todo and len(found) < _MOST_FILES:
        path = todo.pop()
        text = None if path in found else _text(path)
        if text is not None:
            found.append(path)
            todo += [_resolved(value, path.parent, settings) for value in _PATH.findall(text)]
    return tuple(map(str, (*found, base / "ignore", base / "attributes")))


def user_named(entries: Sequence[Entry], settings: Settings) -> tuple[str, ...]:
    """Return the files, besides :func:`user_files`, that the user's configuration tells git to read."""
    values = (entry.value for entry in entries if entry.scope == "global" and entry.key in FILES)
    return tuple(str(settings.home / value.removeprefix("~/")) for value in values if value.startswith(("~/", "/")))


def _resolved(value: str, base: Path, settings: Settings) -> Path:
    value = value[1:].partition('"')[0] if value.startswith('"') else re.split("[#;]", value)[0].rstrip()
    home = value.startswith("~/")
    return Path(os.path.normpath((settings.home if home else base) / value.removeprefix("~/" if home else "")))


def _text(path: Path) -> str | None:
    """Return the content of *path*, or None if it is not a readable file; git reports the fault."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


_MOST_MESSAGE: Final = 1000
"""Maximum length of git's message in an error, in characters."""
_MOST_CONFIG: Final = 1024 * 1024
_PIECE: Final = 100
_CLASSES: Final[tuple[tuple[str, type[McpdError]], ...]] = (
    ("No space left on device", NoSpace),
    ("Disk quota exceeded", NoSpace),
    ("Read-only file system", ReadOnly),
    ("unable to access", NotAuthorized),
    ("Permission denied", ReadOnly),
    (".lock': File exists", Busy),
    ("dubious ownership", NotAuthorized),
    ("did not match any file", NotFound),
    ("invalid reference: ", NotFound),
    ("is not a commit and a branch ", NotFound),
    ("Not a valid object name", NotFound),
    ("is not a valid branch name", InvalidArgument),
    ("a branch named ", InvalidArgument),
    (" exists; cannot create ", InvalidArgument),
    ("File name too long", InvalidArgument),
    ("Cannot switch branch to a non-commit", InvalidArgument),
    ("reference is not a tree", InvalidArgument),
    ("not a tree object", InvalidArgument),
    (" type, but the object dereferences to ", InvalidArgument),
    ("remote tracking branches", InvalidArgument),
    ("is already checked out at", InvalidArgument),
    ("is already used by worktree at", InvalidArgument),
    ("is beyond a symbolic link", InvalidArgument),
    ("is in submodule", InvalidArgument),
    ("are ignored by one of your", InvalidArgument),
)
"""Parts of git's messages, and the error classes that are more specific than McpdError."""


async def find(call: Call, path: str) -> Repository:
    """Return the repository of *path*, a directory or a file in it.

    Searches no further up than the root that contains *path*. Raises :class:`~mcpd.errors.NotFound` if there is none,
    and :class:`~mcpd.errors.NotAuthorized` if any part of it is outside the roots.
    """
    repository, files = await call.in_thread(lambda: (discover(call, path), user_files(call.settings)))
    first = replace(repository, hook_safe=tuple(fixed(call.settings).items()), readable=files)
    listing = await git(call, first, "config", "--list", "--show-scope", "-z", most=_MOST_CONFIG)
    if listing.truncated:
        raise LimitExceeded(f"{repository.place.shown}: its configuration has more than {_MOST_CONFIG} bytes")
    entries = parsed(listing.stdout)
    own = {entry.key: entry.value for entry in entries if entry.scope in OWN}
    if not own:
        # It has no configuration, or git refuses it, for example because of its owner: this reports the reason.
        await git(call, first, "rev-parse", "--git-dir")
    if "core.worktree" in own:
        await call.in_thread(lambda: check_worktree(call.jail, repository, own["core.worktree"]))
    off, filters = ({}, frozenset[str]()) if call.settings.allow_hooks else disarmed(entries)
    return replace(
        first,
        hook_safe=tuple({**off, **dict(first.hook_safe)}.items()),
        filters=filters,
        readable=(*files, *user_named(entries, call.settings)),
    )


async def git(
    call: Call,
    repository: Repository,
    *arguments: str,
    writes: bool = False,
    stdin: bytes = b"",
    most: int = MAX_OUTPUT,
    accept: Collection[int] = (0,),
    on_line: Callable[[bytes], None] | None = None,
) -> Completed:
    """Run git with *arguments* in the top level of *repository*.

    Paths in *arguments* are relative to it (:meth:`.Repository.pathspec`) and taken literally; check revisions first
    with :func:`revision`. At most *most* bytes of stdout are kept; a command that writes more is ended, which is not an
    error: see ``truncated``. With *on_line*, which is called with each line, it continues, and the last bytes are kept.
    Raises McpdError with git's own message for an exit status that is not in *accept*.
    """
    config = {**dict(repository.hook_safe), **without_filters(repository.filters, writes=writes)}
    done = await call.run(
        Command(
            argv=("git", *arguments),
            place=repository.place,
            env=environment(call.settings, repository.place.path, config, writes=writes),
            writes=writes,
            git_directories=repository.directories if writes else (),
            readable=repository.readable,
            stdin=stdin,
            most=most,
            keep="head" if on_line is None else "tail",
            on_line=on_line,
        )
    )
    ended = done.truncated and on_line is None
    if done.code not in accept and not ended:
        raise failed(repository, arguments, done)
    return done


def failed(repository: Repository, arguments: Sequence[str], done: Completed) -> McpdError:
    """Return the error for git with *arguments* that ended with the result *done*."""
    said = message(done.stderr) or message(done.stdout) or f"it ended with status {done.code} and said nothing"
    command = next(each for each in arguments if not each.startswith("-"))
    text = f"git {command} in {repository.place.shown}: {said}"
    if repository.filters and " filter '" in said:
        text += (
            "; the repository's own configuration names that filter, which is not run: set allow_hooks if you trust the"
            " repository, or have the filter in your own ~/.gitconfig"
        )
    return next((cls(text) for part, cls in _CLASSES if part in said), McpdError(text))


def message(said: bytes) -> str:
    """Return git's output *said* as one printable line."""
    text = said.decode("utf-8", "replace")
    lines = (
        line.removeprefix("fatal: ").removeprefix("error: ").removeprefix("hint: ").strip()
        for line in text.splitlines()
    )
    joined = "; ".join(line for line in lines if line and line != "hint:")
    pieces = (joined[start : start + _PIECE] for start in range(0, min(len(joined), _MOST_MESSAGE), _PIECE))
    return "".join(printable(piece) for piece in pieces)[:_MOST_MESSAGE]
