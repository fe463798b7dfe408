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
        means="An actor ended and will not restart, so all further calls of the actor fail.",
        cause="The actor's constructor raised an error, kill() ended the actor, or the actor died more often than "
        "max_restarts allows.",
        fix="Give the actor's class the options max_restarts=N and max_task_retries=N. A restarted actor runs "
        "__init__ again and loses its state, so let the actor save its state outside the process.",
    ),
    "actor-unavailable": Entry(
        errors=("ActorUnavailableError",),
        means="An actor died during a call, or is restarting, and dualray does not repeat the call.",
        cause="The actor has a restart left (max_restarts), but the call has no retry left (max_task_retries).",
        fix="Call the actor's method again. If the method may safely run twice, set max_task_retries=N.",
    ),
    "actor-name": Entry(
        errors=("ActorAlreadyExistsError", "ActorHandleNotFoundError"),
        means="The program created an actor with a name that another actor has, or called get_actor() with a name "
        "that no actor has.",
        cause="Actor names are unique within a namespace. An actor without lifetime='detached' ends with the process "
        "that created it.",
        fix="To get an existing actor or else create it, use options(name=..., get_if_exists=True). dualray list "
        "actors shows the names of all actors.",
    ),
    "not-initialized": Entry(
        errors=("NotInitializedError", "AlreadyInitializedError"),
        means="The program called a function that needs a running cluster, or called init() twice.",
        cause="With DUALRAY_AUTO_INIT=0, only init() starts a cluster, and other functions raise NotInitializedError. "
        "A forked process cannot use the cluster of its parent.",
        fix="Call dualray.init() once at the start of the program, or call dualray.init(ignore_reinit_error=True).",
    ),
    "object-lost": Entry(
        errors=("ObjectLostError", "ObjectReconstructionFailedError", "OwnerDiedError"),
        means="The value of a reference is lost, and dualray cannot compute the value again.",
        cause="The node with the last copy of the value died. dualray cannot recompute a value from put(), from an "
        "actor, or from a task without a retry left. OwnerDiedError means that the process that created the reference "
        "died.",
        fix="Compute large values in tasks with max_retries, or call put() again. dualray explain ID DIRECTORY reads "
        "the decision log of a run, and prints the history of an object.",
    ),
    "reference-ended": Entry(
        errors=("ReferenceEndedError", "ActorHandleEndedError"),
        means="The program used a reference or an actor handle after shutdown() ended its cluster.",
        cause="References and actor handles are valid only in the cluster that created them, and not in the cluster "
        "of the next init().",
        fix="After init(), create the reference or the handle again with put() or .remote().",
    ),
    "pickled-reference": Entry(
        errors=("OufOfBandObjectRefSerializationException",),
        means="The program pickled a reference, which RAY_allow_out_of_band_object_ref_serialization=0 forbids.",
        cause="dualray cannot count the copies of a reference that pickle.dumps(ref) makes. A process that pickles a "
        "reference therefore keeps the object until the process ends.",
        fix="Pass the reference to a task or an actor as an argument, or return the reference from a task. To let the "
        "program pickle references itself, unset RAY_allow_out_of_band_object_ref_serialization.",
    ),
    "out-of-memory": Entry(
        errors=("OutOfMemoryError",),
        means="A node had too little free memory, so the node killed the worker that ran a task.",
        cause="The tasks that ran on the node at the same time used more memory than the machine has.",
        fix="Give the tasks memory=BYTES or a larger num_cpus, so that fewer tasks run at the same time.",
    ),
    "out-of-reach": Entry(
        errors=("NodeDiedError", "WorkerUnreachableError", "ControlPlaneError", "AuthenticationError"),
        means="The program cannot reach a process of the cluster, or the process refuses the connection.",
        cause="A node died, the network is down, the cluster's head process or Redis has ended, or the processes have "
        "different secrets or versions of dualray.",
        fix="To find the failed process, run dualray status and dualray logs. Use the same version of dualray and the "
        "same secret file on all machines.",
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
        means="The cluster cannot place a placement group, or the program removed a placement group while tasks or "
        "actors used it.",
        cause="The bundles of the placement group demand more than the nodes can ever offer, or the program called "
        "remove_placement_group().",
        fix="Compare the bundles of the placement group with the nodes' resources in the output of dualray status. "
        "Remove a placement group only after its tasks and actors have ended.",
    ),
    "runtime-env": Entry(
        errors=("RuntimeEnvSetupError",),
        means="dualray could not prepare the runtime environment of a worker.",
        cause="A path in working_dir or py_modules does not exist on the node, a package is not installed, or "
        "worker_process_setup_hook raised an error.",
        fix="dualray installs no packages and copies no directories for a runtime_env. Before you start the cluster, "
        "install the packages and copy the directories to every node.",
    ),
    "serialization": Entry(
        errors=("SerializationError",),
        means="dualray cannot pickle a value, an argument or a function.",
        cause="The value or function refers to a lock, a socket, an open file or a generator, often through a "
        "captured variable.",
        fix="Create locks, files and connections inside the task or the actor. "
        "dualray.util.inspect_serializability(f) finds the parts of f that cannot be pickled.",
    ),
    "unreadable-exception": Entry(
        errors=("UnserializableException",),
        means="A task raised an exception that can be pickled, but not unpickled.",
        cause="The exception's class defines __reduce__ or __setstate__, and unpickling the exception fails.",
        fix="Make __reduce__ return a callable and arguments that create the exception again.",
    ),
    "simulation-stuck": Entry(
        errors=("SimulationDeadlockError",),
        means="A simulated program waits for a value or an event that can never arrive.",
        cause="Tasks wait for one another, for resources that idle actors hold, or for a lost message.",
        fix="SimulationDeadlockError says what each task waits for. Free the resources that the tasks need, or give "
        "get() and wait() a timeout.",
    ),
    "store-full": Entry(
        errors=("ObjectStoreFullError", "OutOfDiskError"),
        means="The object store of a node is full, and dualray cannot write more objects to disk.",
        cause="The program keeps references to more objects than memory and disk can hold.",
        fix="Delete references that you no longer need, set a larger init(object_store_memory=...), or free space on "
        "the disk. ObjectStoreFullError names the lines of code that keep objects, and dualray memory lists the "
        "objects.",
    ),
    "task-cancelled": Entry(
        errors=("TaskCancelledError",),
        means="The program cancelled a task, or an argument of a task comes from a cancelled task.",
        cause="The program called dualray.cancel(ref).",
        fix="Catch TaskCancelledError where the program calls get().",
    ),
    "task-failed": Entry(
        errors=("TaskError",),
        means="A function or method of your program raised an error in a worker.",
        cause="The first traceback of a TaskError shows the line that called get(). The second traceback of a "
        "TaskError shows the line that failed in the worker.",
        fix="Debug the program in one process with dualray run script.py --mode sim. In a simulation, a debugger "
        "stops inside tasks.",
    ),
    "timeout": Entry(
        errors=("GetTimeoutError",),
        means="Some values were not ready within the timeout of get().",
        cause="The tasks that compute the missing values are slow, or wait for resources.",
        fix="To get only the values that are ready, use wait(refs, timeout=...). dualray list tasks shows why each "
        "task waits.",
    ),
    "unschedulable": Entry(
        errors=("TaskUnschedulableError", "ActorUnschedulableError"),
        means="No node of the cluster can ever meet the demand of a task or an actor.",
        cause="The task or actor demands more CPUs, GPUs or memory than any node has, or a node or label that does "
        "not exist.",
        fix="TaskUnschedulableError and ActorUnschedulableError name the most suitable node and its missing "
        "resources. Demand fewer resources, or start another node with dualray start.",
    ),
    "worker-crashed": Entry(
        errors=("WorkerCrashedError",),
        means="The process that ran a task died, and the task has no retry left.",
        cause="A library crashed (SIGSEGV), the operating system killed the process (SIGKILL), or the code called "
        "os._exit.",
        fix="dualray logs prints the output of the process that died. If the task may safely run twice, set "
        "max_retries=N.",
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
