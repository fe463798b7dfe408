"""The commands of `ray`, and what they have in common: Ray's general options, and the refusal in a simulation.

Exit codes are Ray's: 0; 1 when there is no cluster, or a node does not start; 2 when the command was given something
that it cannot use, which is also the code of a command that dualray has nothing for.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import click

from dualray.as_ray.metadata import RAYS_VERSION
from dualray.cli.declare import Commands
from dualray.cli.printing import refuse
from dualray.cli.rays.refused import REFUSED, refusal_of
from dualray.settings import resolve

_PLACES: Final = {
    "start": ("nodes", "Start a node of a cluster on this machine."),
    "stop": ("nodes", "Stop the nodes that `ray start` started on this machine."),
    "status": ("status", "Show a cluster's nodes, resources and waiting tasks."),
    "health-check": ("status", "Exit with 0 if a cluster answers."),
    "list": ("state", "List actors, tasks, objects, nodes, workers, jobs or placement groups."),
    "get": ("state", "Show one of them."),
    "summary": ("state", "Count tasks, actors or objects."),
    "memory": ("state", "Show the objects of a cluster."),
    "timeline": ("state", "Write the timeline of a cluster's tasks."),
    "stack": ("state", "Show the Python stack of every worker."),
    "disable-usage-stats": ("nodes", "Do nothing, because dualray sends no usage statistics."),
}
"""By command, its module in this package, and its line in the help."""

_WITHOUT_CLUSTER: Final = ("stop", "stack", "disable-usage-stats")
"""Commands that have an answer in a simulation, too."""

_OF_ALL: Final = ("--log-style", "--log-color", "--logging-level", "--logging-format")
"""Options of Ray's for how Ray prints. They have no effect."""


class _RaysCommands(Commands):
    """Commands whose modules are imported when a command line names them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_PLACES, *REFUSED]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = cmd_name.replace("_", "-")  # Ray takes both
        if cmd_name in REFUSED:
            return refusal_of(cmd_name)
        if cmd_name not in _PLACES:
            return None
        if cmd_name not in _WITHOUT_CLUSTER and not _asks_for_help():
            _refuse_in_a_simulation(cmd_name)
        module: Any = importlib.import_module(f"dualray.cli.rays.{_PLACES[cmd_name][0]}")
        command: click.Command = module.app.commands[cmd_name]
        given = {option for param in command.params for option in param.opts}
        command.params += [unused_option(name) for name in _OF_ALL if name not in given]
        if "--verbose" not in given:
            command.params.append(unused_option("--verbose", "-v", is_flag=True))
        return command

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands that work; nothing is imported for it."""
        formatter.write_usage("ray", "[--version] COMMAND [ARGUMENTS]")
        formatter.write_paragraph()
        formatter.write_text("Ray's commands, made of dualray's: `import ray` imports dualray here.")
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in _PLACES.items()])
        formatter.write_paragraph()
        formatter.write_text(f"Not in dualray: {', '.join(REFUSED)}.")


def unused_option(*names: str, is_flag: bool = False) -> click.Option:
    """An option that the command takes, and does not look at."""
    return click.Option([*names], is_flag=is_flag, expose_value=False, hidden=True)


def is_simulated() -> bool:
    """Whether the program that runs this command has been told to simulate."""
    try:
        return bool(resolve({})["mode"].value == "sim")
    except (ValueError, TypeError) as error:
        refuse(error)


def _asks_for_help() -> bool:
    return "--help" in sys.argv


def _refuse_in_a_simulation(name: str) -> None:
    if is_simulated():
        refuse(
            f"`ray {name}` cannot reach the cluster, because the program that starts it runs in a simulation, whose "
            f"virtual cluster lies within the program's own process: call ray.init(), ray.nodes() or ray.util.state in "
            f"the program, or run the program with --mode real"
        )


def _show_version(context: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked:
        print(f"ray, version {RAYS_VERSION}")
        context.exit()


app = _RaysCommands(
    "ray",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version of Ray that dualray follows.",
        ),
        *(unused_option(name) for name in _OF_ALL),
    ],
)
