"""Why a value is not there: asked by the program itself, at any time."""

from __future__ import annotations

from typing import Any

from dualray import api, runtime
from dualray.object_ref import ObjectRef


def explain(ref: ObjectRef[Any]) -> str:
    """In words, what the value of a reference waits for: who holds the CPUs that its task needs, what the actor does
    instead, which argument is missing, what lacks on the nearest node. The same words are in a `GetTimeoutError`.

    Raises:
        TypeError: not a reference.
        NotInitializedError: before `dualray.init()`.
    """
    verbs = runtime.current("explain").verbs
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"explain takes an ObjectRef, not {ref!r} (a {type(ref).__name__})")
    ref._check_usable()
    if api.wait([ref], timeout=0, fetch_local=False)[0]:
        return f"object {ref.hex()} is ready"
    return verbs.explain(ref.ref)
