"""Ray's commands that dualray has nothing for: each ends with exit code 2 and one sentence with the way out."""

from __future__ import annotations

from functools import partial
from typing import Final

import click

from dualray.cli.printing import refuse

_LAUNCHER: Final = (
    "has no cluster launcher: start nodes with `ray start`, or let `dualray start --autoscale FILE` add them"
)
_SHELL: Final = "runs no commands on other machines: log in to the machine with ssh"

REFUSED: Final = {
    "attach": _SHELL,
    "check-open-ports": "has no check of ports: `dualray doctor` checks this machine",
    "cluster-dump": "collects no logs: `dualray logs` prints them",
    "cpp": "runs only Python workers",
    "dashboard": "opens no tunnel to a dashboard: run `dualray dashboard` on the head node",
    "debug": "has no debugger for tasks: simulate the program with `dualray run --mode sim`, where breakpoint() works",
    "down": _LAUNCHER,
    "drain-node": "has no command that drains a node: `dualray stop` on the node's machine ends the node",
    "enable-usage-stats": "sends no usage statistics, so there is nothing to enable",
    "exec": _SHELL,
    "get-auth-token": "has no tokens: `dualray start --head` prints where the cluster's secret is",
    "get-head-ip": _LAUNCHER,
    "get-worker-ips": _LAUNCHER,
    "global-gc": "has no command that collects garbage: call gc.collect() in the program",
    "job": "has no server for jobs: start the program itself, which joins the cluster with ray.init(address='auto')",
    "kill-actor": "has no command that kills actors: call ray.kill(ray.get_actor(NAME)) in a program",
    "kill-random-node": "has no such command: `dualray chaos` injects faults",
    "local-dump": "collects no logs: `dualray logs` prints them",
    "logs": "has its own command for logs: run `dualray logs`",
    "metrics": "starts no Prometheus: `ray start --metrics-export-port PORT` serves a node's metrics",
    "microbenchmark": "has its own benchmarks: `make bench` in a checkout of dualray",
    "monitor": _LAUNCHER,
    "rsync-down": _SHELL,
    "rsync-up": _SHELL,
    "sanity-check": "has its own check of this machine: run `dualray doctor`",
    "serve": "has no Ray Serve, so serve requests with another library",
    "submit": _LAUNCHER,
    "symmetric-run": "has no such command: run `ray start` on each machine, and the program on one of them",
    "up": _LAUNCHER,
}
"""By command, what dualray does in its place."""


def refusal_of(name: str) -> click.Command:
    """A command that takes all arguments, and refuses."""
    return click.Command(
        name,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        callback=partial(_refuse, name),
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        hidden=True,
    )


def _refuse(name: str, words: tuple[str, ...]) -> None:
    refuse(f"`ray {name}` does not work, because `ray` is dualray's command here, and dualray {REFUSED[name]}")
