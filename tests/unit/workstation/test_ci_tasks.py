# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks as they are read from the text of build files."""

from __future__ import annotations

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.servers.workstation.ci.projects import (
    MAX_TASKS,
    expanded,
    gradle_tasks,
    ini_sections,
    just_recipes,
    makefile_targets,
    nox_sessions,
    plain_json,
    rake_tasks,
    taskfile_tasks,
    tox_environments,
    usable,
    zig_steps,
)

pytestmark = pytest.mark.process

MAKEFILE = """\
# Comment: no target
CC := gcc
LATER ::= x
export PATH := $(HOME)/bin:$(PATH)
.PHONY: all clean
all: main.o util.o  ## Build it all
main.o util.o: common.h
\tcc: not a target
%.o: %.c
$(OBJ): x
ifeq ($(A),b:c)
clean::
\trm -f *.o
endif
dir/out.txt: in.txt; cp $< $@
install: PREFIX = /usr
define RECIPE
inside: no
endef
long \\
  continued: dep
.DELETE_ON_ERROR:
-n: no
"""


def test_makefile_targets_are_the_explicit_ones() -> None:
    targets, default = makefile_targets(MAKEFILE)
    assert [name for name, _ in targets] == ["all", "main.o", "util.o", "clean", "dir/out.txt", "long", "continued"]
    assert dict(targets)["all"] == "Build it all"
    assert default == "all"


def test_makefile_names_its_default_goal() -> None:
    assert makefile_targets(".DEFAULT_GOAL := docs\nall: x\ndocs:\n")[1] == "docs"
    assert makefile_targets("X = 1\n") == ([], None)


NAMES = st.from_regex(r"[a-z][a-z0-9_.-]{0,12}", fullmatch=True).filter(lambda name: name not in {"else", "endif"})


@given(st.lists(NAMES, min_size=1, max_size=8, unique=True))
def test_makefile_targets_are_those_that_make_knows(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    makefile = tmp_path_factory.mktemp("make") / "Makefile"
    makefile.write_text("".join(f"{name}: ; @echo made {name}\n" for name in names))
    targets, default = makefile_targets(makefile.read_text())
    assert [name for name, _ in targets] == names
    made = subprocess.run(["make", "-f", str(makefile)], capture_output=True, text=True, check=True)
    assert made.stdout == f"made {default}\n"


def test_justfile_recipes() -> None:
    text = """\
set shell := ["bash", "-c"]
version := "1:2"
alias t := test
import 'other:just'
# Run the tests
test target="a:b" *args:
    cargo test
@quiet:
    echo
_hidden:
    echo
[private]
secret:
    echo
[no-cd]
build *FLAGS: test
    echo x: y
"""
    assert just_recipes(text) == [("test", "Run the tests"), ("quiet", ""), ("build", "")]


def test_taskfile_tasks() -> None:
    text = """\
version: '3'
vars:
  name: {sh: date}
tasks:
  # All of it
  default:
    desc: "Make it all"
    cmds:
      - task: build
  build: go build ./...

  'docs:serve':
    internal: false
  helper:
    internal: true
    desc: Not for you
  "rm:*:x":
    cmds: [x]
  last:
    env: {desc: no}
env:
  other: x
"""
    assert taskfile_tasks(text) == [("default", "Make it all"), ("build", ""), ("docs:serve", ""), ("last", "")]
    assert taskfile_tasks("tasks:\n    a:\n        desc: b\n") == [("a", "b")]
    assert taskfile_tasks("version: 3\nothers:\n  a: b\n") == []


def test_rake_tasks_have_their_namespaces() -> None:
    text = """\
require "rake"
desc "Run all"
task default: [:spec]
task :spec do
  sh "rspec"
end
namespace :db do
  desc 'Move on'
  task :migrate, [:version] => :environment do
    task_force
  end
  namespace "seed" do
    task("load:all") { }
  end
end
task "last" => :spec
"""
    assert rake_tasks(text) == [
        ("default", "Run all"),
        ("spec", ""),
        ("db:migrate", "Move on"),
        ("db:seed:load:all", ""),
        ("last", ""),
    ]


def test_nox_sessions() -> None:
    text = """\
import nox
@nox.session
def tests(session):
    session.run("pytest")
@nox.session(
    python=["3.11", "3.12"],
    name="lint-all",
)
@other
def lint(session): ...
@session(reuse_venv=True)
def docs(session): ...
def helper(session): ...
"""
    assert [name for name, _ in nox_sessions(text)] == ["tests", "lint-all", "docs"]


def test_gradle_tasks() -> None:
    text = """\
tasks.register("hello") { }
tasks.register<Copy>("copyAll") { }
task oldStyle(type: Zip) { }
task("viaCall")
def made = tasks.register('assigned')
tasks.named("test") { }
"""
    assert [name for name, _ in gradle_tasks(text)] == ["hello", "copyAll", "oldStyle", "viaCall", "assigned"]


def test_zig_steps() -> None:
    text = 'const run = b.step("run", "Run the app");\nconst t = b.step(\n    "test",\n    "Run unit tests",\n);'
    assert zig_steps(text) == [("run", "Run the app"), ("test", "Run unit tests")]


def test_tox_environments() -> None:
    text = """\
[tox]
envlist =
    py{311,312}-django{4,5}
    lint, docs
[testenv]
commands = pytest {posargs}
[testenv:docs]
description = Build them
[testenv:release]
[testenv:py{39,310}]
"""
    assert [name for name, _ in tox_environments(ini_sections(text))] == [
        "py311-django4",
        "py311-django5",
        "py312-django4",
        "py312-django5",
        "lint",
        "docs",
        "release",
    ]
    assert dict(tox_environments(ini_sections(text)))["docs"] == "Build them"


def test_what_is_no_ini_file_is_told() -> None:
    with pytest.raises(ValueError, match="no section headers"):
        ini_sections("a = 1\n")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_json_leaves_json_as_it_is(value: object) -> None:
    assert json.loads(plain_json(json.dumps(value, ensure_ascii=False))) == value


def test_plain_json_takes_comments_and_last_commas_away() -> None:
    text = '{ // one\n "a//b": "c,]", /* two\n */ "d": [1, 2,\n],\n}'
    assert json.loads(plain_json(text)) == {"a//b": "c,]", "d": [1, 2]}


def test_names_that_are_options_or_no_text_are_left_out() -> None:
    assert usable([("-x", ""), ("", ""), ("a\nb", ""), ("a\x1b", ""), (" a", ""), ("a b", "x\ny")]) == [
        ("a b", "x\\ny")
    ]


@given(st.text(alphabet="abc:=#\n\t ${}(),.@\"'[]/*\\-", max_size=400))
def test_no_text_is_a_fault(text: str) -> None:
    for parse in (just_recipes, taskfile_tasks, rake_tasks, nox_sessions, gradle_tasks, zig_steps):
        assert all(name for name, _ in parse(text))
    makefile_targets(text)
    plain_json(text)
    expanded(text)


HOSTILE = {
    "quotes": '"\\' * 200_000,
    "braces": "{a,b}" * 100_000,
    "comments": "/*" * 200_000,
    "commas": ", \n" * 200_000,
    "targets": "a b " * 100_000 + ":",
    "steps": '.step("' * 100_000,
    "steps-and-spaces": ".step(" + " " * 400_000,
    "sessions": "@nox.session(name='" * 40_000 + "\n" + "name = " * 40_000,
    "tasks": "task " * 100_000,
    "taskfile": "tasks:\n" + " a:" * 100_000 + "\n" + " b:\n" * 100_000,
    "task-names": "task " + "a" * 400_000,
    "many": "".join(f"task :t{number}\nt{number}:\n" for number in range(20_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_in_no_time_to_speak_of(name: str) -> None:
    text = HOSTILE[name]
    for parse in (just_recipes, taskfile_tasks, rake_tasks, nox_sessions, gradle_tasks, zig_steps):
        assert len(parse(text)) <= MAX_TASKS
    assert len(makefile_targets(text)[0]) <= MAX_TASKS
    assert len(expanded(text)) <= MAX_TASKS
    plain_json(text)
