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
        means="The actor has ended and will not restart. All further calls of the actor fail.",
        cause="The actor's constructor raised an error, kill() ended the actor, or the actor died more often than "
        "max_restarts allows.",
        fix="Give the class max_restarts=N, and its methods max_task_retries=N. A restarted actor runs __init__ again "
        "and loses its state, so save the state that you need.",
    ),
    "actor-unavailable": Entry(
        errors=("ActorUnavailableError",),
        means="The actor died during the call, or is restarting. dualray does not repeat the call.",
        cause="The actor may restart (max_restarts), but the method has no retry left (max_task_retries).",
        fix="Call the method again. If the method may run twice, set max_task_retries=N.",
    ),
    "actor-name": Entry(
        errors=("ActorAlreadyExistsError", "ActorHandleNotFoundError"),
        means="The program created an actor with a name that another actor has, or asked for a name that no actor has.",
        cause="Actor names are unique within a namespace. An actor without lifetime='detached' ends with the process "
        "that created it.",
        fix="Use options(name=..., get_if_exists=True), or run dualray list actors to see the names.",
    ),
    "not-initialized": Entry(
        errors=("NotInitializedError", "AlreadyInitializedError"),
        means="The program called a function that needs a running cluster, or called init() twice.",
        cause="With DUALRAY_AUTO_INIT=0, only init() starts a cluster. A forked process cannot use the cluster of its "
        "parent.",
        fix="Call dualray.init() once at the start of the program, or call dualray.init(ignore_reinit_error=True).",
    ),
    "object-lost": Entry(
        errors=("ObjectLostError", "ObjectReconstructionFailedError", "OwnerDiedError"),
        means="The value of a reference is lost, and dualray cannot compute the value again.",
        cause="The last copy of the value was lost with a node, and the value came from put(), from an actor, or from "
        "a task without a retry left. OwnerDiedError: the process that created the reference died.",
        fix="Compute large values in tasks with max_retries, or call put() again. dualray explain ID DIRECTORY prints "
        "the history of an object.",
    ),
    "reference-ended": Entry(
        errors=("ReferenceEndedError", "ActorHandleEndedError"),
        means="The cluster that a reference or a handle belongs to was shut down.",
        cause="The program kept a reference or a handle after shutdown(). References and handles are not valid in the "
        "next cluster.",
        fix="After init(), create the reference or the handle again with put() or .remote().",
    ),
    "pickled-reference": Entry(
        errors=("OufOfBandObjectRefSerializationException",),
        means="The program pickled a reference, which RAY_allow_out_of_band_object_ref_serialization=0 forbids.",
        cause="dualray cannot count the copies of a reference that pickle.dumps(ref) makes. A process that pickles a "
        "reference therefore keeps the object until the process ends.",
        fix="Pass the reference to a task or an actor, or return the reference. To let the program pickle references "
        "itself, unset RAY_allow_out_of_band_object_ref_serialization.",
    ),
    "out-of-memory": Entry(
        errors=("OutOfMemoryError",),
        means="A node had too little memory, so the node killed the worker of the task.",
        cause="The tasks that ran on the node at the same time used more memory than the machine has.",
        fix="Give the tasks memory=BYTES or a larger num_cpus, so that fewer tasks run at the same time.",
    ),
    "out-of-reach": Entry(
        errors=("NodeDiedError", "WorkerUnreachableError", "ControlPlaneError", "AuthenticationError"),
        means="The program cannot reach a process of the cluster, or the process refuses the connection.",
        cause="A node died, the network is down, the head or Redis has ended, or the processes have different secrets "
        "or versions of dualray.",
        fix="Run dualray status and dualray logs. Use the same version of dualray and the head's secret file on all "
        "machines.",
    ),
    "pending-calls": Entry(
        errors=("PendingCallsLimitExceeded",),
        means="An actor has too many calls that have not ended yet.",
        cause="The number of unfinished calls has reached the actor's max_pending_calls.",
        fix="Wait for some results with wait() before you make more calls of the actor.",
    ),
    "placement-group": Entry(
        errors=(
            "PlacementGroupUnschedulableError",
            "PlacementGroupAlreadyExistsError",
            "TaskPlacementGroupRemoved",
            "RunningTaskPlacementGroupRemoved",
            "ActorPlacementGroupRemoved",
        ),
        means="The cluster cannot place the placement group, or the program removed the group while tasks or actors "
        "used it.",
        cause="The bundles of the group demand more than the nodes can ever offer, or the program called "
        "remove_placement_group().",
        fix="Run dualray status, and compare the bundles with the nodes. Remove a placement group only after its "
        "tasks and actors have ended.",
    ),
    "runtime-env": Entry(
        errors=("RuntimeEnvSetupError",),
        means="dualray could not prepare the runtime environment of a worker.",
        cause="A path in working_dir or py_modules does not exist on the node, a package is not installed, or the "
        "setup hook failed.",
        fix="dualray installs no packages and copies no directories. Before you start the cluster, install the "
        "packages and copy the directories on every node.",
    ),
    "serialization": Entry(
        errors=("SerializationError",),
        means="dualray cannot pickle a value, an argument or a function.",
        cause="The value contains a lock, a socket, a file or a generator, often through a captured variable.",
        fix="Create locks, files and connections inside the task or the actor. "
        "dualray.util.inspect_serializability(f) finds the part that cannot be pickled.",
    ),
    "unreadable-exception": Entry(
        errors=("UnserializableException",),
        means="A task raised an exception that can be pickled, but not unpickled.",
        cause="The exception's class defines __reduce__ or __setstate__, and unpickling the exception fails.",
        fix="Make __reduce__ return a callable and arguments that create the exception again.",
    ),
    "simulation-stuck": Entry(
        errors=("SimulationDeadlockError",),
        means="The program waits for something that can never happen.",
        cause="Tasks wait for one another, for resources that idle actors hold, or for a lost message.",
        fix="The error says what each task waits for. Free the resources, or give get() and wait() a timeout.",
    ),
    "store-full": Entry(
        errors=("ObjectStoreFullError", "OutOfDiskError"),
        means="The object store of a node is full, and dualray cannot write more objects to disk.",
        cause="The program keeps references to more objects than memory and disk can hold.",
        fix="Delete references that you no longer need, set a larger init(object_store_memory=...), or free space on "
        "the disk. The error names the lines of code that keep objects, and dualray memory lists the objects.",
    ),
    "task-cancelled": Entry(
        errors=("TaskCancelledError",),
        means="The program cancelled the task, or an argument of the task comes from a cancelled task.",
        cause="The program called dualray.cancel(ref).",
        fix="Catch TaskCancelledError where the program calls get().",
    ),
    "task-failed": Entry(
        errors=("TaskError",),
        means="Your function raised an error in a worker.",
        cause="The first traceback shows the line that called get(). The second traceback shows the line that failed "
        "in the worker.",
        fix="Debug the program in one process with dualray run script.py --mode sim. In a simulation, a debugger "
        "stops inside tasks.",
    ),
    "timeout": Entry(
        errors=("GetTimeoutError",),
        means="Some values were not ready within the timeout of get().",
        cause="The tasks that compute the values are slow, or wait for resources.",
        fix="To get the values that are ready, use wait(refs, timeout=...). dualray list tasks shows why each task "
        "waits.",
    ),
    "unschedulable": Entry(
        errors=("TaskUnschedulableError", "ActorUnschedulableError"),
        means="No node of the cluster can ever meet the demand of a task or an actor.",
        cause="The task or actor demands more CPUs, GPUs or memory than any node has, or a node or label that does "
        "not exist.",
        fix="The error names the most suitable node and the resources that the node lacks. Demand less, or start "
        "another node with dualray start.",
    ),
    "worker-crashed": Entry(
        errors=("WorkerCrashedError",),
        means="The process that ran a task died, and the task has no retry left.",
        cause="A library crashed (SIGSEGV), the operating system killed the process (SIGKILL), or the code called "
        "os._exit.",
        fix="dualray logs prints the output of the process. If the task may run twice, give it max_retries=N.",
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
