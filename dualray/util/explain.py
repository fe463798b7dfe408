"""Explain why a value is not ready; a program can ask at any time."""

from __future__ import annotations

from typing import Any

from dualray import api, runtime
from dualray.object_ref import ObjectRef


def explain(ref: ObjectRef[Any]) -> str:
    """Return a text that says what the value of a reference waits for.

    It names the tasks or actors that hold the needed CPUs, what the actor does instead, the missing argument, or what
    the nearest node lacks. A `GetTimeoutError` has the same text.

    Raises:
        TypeError: the argument is not a reference.
        NotInitializedError: `dualray.init()` was not called before.
    """
    verbs = runtime.current("explain").verbs
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"explain takes an ObjectRef, not {ref!r} (type {type(ref).__name__})")
    ref._check_usable()
    if api.wait([ref], timeout=0, fetch_local=False)[0]:
        return f"object {ref.hex()} is ready"
    return verbs.explain(ref.ref)
