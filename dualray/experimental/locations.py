"""Where objects are: on which nodes, how large, and whether on disk."""

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
    """Where the objects of references are.

    Args:
        obj_refs: a list of references.
        timeout_ms: milliseconds that each process of the cluster has to answer; negative: 10 seconds, and who has not
            answered then is passed over.

    Returns:
        For each reference whose object is known: {"node_ids": [...], "object_size": bytes, "did_spill": bool}.
        `node_ids` is empty of small results of tasks; a small object of `put` is where its owner is. The size
        is None while it is not known, as of a task that has not ended. `did_spill`: a node has it on disk.

    Raises:
        TypeError: no list of references.
        GetTimeoutError: somebody has not answered in `timeout_ms`.
    """
    wanted = _checked("get_object_locations", obj_refs)
    verbs = runtime.current("get_object_locations").verbs
    if not wanted:
        return {}
    timeout_s = timeout_ms / 1e3 if timeout_ms >= 0 else _ANSWER_TIMEOUT_S
    rows, missing = verbs.state_rows("object_locations", round(timeout_s * 1e9))
    if missing and timeout_ms >= 0:
        raise GetTimeoutError(f"get_object_locations: {', '.join(missing)} did not answer within {timeout_ms} ms")
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
    """As `get_object_locations`. In Ray it asks the calling process alone; here the head knows where objects are."""
    return get_object_locations(_checked("get_local_object_locations", obj_refs))


def _checked(verb: str, obj_refs: Sequence[ObjectRef[Any]]) -> list[ObjectRef[Any]]:
    if isinstance(obj_refs, ObjectRef):
        raise TypeError(f"{verb} takes a list of references, not {obj_refs!r}: write {verb}([ref])")
    wanted = list(obj_refs)
    for ref in wanted:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"{verb} takes a list of references, and {ref!r} (a {type(ref).__name__}) is among them")
        ref._check_usable()
    return wanted
