"""`explain`, which says why a value is not ready."""

from __future__ import annotations

from typing import Any

from dualray import api, runtime
from dualray.object_ref import ObjectRef


def explain(ref: ObjectRef[Any]) -> str:
    """Return a text that says what the value of a reference waits for.

    The text names the tasks or actors that hold the needed CPUs, the actor's running method, the missing argument, or
    the missing resources of the nearest node. A `GetTimeoutError` contains the same text.

    Raises:
        TypeError: the argument is not a reference.
        NotInitializedError: the program has not called `dualray.init()`.
    """
    verbs = runtime.current("explain").verbs
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"explain takes an ObjectRef, not {ref!r} (type {type(ref).__name__})")
    ref._check_usable()
    if api.wait([ref], timeout=0, fetch_local=False)[0]:
        return f"object {ref.hex()} is ready"
    return verbs.explain(ref.ref)
