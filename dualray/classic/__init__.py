"""The vocabulary of 2017: `import dualray.classic as ray` runs the programs of that time, in both modes.

It is thin: every name below says the same thing to the same runtime as today's vocabulary does, in the words, units and
forms of then. What differs:

    init(...)           redis_address, num_workers, driver_mode and their like; returns addresses
    remote, actor       num_return_vals; `Cls(...)` for `Cls.remote(...)`, `actor.method(...)` for `.method.remote(...)`
    wait                its timeout counts milliseconds; more may be asked for than there is, with a timeout
    ObjectID            a reference's name, and its text `ObjectID(<40 hex digits>)`
    env                 variables that each worker makes for itself, and makes anew after a task has used them
    error_info          the errors of this driver's tasks, of every process
    global_state        the control plane's tables
    PYTHON_MODE         tasks run at once, in the driver (`inline.py`, a third runtime)

`docs/classic.md` has the whole page.
"""

from dualray import experimental
from dualray.api import get_gpu_ids
from dualray.classic import services, worker
from dualray.classic.environment import EnvironmentVariable, env, reusables
from dualray.classic.functions import ClassicActorClass, ClassicActorHandle, ClassicFunction, actor, remote
from dualray.classic.modes import PYTHON_MODE, SCRIPT_MODE, SILENT_MODE, WORKER_MODE
from dualray.classic.object_id import ObjectID
from dualray.classic.state import error_info, global_state
from dualray.classic.verbs import get, init, put, register_class, shutdown, wait

Reusable = EnvironmentVariable

__all__ = [
    "PYTHON_MODE",
    "SCRIPT_MODE",
    "SILENT_MODE",
    "WORKER_MODE",
    "ClassicActorClass",
    "ClassicActorHandle",
    "ClassicFunction",
    "EnvironmentVariable",
    "ObjectID",
    "Reusable",
    "actor",
    "env",
    "error_info",
    "experimental",
    "get",
    "get_gpu_ids",
    "global_state",
    "init",
    "put",
    "register_class",
    "remote",
    "reusables",
    "services",
    "shutdown",
    "wait",
    "worker",
]
