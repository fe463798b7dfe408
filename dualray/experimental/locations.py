"""Locations of objects: their nodes, their sizes, and whether they are on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dualray import runtime
from dualray.exceptions import GetTimeoutError
from dualray.object_ref import ObjectRef

_ANSWER_TIMEOUT_S = 10.0
"""Seconds that each process has to answer, when the caller does not say."""


def get_object_locations(
    obj_refs: Sequence[ObjectRef[Any]], timeout_ms: int = -1
) -> dict[ObjectRef[Any], dict[str, Any]]:
    """Return the locations of the objects that references refer to.

    Args:
        obj_refs: a list of references.
        timeout_ms: milliseconds that each process of the cluster has to answer. If negative, dualray waits 10 seconds,
            and leaves out processes that did not answer.

    Returns:
        For each reference to a known object: {"node_ids": [...], "object_size": bytes, "did_spill": bool}. `node_ids`
            is empty for small results of tasks. A small object from `put` is on its owner's node. The size is None
            while it is not known, for example while the task runs. `did_spill` says whether a node has the object on
            disk.

    Raises:
        TypeError: `obj_refs` is not a list of references.
        GetTimeoutError: a process did not answer within `timeout_ms`.
    """
    wanted = _checked("get_object_locations", obj_refs)
    verbs = runtime.current("get_object_locations").verbs
    if not wanted:
        return {}
    timeout_s = timeout_ms / 1e3 if timeout_ms >= 0 else _ANSWER_TIMEOUT_S
    rows, missing = verbs.state_rows("object_locations", round(timeout_s * 1e9))
    if missing and timeout_ms >= 0:
        raise GetTimeoutError(
            f"get_object_locations: the processes {', '.join(missing)} did not answer within {timeout_ms} ms"
        )
    known = {row["object_id"]: row for row in rows}
    found = {}
    for ref in wanted:
        row = known.get(ref.hex())
        if row is not None:
            is_there = row["state"] not in ("PENDING", "FAILED")
            found[ref] = {
                "node_ids": list(row["node_ids"]),
                "object_size": row["size_bytes"] if is_there else None,
                "did_spill": row["did_spill"],
            }
    return found


def get_local_object_locations(obj_refs: Sequence[ObjectRef[Any]]) -> dict[ObjectRef[Any], dict[str, Any]]:
    """Return the same as `get_object_locations`. Ray asks only the calling process here; dualray asks the head."""
    return get_object_locations(_checked("get_local_object_locations", obj_refs))


def _checked(verb: str, obj_refs: Sequence[ObjectRef[Any]]) -> list[ObjectRef[Any]]:
    if isinstance(obj_refs, ObjectRef):
        raise TypeError(f"{verb} takes a list of references, not {obj_refs!r}: write {verb}([ref])")
    wanted = list(obj_refs)
    for ref in wanted:
        if not isinstance(ref, ObjectRef):
            raise TypeError(
                f"{verb} takes a list of references, but the list contains {ref!r} (type {type(ref).__name__})"
            )
        ref._check_usable()
    return wanted
