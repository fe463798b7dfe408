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
        means="ActorDiedError means that an actor has ended and will not restart. After an actor has ended, "
        "every call of the actor's methods fails with ActorDiedError.",
        cause="An actor ends if its constructor raises an error, or if a program calls dualray.kill(actor). If an "
        "actor's process dies more often than the actor's option max_restarts allows, the actor ends.",
        fix="To let dualray restart an actor after its process dies, give the actor's class the option "
        "max_restarts=N. With the actor option max_task_retries=N, dualray repeats the calls that the death of the "
        "actor's process interrupted. A restarted actor runs __init__ again and loses its state, so save the state "
        "outside the actor's process.",
    ),
    "actor-unavailable": Entry(
        errors=("ActorUnavailableError",),
        means="ActorUnavailableError means that a call failed because the called actor died during the call, is "
        "restarting, or is unreachable.",
        cause="A call fails with ActorUnavailableError if the actor may still restart (option max_restarts), but "
        "dualray may not repeat the call (option max_task_retries).",
        fix="After an ActorUnavailableError, the program can call the same actor again. If an actor's methods may "
        "safely run twice, set the actor's option max_task_retries=N, so that dualray repeats interrupted calls.",
    ),
    "actor-name": Entry(
        errors=("ActorAlreadyExistsError", "ActorHandleNotFoundError"),
        means="ActorAlreadyExistsError means that the program tried to create an actor with the name of an existing "
        "actor. ActorHandleNotFoundError means that the program called get_actor() with a name that no actor has.",
        cause="Two actors in the same namespace cannot have the same name. A named actor ends when the process that "
        "created it ends, unless the actor has the option lifetime='detached'.",
        fix="To get a named actor, or to create the actor if none has the name, use options(name=..., "
        "get_if_exists=True) of the actor's class. The command `dualray list actors` shows the names of all actors.",
    ),
    "not-initialized": Entry(
        errors=("NotInitializedError", "AlreadyInitializedError"),
        means="NotInitializedError means that the program called a function that needs a running cluster, but no "
        "cluster runs. AlreadyInitializedError means that the program called init() twice without shutdown() in "
        "between.",
        cause="Functions such as nodes() raise NotInitializedError if the program has not called init(). If the "
        "environment variable DUALRAY_AUTO_INIT is 0, calls such as f.remote() raise NotInitializedError before "
        "init(). A forked process cannot use the cluster of its parent process, so dualray's functions raise "
        "NotInitializedError in the forked process.",
        fix="Call dualray.init() once at the start of the program. If several parts of the program call init(), use "
        "dualray.init(ignore_reinit_error=True).",
    ),
    "object-lost": Entry(
        errors=("ObjectLostError", "ObjectReconstructionFailedError", "OwnerDiedError"),
        means="ObjectLostError means that the value of an ObjectRef is lost, and that dualray cannot compute the "
        "value again. ObjectReconstructionFailedError means that an attempt to recompute a lost value failed. "
        "OwnerDiedError means that a value is lost because the process that created the value's ObjectRef died.",
        cause="A value is lost if the last node with a copy of the value dies. A value cannot be recomputed if put() "
        "stored it, or if its task has no retry left. The result of an actor's method cannot be recomputed if the "
        "actor's option max_task_retries is 0.",
        fix="Instead of storing a value with put(), return the value from a task with max_retries=N, so that dualray "
        "can recompute the value. If the program ran with init(decision_log=DIRECTORY), `dualray explain ID DIRECTORY` "
        "prints the history of the object with the id ID.",
    ),
    "reference-ended": Entry(
        errors=("ReferenceEndedError", "ActorHandleEndedError"),
        means="ReferenceEndedError means that the program used an ObjectRef of a cluster that shutdown() had ended. "
        "ActorHandleEndedError means that the program used an actor handle of a cluster that shutdown() had ended.",
        cause="An ObjectRef or an actor handle is valid only in the cluster that created it. After shutdown(), a new "
        "init() does not make old references and actor handles valid again.",
        fix="After a new init(), call put() or .remote() again to create each value and actor that the program still "
        "needs.",
    ),
    "pickled-reference": Entry(
        errors=("OufOfBandObjectRefSerializationException",),
        means="OufOfBandObjectRefSerializationException means that the program pickled an ObjectRef, although the "
        "environment variable RAY_allow_out_of_band_object_ref_serialization is 0.",
        cause="Python's pickle.dumps(ref) copies an ObjectRef, and dualray cannot count these copies. If a process "
        "calls pickle.dumps(ref), the object of the ObjectRef ref stays in the object store until the process ends.",
        fix="Instead of pickling an ObjectRef, pass the ObjectRef to a task or an actor as an argument, or return it "
        "from a task. To allow pickle.dumps(ref) in the program, unset the environment variable "
        "RAY_allow_out_of_band_object_ref_serialization.",
    ),
    "out-of-memory": Entry(
        errors=("OutOfMemoryError",),
        means="OutOfMemoryError means that a node killed the worker process of a task because the node had too "
        "little free memory.",
        cause="A node runs out of memory if the tasks that run at the same time use more memory than the machine has.",
        fix="To let fewer tasks run on a node at the same time, give each task the option memory=BYTES or a larger "
        "num_cpus.",
    ),
    "out-of-reach": Entry(
        errors=("NodeDiedError", "WorkerUnreachableError", "ControlPlaneError", "AuthenticationError"),
        means="NodeDiedError, WorkerUnreachableError and ControlPlaneError mean that the program cannot reach a "
        "process of the cluster. AuthenticationError means that a process refused a connection, because the other "
        "process did not prove that it belongs to the same cluster.",
        cause="A program cannot reach a process of the cluster if the network is down, or if a node, the head "
        "process or Redis has ended. A process refuses a connection from a process that has a different secret or "
        "runs a different version of dualray.",
        fix="To find the process that failed, run `dualray status` and `dualray logs`. Use the same version of "
        "dualray and the same secret file on all machines of the cluster.",
    ),
    "pending-calls": Entry(
        errors=("PendingCallsLimitExceeded",),
        means="PendingCallsLimitExceeded means that a process has as many unfinished calls of an actor as the "
        "actor's option max_pending_calls allows.",
        cause="A process reaches the limit max_pending_calls if it submits calls to an actor faster than the actor "
        "finishes them.",
        fix="To limit the number of unfinished calls, wait for the results of earlier calls with dualray.wait() "
        "before you call the actor again.",
    ),
    "placement-group": Entry(
        errors=(
            "PlacementGroupUnschedulableError",
            "PlacementGroupAlreadyExistsError",
            "TaskPlacementGroupRemoved",
            "RunningTaskPlacementGroupRemoved",
            "ActorPlacementGroupRemoved",
        ),
        means="PlacementGroupUnschedulableError means that the nodes of the cluster can never hold all bundles of a "
        "placement group. PlacementGroupAlreadyExistsError means that the program tried to create a placement group "
        "with the name of an existing placement group. TaskPlacementGroupRemoved, RunningTaskPlacementGroupRemoved "
        "and ActorPlacementGroupRemoved mean that a task or an actor used a placement group that was removed.",
        cause="A placement group is unschedulable if its bundles demand more resources than the nodes can ever "
        "offer. A placement group is removed when a program calls remove_placement_group(). When a driver or an "
        "actor ends, its placement groups without lifetime='detached' are removed.",
        fix="Compare the bundles of the placement group with the nodes' resources in the output of `dualray status`. "
        "Remove a placement group only after all tasks and actors that use the placement group have ended.",
    ),
    "runtime-env": Entry(
        errors=("RuntimeEnvSetupError",),
        means="RuntimeEnvSetupError means that dualray could not prepare the runtime environment (runtime_env) of a "
        "worker process.",
        cause="A runtime_env cannot be prepared if a path in its working_dir or py_modules does not exist, or if one "
        "of its packages is missing. If the function worker_process_setup_hook of a runtime_env raises an error, "
        "dualray cannot prepare the runtime_env.",
        fix="Before you start the cluster, install the packages of the runtime_env on every node, and copy the "
        "runtime_env's directories to every node. Unlike Ray, dualray installs no packages and copies no directories "
        "for a runtime_env.",
    ),
    "serialization": Entry(
        errors=("SerializationError",),
        means="SerializationError means that dualray cannot pickle a value, an argument or a function.",
        cause="Python cannot pickle a lock, a socket, an open file or a generator. A function cannot be pickled if "
        "it uses, for example, a lock from a variable outside the function.",
        fix="Create locks, files and connections inside the task or the actor that uses them. The function "
        "dualray.util.inspect_serializability(f) finds the parts of f that cannot be pickled.",
    ),
    "unreadable-exception": Entry(
        errors=("UnserializableException",),
        means="UnserializableException means that a task raised an exception that Python can pickle, but not unpickle.",
        cause="Python cannot unpickle an exception if the exception's method __reduce__ or __setstate__ is wrong.",
        fix="Change the method __reduce__ of the exception's class, so that it returns a callable and the arguments "
        "from which Python can create the exception again.",
    ),
    "simulation-stuck": Entry(
        errors=("SimulationDeadlockError",),
        means="SimulationDeadlockError means that a simulated program waits for a value or an event that can never "
        "arrive.",
        cause="A simulated program is stuck if its tasks wait for one another, or for resources that idle actors "
        "hold. A simulated program can be stuck because the simulated network has lost a message.",
        fix="The message of SimulationDeadlockError says what each task waits for. If a simulation is stuck, free "
        "the resources that its waiting tasks need, or pass a timeout to get() and wait().",
    ),
    "store-full": Entry(
        errors=("ObjectStoreFullError", "OutOfDiskError"),
        means="ObjectStoreFullError means that the object store of a node has no space for an object. If the disk is "
        "full, dualray raises ObjectStoreFullError, and never OutOfDiskError.",
        cause="The object store becomes full if the program keeps references to more objects than memory and disk "
        "can hold.",
        fix="Delete references that the program no longer needs, free space on the disk, or enlarge the object store "
        "with init(object_store_memory=BYTES). The message of ObjectStoreFullError names the largest objects in the "
        "store, and the lines of code at which the program keeps references to objects. The command `dualray memory` "
        "lists the objects in all object stores of the cluster.",
    ),
    "task-cancelled": Entry(
        errors=("TaskCancelledError",),
        means="TaskCancelledError means that the program cancelled a task, or that an argument of a task comes from "
        "a cancelled task.",
        cause="A program cancels a task with dualray.cancel(ref), where ref is an ObjectRef of the task's result.",
        fix="If the program may cancel a task, catch TaskCancelledError around each get() of the task's result.",
    ),
    "task-failed": Entry(
        errors=("TaskError",),
        means="TaskError means that a function or method of your program raised an error in a worker process.",
        cause="A TaskError has two tracebacks: one of the line that called get(), and one of the line that failed in "
        "the worker.",
        fix="To debug a failing task, run the program in one process with `dualray run script.py --mode sim`. In a "
        "simulation, breakpoints work inside tasks.",
    ),
    "timeout": Entry(
        errors=("GetTimeoutError",),
        means="GetTimeoutError means that some values were not ready within the timeout of get().",
        cause="A call of get() times out if the tasks that compute the requested values are slow, or if these tasks "
        "wait for resources.",
        fix="To find the values that are ready, call wait(refs, timeout=SECONDS), and call get() only for these "
        "values. The command `dualray list tasks` shows why each task waits.",
    ),
    "unschedulable": Entry(
        errors=("TaskUnschedulableError", "ActorUnschedulableError"),
        means="TaskUnschedulableError and ActorUnschedulableError mean that no node of the cluster can ever run a "
        "task or hold an actor.",
        cause="A task or actor is unschedulable if it demands more CPUs, GPUs or memory than any node has. A task or "
        "actor is unschedulable if it requires a node that does not exist, or a node label that no node has.",
        fix="The message of a TaskUnschedulableError or ActorUnschedulableError names the node that comes closest to "
        "the demand, and the resources that this node lacks. Reduce the resources that the unschedulable task or "
        "actor demands, or start another node with `dualray start`.",
    ),
    "worker-crashed": Entry(
        errors=("WorkerCrashedError",),
        means="WorkerCrashedError means that the worker process that ran a task died, and that the task has no retry "
        "left.",
        cause="A worker process dies if a library crashes (SIGSEGV), if the operating system kills the process "
        "(SIGKILL), or if the task's code calls os._exit.",
        fix="The command `dualray logs` prints the output of a worker process that died. If a task may safely run "
        "twice, set the task's option max_retries=N, so that dualray runs the task again after a crash.",
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
