"""How a command of `ray` finds the cluster and joins it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

from dualray import api, runtime
from dualray.as_ray.initializing import named_address, started_address
from dualray.cli.declare import Exit, Option
from dualray.cli.printing import say_aside
from dualray.exceptions import DualrayError

FAILED = 1
"""The exit code of Ray's commands that end with an exception."""

Address = Annotated[
    str | None,
    Option(
        help="Address of the cluster, as host:port. The default is RAY_ADDRESS, or else the cluster on this machine."
    ),
]


def fail(why: object) -> NoReturn:
    """Print on stderr why the command has failed, and end it with FAILED."""
    say_aside(f"dualray: {why}", colour="red")
    raise Exit(FAILED)


@contextmanager
def joined(address: str | None) -> Iterator[runtime.Runtime]:
    """Join the cluster at an address. By default, it is the one at RAY_ADDRESS, else that of the program that runs the
    command, else the one that `ray start` has started last, else that of any program of this user."""
    given = named_address(address) or "auto"
    try:
        _join(given)
    except (DualrayError, ValueError) as error:
        if given == "auto" and "no cluster" in str(error):
            fail(
                "Could not find any running Ray instance of this user on this machine. Start one with `ray start "
                "--head`, or specify the one to connect to by setting the `--address` flag or the `RAY_ADDRESS` "
                "environment variable."
            )
        fail(error)
    try:
        yield runtime.current("ray")
    finally:
        api.shutdown()


def _join(address: str) -> None:
    try:
        api.init(address=address, log_to_driver=False)
    except DualrayError as error:
        latest = started_address() if address == "auto" and "several clusters" in str(error) else None
        if latest is None:
            raise
        api.init(address=latest, log_to_driver=False)
