# SPDX-License-Identifier: LGPL-2.1-or-later
"""Command line of mcpctl: ensembles and their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.argument_types import positive, seconds

if TYPE_CHECKING:
    import argparse

    from mcpd.cli.parser import _Adder

HANDLER: Final = "mcpd.cli.ensemble_runtime:run"
COMMANDS: Final = "mcpd.cli.commands."
RUN: Final = COMMANDS + "ensemble_run:run"
"""Handler of ``mcpctl ensemble run``."""


def add_ensembles(add: _Adder) -> None:
    """Add ``mcpctl ensemble``.

    The namespace of the commands that read files has ``action`` ("module:function"), which ``handler`` calls. All have
    ``project``, the project directory to look in first.
    """
    ensemble = add.group("ensemble", "run ensembles of agents, and show ensembles and runs")
    _reading(ensemble)
    _running(ensemble)


def _reading(ensemble: _Adder) -> None:
    _command(ensemble, "list", "ensemble:list_ensembles", "list the ensembles")
    show = _command(ensemble, "show", "ensemble:show", "show an ensemble and its agents")
    _name(show)
    validate = _command(
        ensemble, "validate", "ensemble:validate", "check ensembles; exit with status 1 if there are errors"
    )
    validate.add_argument(
        "ensembles",
        metavar="NAME|FILE",
        nargs="*",
        help="an ensemble, or a file NAME.yaml (default: all ensembles)",
    )
    validate.add_argument(
        "--tools",
        action="store_true",
        help="start the servers that it calls, and check that they have the tools",
    )
    graph = _command(ensemble, "graph", "ensemble:graph", "draw the dependencies of the agents")
    _name(graph)
    graph.add_argument("--mermaid", action="store_true", help="print a flowchart for Mermaid")
    graph.add_argument("--run", dest="run_id", metavar="ID", help="show the states of the agents in this run")
    runs = _command(ensemble, "runs", "ensemble_runs:runs", "list runs, or show one of them")
    runs.add_argument(
        "runs", metavar="NAME|ID", nargs="?", help="an ensemble, or one run, such as NAME/20260131-120000-000"
    )
    runs.add_argument("--limit", type=positive, default=20, metavar="N", help="show at most N runs (20)")
    runs.add_argument("--metrics", action="store_true", help="show the success rate, duration and cost of the ensemble")


def _running(ensemble: _Adder) -> None:
    run = ensemble("run", "ensemble_run:run", "run an ensemble, and print its result")
    _name(run)
    given = run.add_mutually_exclusive_group()
    given.add_argument(
        "input", metavar="INPUT", nargs="?", help="input of the ensemble (default, and with -: standard input)"
    )
    given.add_argument("--input-file", metavar="FILE", help="read the input from FILE (-: standard input)")
    resume = ensemble("resume", "ensemble_run:resume", "continue a run that failed or was interrupted")
    resume.add_argument("run_id", metavar="ID", help="the run, as 'mcpctl ensemble runs' shows it")
    for command in (run, resume):
        command.add_argument(
            "--timeout",
            type=seconds,
            metavar="SECONDS",
            help="cancel the run after SECONDS; also the time limit for starting the server",
        )
        output = command.add_mutually_exclusive_group()
        output.add_argument("-q", "--quiet", action="store_true", help="print only the result and errors")
        output.add_argument(
            "-v", "--verbose", action="store_true", help="also print each agent's response as it arrives"
        )
        _common(command, "print the whole result as JSON")


def _command(add: _Adder, name: str, action: str, summary: str) -> argparse.ArgumentParser:
    parser = add(name, "", summary)
    parser.set_defaults(handler=HANDLER, action=COMMANDS + action)
    _common(parser, "print JSON")
    return parser


def _common(parser: argparse.ArgumentParser, json: str) -> None:
    parser.add_argument("--json", action="store_true", help=json)
    parser.add_argument(
        "--project",
        metavar="DIR",
        help="look in the project DIR first (default: the nearest parent directory with .llm-orc)",
    )


def _name(parser: Any) -> None:
    parser.add_argument("ensemble", metavar="NAME", help="the ensemble: NAME, PROJECT/NAME, user/NAME or shipped/NAME")
