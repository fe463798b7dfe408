"""The command line: which commands there are, in groups, and in which module each one is.

A module is imported when its command is named: `dualray --help` and `dualray --version` import none of them.

Exit codes: 0; 1 when a check has failed; 2 when the command was given something that it cannot use. `run` ends as the
script does.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

import dualray
from dualray.cli.declare import Commands

__all__ = ["GROUPS", "app"]

GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Run": {
        "run": ("run", "Run a script on real processes or in a simulation."),
        "scenario": ("scenario", "Run, check, list and create scenario files."),
        "explore": ("explore", "Run a scenario with many seeds of random faults."),
        "examples": ("examples", "List or copy the examples and scenarios."),
        "sim": ("sim", "Simulate built-in workloads, or show a simulation's assumptions."),
    },
    "Inspect": {
        "list": ("state", "List tasks, actors, objects, nodes or workers."),
        "get": ("state", "Show one task, actor, object, node or worker."),
        "summary": ("state", "Count tasks, actors or objects by name."),
        "memory": ("state", "Show the largest objects and the references that keep them."),
        "logs": ("logs", "Print the output of tasks, actors and workers."),
        "stack": ("stack", "Show the Python stack of every worker."),
        "explain": ("seeing", "Show the history of a task, an actor or an object."),
        "dashboard": ("dashboard", "Serve a live page about a cluster or a run."),
        "report": ("seeing", "Write a web page about a finished run."),
        "timeline": ("seeing", "Write a run's timeline for ui.perfetto.dev."),
        "replay": ("replay", "Compute a run's decisions again, and compare them with its log."),
    },
    "Predict": {
        "record": ("whatif", "Record a program's tasks and their durations."),
        "import-ray": ("import_ray", "Convert the events of a Ray cluster into a recorded run."),
        "calibrate": ("whatif", "Measure how fast this machine is, for predictions."),
        "predict": ("whatif", "Predict a recorded program's time on other clusters."),
    },
    "Cluster": {
        "start": ("cluster", "Start a node of a cluster on this machine."),
        "stop": ("cluster", "Stop the nodes that you started on this machine."),
        "status": ("cluster", "Show a cluster's nodes and waiting tasks."),
        "chaos": ("chaos", "Inject faults into a real cluster under load."),
    },
    "Help": {
        "config": ("config", "Show every setting and limit with its source."),
        "doctor": ("doctor", "Check this machine, and print how to fix problems."),
        "help": ("doctor", "Explain an error: dualray help store-full."),
        "version": ("doctor", "Show the version."),
    },
}
"""By title of the group: each command's module in this package, and its line in the list of commands."""

EXAMPLES: Final = (
    "dualray run train.py --mode sim --nodes 4 --faults 'kill node-2 at 3s'",
    "dualray run train.py --mode sim --decision-log run1 && dualray report run1",
    "dualray scenario new && dualray explore first.yaml",
)

_PURPOSE: Final = (
    "Run distributed Python programs on real processes, or simulate them on a virtual cluster with faults."
)
_PLACES: Final = {name: module for commands in GROUPS.values() for name, (module, _) in commands.items()}


class _LazyCommands(Commands):
    """Commands whose modules are imported when a command line names them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = _PLACES.get(cmd_name)
        if place is None:
            return None
        module: Any = importlib.import_module(f"dualray.cli.{place}")
        return getattr(module, cmd_name) if cmd_name in ("scenario", "sim") else module.app.commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The groups with their commands, and some examples; nothing is imported for it."""
        formatter.write_usage("dualray", "[--version] COMMAND [ARGUMENTS]")
        formatter.write_paragraph()
        formatter.write_text(_PURPOSE)
        width = max(map(len, _PLACES))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), words) for name, (_, words) in commands.items()])
        with formatter.section("Examples"):
            for example in EXAMPLES:
                formatter.write(f"  {example}\n")
        formatter.write_paragraph()
        formatter.write_text("`dualray COMMAND --help` describes a command and its options.")
        formatter.write_text('Completion in bash: eval "$(_DUALRAY_COMPLETE=bash_source dualray)"')


def _show_version(context: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked:
        print(f"dualray {dualray.__version__}{', with a compiled core' if dualray.__compiled__ else ''}")
        context.exit()


app = _LazyCommands(
    "dualray",
    help=_PURPOSE,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version.",
        )
    ],
)
