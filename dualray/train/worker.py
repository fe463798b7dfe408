"""A training worker: an actor in a bundle of the run's placement group that runs the training function once.

The function comes as a reference and is loaded when the environment is set: with it come the libraries that read
variables such as OMP_NUM_THREADS or TF_CONFIG when they are imported.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from dualray import api, runtime
from dualray.actor import ActorHandle
from dualray.train import session
from dualray.train.backend import BackendConfig, Place
from dualray.train.checkpoint import Checkpoint, Files
from dualray.util.node import get_node_ip_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a worker is to do."""

    context: session.TrainContext
    ledger: ActorHandle[Any]
    environment: Mapping[str, str]
    backend: BackendConfig
    payload: list[Any]
    """A reference to (function, its config or None)."""
    shards: Mapping[str, Any]
    checkpoint: Checkpoint | None
    checkpoint_files: Files | None


class TrainWorker:
    """See the module."""

    def place(self) -> Place:
        """Where it is, and a port that is free there."""
        context = api.get_runtime_context()
        here = runtime.current("a training worker")
        return Place(
            node=context.get_node_id(),
            ip_address=get_node_ip_address(),
            port=here.free_port(),
            is_virtual=not here.owns_interpreter,
        )

    def run(self, assignment: Assignment) -> Any:
        """Run the training function to its end; what it returns, of rank 0."""
        if runtime.current("a training worker").owns_interpreter:  # else its environment is the driver's
            os.environ.update(assignment.environment)
        session.begin(
            session.Session(
                context=assignment.context,
                ledger=assignment.ledger,
                shards=assignment.shards,
                checkpoint=assignment.checkpoint,
                checkpoint_files=assignment.checkpoint_files,
            )
        )
        try:
            with assignment.backend.training(assignment.context):
                function, config = api.get(assignment.payload[0])
                returned = call_with(function, config)
                return _portable(returned) if assignment.context.world_rank == 0 else None
        finally:
            session.end()


def check_function(function: Any) -> None:
    """Raises TypeError, ValueError for a training function that cannot be called."""
    if not callable(function):
        raise TypeError(f"train_loop_per_worker={function!r} must be a function")
    if len(_needed(function)) > 1:
        raise ValueError(
            f"train_loop_per_worker={function.__name__}{inspect.signature(function)} must take no argument, or one: "
            f"the train_loop_config"
        )


def _needed(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def call_with(function: Callable[..., Any], config: Mapping[str, Any] | None) -> Any:
    """Call it with its config, if it takes one."""
    if inspect.signature(function).parameters and (config is not None or _needed(function)):
        return function(dict(config or {}))
    return function()


def _portable(value: Any) -> Any:
    """A value that can be sent to the driver; None instead of one that cannot."""
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - the classes of users raise what they like
        return None
    return value
