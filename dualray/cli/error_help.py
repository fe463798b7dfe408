"""What `dualray help KEY` prints about an error: its meaning, its cause and its fix.

Each key stands for one error, or one family of errors, of dualray.exceptions. docs/errors.md has the same anchors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ENTRIES", "Entry", "key_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of `dualray help`.

    Attributes:
        errors: the names of the classes in dualray.exceptions that the entry explains.
        means, cause, fix: sentences about the error's meaning, cause and fix.
    """

    errors: tuple[str, ...]
    means: str
    cause: str
    fix: str


ENTRIES: Final[dict[str, Entry]] = {
    "actor-died": Entry(
        errors=("ActorDiedError",),
        means="ActorDiedError means that an actor has ended and will not restart. Every later call of an "
        "ended actor fails with ActorDiedError.",
        cause="An actor ends if its constructor raises an error, if a program calls kill(), or if the actor's process "
        "dies more often than max_restarts allows.",
        fix="To let an actor survive the death of its process, give its class the options max_restarts=N and "
        "max_task_retries=N. A restarted actor runs __init__ again and loses its state, so let the actor save "
        "its state outside the process.",
    ),
    "actor-unavailable": Entry(
        errors=("ActorUnavailableError",),
        means="ActorUnavailableError means that a call failed because the actor died during the call, is "
        "restarting, or is unreachable.",
        cause="A call fails with ActorUnavailableError if its actor can still restart (max_restarts), but "
        "the call has no retry left (max_task_retries).",
        fix="After an ActorUnavailableError, the program may call the actor again. If the methods of an "
        "actor may safely run twice, set the actor's option max_task_retries=N, so that dualray "
        "repeats lost calls.",
    ),
    "actor-name": Entry(
        errors=("ActorAlreadyExistsError", "ActorHandleNotFoundError"),
        means="ActorAlreadyExistsError means that the program tried to create an actor with the name of an "
        "existing actor. ActorHandleNotFoundError means that the program called get_actor() with a "
        "name that no actor has.",
        cause="Two actors in the same namespace cannot have the same name. A named actor ends with the "
        "process that created it, unless the actor has lifetime='detached'.",
        fix="To create a named actor only if no actor has the name yet, use options(name=..., "
        "get_if_exists=True). The command `dualray list actors` shows the names of all actors.",
    ),
    "not-initialized": Entry(
        errors=("NotInitializedError", "AlreadyInitializedError"),
        means="NotInitializedError means that the program called a function that needs a running cluster, "
        "but no cluster runs. AlreadyInitializedError means that the program called init() twice "
        "without shutdown() in between.",
        cause="If DUALRAY_AUTO_INIT=0 is set, other functions of dualray raise NotInitializedError before "
        "init(). In a forked process, all functions of dualray raise NotInitializedError, because a "
        "forked process cannot use the cluster of its parent process.",
        fix="Call dualray.init() once at the start of the program. If several parts of the program call init(), "
        "use dualray.init(ignore_reinit_error=True).",
    ),
    "object-lost": Entry(
        errors=("ObjectLostError", "ObjectReconstructionFailedError", "OwnerDiedError"),
        means="ObjectLostError means that the value of a reference is lost, and that dualray cannot compute "
        "the value again. ObjectReconstructionFailedError means that an attempt to recompute a lost "
        "value failed. OwnerDiedError means that a value is lost because the process that created its "
        "reference died.",
        cause="dualray loses a value if the node with the last copy of the value dies. dualray cannot "
        "recompute a value that put() stored, that an actor returned, or whose task has no retry "
        "left.",
        fix="To let dualray recompute a lost value, compute the value in a task with max_retries, instead "
        "of storing it with put(). The command `dualray explain ID DIRECTORY` prints the history of "
        "an object from the decision log of a run.",
    ),
    "reference-ended": Entry(
        errors=("ReferenceEndedError", "ActorHandleEndedError"),
        means="ReferenceEndedError means that the program used a reference after shutdown() ended the reference's "
        "cluster. ActorHandleEndedError means that the program used an actor handle after shutdown() ended "
        "the actor's cluster.",
        cause="References and actor handles are valid only in the cluster that created them, and not in the cluster "
        "that the next init() starts.",
        fix="After the next init(), create the values and actors that the program needs again, with put() or "
        ".remote().",
    ),
    "pickled-reference": Entry(
        errors=("OufOfBandObjectRefSerializationException",),
        means="OufOfBandObjectRefSerializationException means that the program pickled a reference, "
        "although RAY_allow_out_of_band_object_ref_serialization=0 forbids this.",
        cause="dualray cannot count the copies of a reference that pickle.dumps(ref) makes. If a process "
        "pickles a reference, the reference's object stays in the object store until the process "
        "ends.",
        fix="Instead of pickling a reference, pass the reference to a task or an actor as an argument, or return the "
        "reference from a task. To allow pickle.dumps(ref) in the program, unset "
        "RAY_allow_out_of_band_object_ref_serialization.",
    ),
    "out-of-memory": Entry(
        errors=("OutOfMemoryError",),
        means="OutOfMemoryError means that a node had too little free memory, and therefore killed the worker "
        "process of a task.",
        cause="A node has too little free memory if the tasks that run at the same time use more memory than the "
        "machine has.",
        fix="To let fewer tasks run on a node at the same time, give each task the option memory=BYTES or "
        "a larger num_cpus.",
    ),
    "out-of-reach": Entry(
        errors=("NodeDiedError", "WorkerUnreachableError", "ControlPlaneError", "AuthenticationError"),
        means="NodeDiedError, WorkerUnreachableError and ControlPlaneError mean that the program cannot reach a "
        "process of the cluster. AuthenticationError means that a process of the cluster refused a "
        "connection.",
        cause="A program cannot reach a process of the cluster if a node, the cluster's head process or "
        "Redis has ended, or if the network is down. A process refuses a connection from a process "
        "that has a different secret or runs a different version of dualray.",
        fix="To find the process that failed, run `dualray status` and `dualray logs`. Use the same version of "
        "dualray and the same secret file on all machines of the cluster.",
    ),
    "pending-calls": Entry(
        errors=("PendingCallsLimitExceeded",),
        means="PendingCallsLimitExceeded means that an actor has more unfinished calls than its option "
        "max_pending_calls allows.",
        cause="The option max_pending_calls of an actor limits the number of the actor's unfinished calls.",
        fix="Before the program calls the actor again, wait for the results of earlier calls with wait().",
    ),
    "placement-group": Entry(
        errors=(
            "PlacementGroupUnschedulableError",
            "PlacementGroupAlreadyExistsError",
            "TaskPlacementGroupRemoved",
            "RunningTaskPlacementGroupRemoved",
            "ActorPlacementGroupRemoved",
        ),
        means="PlacementGroupUnschedulableError means that the cluster can never place a placement group. "
        "PlacementGroupAlreadyExistsError means that the program tried to create a placement group "
        "with the name of an existing placement group. TaskPlacementGroupRemoved, "
        "RunningTaskPlacementGroupRemoved and ActorPlacementGroupRemoved mean that the program "
        "removed a placement group that a task or an actor used.",
        cause="The cluster cannot place a placement group if its bundles demand more resources than the "
        "nodes can ever offer. dualray removes a placement group when a program calls "
        "remove_placement_group(), or when the driver or actor that created the group ends.",
        fix="Compare the bundles of a placement group with the nodes' resources in the output of `dualray status`. "
        "Remove a placement group only after all tasks and actors that use the group have ended.",
    ),
    "runtime-env": Entry(
        errors=("RuntimeEnvSetupError",),
        means="RuntimeEnvSetupError means that dualray could not prepare the runtime environment (runtime_env) of a "
        "worker.",
        cause="dualray cannot prepare a runtime_env if a path in working_dir or py_modules does not exist, if a "
        "package is missing, or if worker_process_setup_hook raises an error.",
        fix="Before you start the cluster, install the packages of a runtime_env on every node, and copy its "
        "directories to every node. dualray installs no packages and copies no directories for a runtime_env.",
    ),
    "serialization": Entry(
        errors=("SerializationError",),
        means="SerializationError means that dualray cannot pickle a value, an argument or a function.",
        cause="Python cannot pickle a lock, a socket, an open file, a generator, or a function that uses "
        "such an object through a captured variable.",
        fix="Create locks, files and connections inside the task or the actor that uses them. "
        "dualray.util.inspect_serializability(f) finds the parts of f that cannot be pickled.",
    ),
    "unreadable-exception": Entry(
        errors=("UnserializableException",),
        means="UnserializableException means that a task raised an exception that Python can pickle, but not unpickle.",
        cause="Python cannot unpickle an exception if the exception's method __reduce__ or __setstate__ is wrong.",
        fix="Let the exception's method __reduce__ return a callable and arguments with which Python can create "
        "the exception again.",
    ),
    "simulation-stuck": Entry(
        errors=("SimulationDeadlockError",),
        means="SimulationDeadlockError means that a simulated program waits for a value or an event that can never "
        "arrive.",
        cause="A simulated program is stuck if its tasks wait for one another, for resources that idle "
        "actors hold, or for a lost message.",
        fix="SimulationDeadlockError says what each task waits for. If a simulation is stuck, free the resources that "
        "its waiting tasks need, or give get() and wait() a timeout.",
    ),
    "store-full": Entry(
        errors=("ObjectStoreFullError", "OutOfDiskError"),
        means="ObjectStoreFullError means that the object store of a node has no space for an object. dualray "
        "never raises OutOfDiskError: if the disk is full, dualray raises ObjectStoreFullError.",
        cause="The object store becomes full if the program keeps references to more objects than memory and disk "
        "can hold.",
        fix="Delete references that the program no longer needs, set a larger "
        "init(object_store_memory=...), or free space on the disk. The message of "
        "ObjectStoreFullError names the largest objects, and the lines of code that still use "
        "objects. The command `dualray memory` lists the objects in the object stores.",
    ),
    "task-cancelled": Entry(
        errors=("TaskCancelledError",),
        means="TaskCancelledError means that the program cancelled a task, or that an argument of a task comes from "
        "a cancelled task.",
        cause="A task is cancelled when a program calls dualray.cancel(ref) with a reference to the task's result.",
        fix="Catch TaskCancelledError where the program calls get() for a task that it may cancel.",
    ),
    "task-failed": Entry(
        errors=("TaskError",),
        means="TaskError means that a function or method of your program raised an error in a worker process.",
        cause="Python prints two tracebacks for a TaskError: the first shows the line that called get(), "
        "and the second shows the line that failed in the worker.",
        fix="To debug a failing task, run the program in one process with `dualray run script.py --mode "
        "sim`. In a simulation, breakpoints work inside tasks.",
    ),
    "timeout": Entry(
        errors=("GetTimeoutError",),
        means="GetTimeoutError means that some values were not ready within the timeout of get().",
        cause="get() times out if the tasks that compute the values are slow, or if these tasks wait for resources.",
        fix="To get only the values that are ready, call wait(refs, timeout=...). The command `dualray list "
        "tasks` shows why each task waits.",
    ),
    "unschedulable": Entry(
        errors=("TaskUnschedulableError", "ActorUnschedulableError"),
        means="TaskUnschedulableError and ActorUnschedulableError mean that no node of the cluster can ever meet "
        "the demand of a task or an actor.",
        cause="A task or actor is unschedulable if it demands more CPUs, GPUs or memory than any node has. "
        "A task or actor is also unschedulable if it demands a node that does not exist, or a label "
        "that no node has.",
        fix="TaskUnschedulableError and ActorUnschedulableError name the most suitable node, and the "
        "resources that this node lacks. Reduce the resources that the unschedulable task or actor "
        "demands, or start another node with `dualray start`.",
    ),
    "worker-crashed": Entry(
        errors=("WorkerCrashedError",),
        means="WorkerCrashedError means that the worker process that ran a task died, and that the task has no "
        "retry left.",
        cause="A worker process dies if a library crashes (SIGSEGV), if the operating system kills the process "
        "(SIGKILL), or if the code calls os._exit.",
        fix="The command `dualray logs` prints the output of a worker process that died. If a task may safely run "
        "twice, set max_retries=N for the task.",
    ),
}
"""The entries by key."""


def key_of(error: BaseException) -> str | None:
    """Return the key of the entry that explains an error, or None for an error that is not dualray's."""
    for cls in type(error).__mro__:
        for key, entry in ENTRIES.items():
            if cls.__name__ in entry.errors:
                return key
    return None
