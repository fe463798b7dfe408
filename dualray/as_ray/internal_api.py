"""What programs take from `ray._private.internal_api`: Ray's guide names it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from dualray.as_ray.resources import store_bytes, store_bytes_free
from dualray.object_ref import ObjectRef
from dualray.util import state

__all__ = ["free", "memory_summary"]

_FIELDS = ("object_id", "size_bytes", "reference_type", "state", "owner", "call_site")


def free(object_refs: ObjectRef[Any] | Sequence[ObjectRef[Any]], local_only: bool = False) -> None:
    """Do nothing, and say so once: an object is freed when its last reference is gone.

    Args:
        object_refs: the references.
        local_only: not used.

    Raises:
        TypeError: another thing than references.
    """
    refs = [object_refs] if isinstance(object_refs, ObjectRef) else list(object_refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"free() takes ObjectRefs, not {ref!r}")
    warnings.warn("free() has no effect: dualray frees an object when its last reference is gone", stacklevel=2)


def memory_summary(
    address: str | None = None,
    group_by: str = "NODE_ADDRESS",
    sort_by: str = "OBJECT_SIZE",
    units: str = "B",
    line_wrap: bool = True,
    stats_only: bool = False,
    num_entries: int | None = None,
) -> str:
    """The objects of the cluster as a text, the largest first, and how much they take together and of the stores.

    Args:
        address: of the cluster; by default this program's.
        group_by, sort_by, line_wrap: not used.
        units: of the total: B, KB, MB or GB.
        stats_only: the totals alone.
        num_entries: objects at most; by default all.

    Raises:
        ValueError: another unit.
    """
    factors = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    if units not in factors:
        raise ValueError(f"units={units!r} must be one of {', '.join(factors)}")
    rows = state.list_objects(address=address, limit=1 << 62, detail=True, raise_on_missing_output=False)
    rows.sort(key=lambda row: (-(row.get("size_bytes") or 0), row["object_id"]))
    total = sum(row.get("size_bytes") or 0 for row in rows)
    lines = [f"{len(rows)} objects, {total / factors[units]:g} {units}", _of_stores(rows)]
    if not stats_only and rows:
        fields = [field for field in _FIELDS if any(row.get(field) not in (None, "") for row in rows)]
        shown = [fields, *([str(row.get(field, "")) for field in fields] for row in rows[:num_entries])]
        widths = [max(len(row[column]) for row in shown) for column in range(len(fields))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in shown] + lines
    return "\n".join(line.rstrip() for line in lines)


def _of_stores(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how much of the object stores of all living nodes is in use, in Ray's words."""
    size = sum(store_bytes().values())
    used = round(size - sum(store_bytes_free().values()))
    stored = sum(row.get("state") == "STORED" for row in rows)
    return f"Plasma memory usage {used >> 20} MiB, {stored} objects, {100 * used / (size or 1):.2f}% full"
