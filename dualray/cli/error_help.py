"""What `dualray help KEY` prints of an error: what it means, why it comes, and what to do.

Each key stands for one error, or one family of errors, of dualray.exceptions. docs/errors.md has the same anchors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ENTRIES", "Entry", "key_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry.

    Attributes:
        errors: the names of the classes in dualray.exceptions that it explains.
        means, cause, fix: sentences.
    """

    errors: tuple[str, ...]
    means: str
    cause: str
    fix: str


ENTRIES: Final[dict[str, Entry]] = {
    "actor-died": Entry(
        errors=("ActorDiedError",),
        means="The actor is gone for good, and its calls fail.",
        cause="Its constructor raised, it died more often than max_restarts allows, or kill() ended it.",
        fix="Give the class max_restarts=N, and its methods max_task_retries=N. A restarted actor runs __init__ "
        "again and loses its state: save what must survive.",
    ),
    "actor-unavailable": Entry(
        errors=("ActorUnavailableError",),
        means="The actor was lost during the call, or is restarting. The call is not repeated.",
        cause="The actor has max_restarts, and the called method has no max_task_retries left.",
        fix="Call again, or set max_task_retries=N when a method may run twice.",
    ),
    "actor-name": Entry(
        errors=("ActorAlreadyExistsError", "ActorHandleNotFoundError"),
        means="The name of an actor is taken, or no actor has it.",
        cause="Names are unique within a namespace, and an actor without lifetime='detached' ends with its creator.",
        fix="Use options(name=..., get_if_exists=True), or list the names: dualray list actors.",
    ),
    "not-initialized": Entry(
        errors=("NotInitializedError", "AlreadyInitializedError"),
        means="A call needs a running cluster, or init() was called twice.",
        cause="The first call of the API starts a cluster unless DUALRAY_AUTO_INIT=0. A forked process cannot use the "
        "cluster of its parent.",
        fix="Call dualray.init() once at the start, or dualray.init(ignore_reinit_error=True).",
    ),
    "object-lost": Entry(
        errors=("ObjectLostError", "ObjectReconstructionFailedError", "OwnerDiedError"),
        means="The value of a reference is gone and cannot be computed again.",
        cause="Its last copy was lost with a node, and it came from put(), from an actor, or from a task out of "
        "retries. OwnerDiedError: the process that created the reference died.",
        fix="Return large values from tasks with max_retries, or put() them again. dualray explain ID DIRECTORY tells "
        "the object's history.",
    ),
    "reference-ended": Entry(
        errors=("ReferenceEndedError",),
        means="The cluster that a reference or a handle belongs to was shut down.",
        cause="The program kept it over shutdown(), and the next cluster does not know it.",
        fix="Call put() or .remote() again after init().",
    ),
    "pickled-reference": Entry(
        errors=("OufOfBandObjectRefSerializationException",),
        means="The program pickled a reference, and RAY_allow_out_of_band_object_ref_serialization=0 forbids it.",
        cause="pickle.dumps(ref) hides a reference from dualray, so the process that calls it keeps the object for "
        "life.",
        fix="Pass the reference to a task or an actor, or return it. Unset the variable to allow pickling "
        "references by hand.",
    ),
    "out-of-memory": Entry(
        errors=("OutOfMemoryError",),
        means="The node was out of memory, and its memory monitor ended the worker.",
        cause="The tasks that ran at once used more memory than the machine has.",
        fix="Give the tasks memory=BYTES or more num_cpus, so that fewer run at once.",
    ),
    "out-of-reach": Entry(
        errors=("NodeDiedError", "WorkerUnreachableError", "ControlPlaneError", "AuthenticationError"),
        means="The program cannot reach a process of the cluster, or that process refuses the connection.",
        cause="A node died, the network is cut, the head or Redis has ended, or the secret or the version differs.",
        fix="Run dualray status and dualray logs. Use the same dualray version and the head's secret file everywhere.",
    ),
    "pending-calls": Entry(
        errors=("PendingCallsLimitExceeded",),
        means="Too many calls of an actor have no answer yet.",
        cause="The actor's max_pending_calls is reached.",
        fix="Wait for some results with wait() before you submit more.",
    ),
    "placement-group": Entry(
        errors=(
            "PlacementGroupUnschedulableError",
            "PlacementGroupAlreadyExistsError",
            "TaskPlacementGroupRemoved",
            "RunningTaskPlacementGroupRemoved",
            "ActorPlacementGroupRemoved",
        ),
        means="A placement group cannot be placed, or was removed while it was in use.",
        cause="The bundles ask for more than the nodes can ever offer, or remove_placement_group() was called.",
        fix="Compare the bundles with dualray status. Remove a group only when its tasks and actors have ended.",
    ),
    "runtime-env": Entry(
        errors=("RuntimeEnvSetupError",),
        means="The environment of a worker could not be prepared.",
        cause="working_dir or py_modules names a path that is missing or too large, a package is not installed, or the "
        "setup hook failed.",
        fix="dualray installs no packages: install them on every node, or ship code with py_modules.",
    ),
    "serialization": Entry(
        errors=("SerializationError",),
        means="A value, an argument or a function cannot be pickled.",
        cause="It holds a lock, a socket, a file or a generator, often through a captured variable.",
        fix="Create locks, files and connections inside the task or the actor. "
        "dualray.util.inspect_serializability(f) finds the part.",
    ),
    "unreadable-exception": Entry(
        errors=("UnserializableException",),
        means="A task raised an exception that can be pickled, but not unpickled.",
        cause="Its class defines __reduce__ or __setstate__, and one of them fails when it is read. A constructor with "
        "other arguments does no harm.",
        fix="Let __reduce__ return what the class can be made of again.",
    ),
    "simulation-stuck": Entry(
        errors=("SimulationDeadlockError",),
        means="The program waits for something that can never happen.",
        cause="Tasks wait for one another, or for resources that idle actors hold, or for a lost message.",
        fix="The message names each wait. Free the resources, or give waits a timeout.",
    ),
    "store-full": Entry(
        errors=("ObjectStoreFullError", "OutOfDiskError"),
        means="The object store of a node has no room, and nothing more can be written to disk.",
        cause="Variables of the program keep more objects than memory and disk can hold.",
        fix="Delete references that you no longer need, set init(object_store_memory=...), or free the disk. The "
        "message names the lines that keep the objects, and dualray memory lists them.",
    ),
    "task-cancelled": Entry(
        errors=("TaskCancelledError",),
        means="The task was cancelled, or one of its arguments comes from a cancelled task.",
        cause="dualray.cancel(ref) was called.",
        fix="Catch the error where you get the result.",
    ),
    "task-failed": Entry(
        errors=("TaskError",),
        means="Your function raised an error in a worker.",
        cause="The second traceback shows the line in the worker. The first one shows the line that read the result.",
        fix="Debug it in one process: dualray run script.py --mode sim. A debugger stops inside tasks there.",
    ),
    "timeout": Entry(
        errors=("GetTimeoutError",),
        means="get() did not have every value within its timeout.",
        cause="Tasks are slow, or wait for resources.",
        fix="Use wait(refs, timeout=...) for those that are ready. dualray list tasks shows why each of them waits.",
    ),
    "unschedulable": Entry(
        errors=("TaskUnschedulableError", "ActorUnschedulableError"),
        means="No node of the cluster can ever meet the demand of a task or an actor.",
        cause="It asks for more CPUs, GPUs or memory than any node has, or for a node or label that is gone.",
        fix="The message names the nearest node and what is missing. Ask for less, or start a node: dualray start.",
    ),
    "worker-crashed": Entry(
        errors=("WorkerCrashedError",),
        means="The process that ran a task died, and the task has no retry left.",
        cause="A library crashed (SIGSEGV), the system killed it (SIGKILL), or the code called os._exit.",
        fix="dualray logs shows what it printed. Give the task max_retries=N when it may run twice.",
    ),
}
"""By key."""


def key_of(error: BaseException) -> str | None:
    """The key of the entry that explains an error; None: it is none of dualray's."""
    for cls in type(error).__mro__:
        for key, entry in ENTRIES.items():
            if cls.__name__ in entry.errors:
                return key
    return None
