"""Rows of the state tables: machines describe themselves in plain values, and decide nothing here.

    tasks             an owner: those that it has submitted and not forgotten, and the one that runs here
    objects           an owner: those that it owns; the head: where stored ones are; a node: its store
    waits             an owner: what the task that runs here waits for; the head: what waits for a place, and why
    late:OBJECT_ID    an owner: why an object is not there yet (OwnerRows.late)
    workers           a node
    task_times        an owner: when the tasks that ended here began and ended; whoever runs them keeps that
    actors, ended_workers, jobs, named_actors, namespaces, nodes, placement_groups, processes      the head

Ids are hex. The names of states are today's Ray's where there is one for it.
"""

from __future__ import annotations

from typing import Any

from dualray.shared.model.states import TaskState

Row = dict[str, Any]

TASK_STATES = {
    TaskState.WAITING_ARGS: "PENDING_ARGS_AVAIL",
    TaskState.QUEUED: "PENDING_NODE_ASSIGNMENT",
    TaskState.PUSHED: "SUBMITTED_TO_WORKER",
    TaskState.FINISHED: "FINISHED",
    TaskState.FAILED: "FAILED",
}
TASK_TIMES = "task_times"
RUNNING = "RUNNING"
CALL_FETCHES = "PENDING_ACTOR_TASK_ARGS_FETCH"
CALL_WAITS = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
AT_WORKER = (RUNNING, CALL_FETCHES, CALL_WAITS)
"""What a worker says of a task that it has; the task's owner knows only that it has sent the task."""


_STOPPED = "stopped: "
_EXIT_TYPES = (
    ("the node is out of memory", "NODE_OUT_OF_MEMORY"),
    ("The constructor of actor ", "USER_ERROR"),
    ("exit_actor() was called", "INTENDED_USER_EXIT"),
    ("cancel", "INTENDED_USER_EXIT"),
    ("", "INTENDED_SYSTEM_EXIT"),
)
"""What Ray calls the end of a worker that its node has stopped: the first words that stand in the reason."""


def exit_type(why: str) -> str:
    """What Ray calls the end of a worker."""
    if why.startswith(_STOPPED):
        return next(name for words, name in _EXIT_TYPES if words in why)
    return "INTENDED_USER_EXIT" if why.startswith("exited with code 0") else "SYSTEM_ERROR"
