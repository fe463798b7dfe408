"""`ray.timeline`: the picture of a run in the form that programs for Ray read, a list of rows with Ray's names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dualray.report import present

__all__ = ["timeline"]

Row = dict[str, Any]


def timeline(filename: str | Path | None = None) -> list[Row] | None:
    """Return the rows of `dualray.timeline`, as Ray has them, or write them to a file.

    Each task has a row of the category "task::NAME", and one with the name "task:execute". The rows name nodes and
    workers by texts.

    Args:
        filename: the file to write, a list in JSON. Default: none; the rows are returned.

    Raises:
        DualrayError: this is not the driver.
        OSError: the file cannot be written.
    """
    rows = list(_as_ray(present.timeline() or []))
    if filename is None:
        return rows
    Path(filename).write_text(json.dumps(rows))
    return None


def _as_ray(rows: Iterable[Row]) -> Iterator[Row]:
    names: dict[tuple[str, int], str] = {}
    for row in rows:
        if row["ph"] == "M":
            names[row["name"], row["pid" if row["name"] == "process_name" else "tid"]] = row["args"]["name"]
            continue
        place = {"pid": names["process_name", row["pid"]], "tid": f"worker:{names['thread_name', row['tid']]}"}
        if row["ph"] != "X":
            yield row | place
            continue
        name = row["name"].rpartition(".")[2]
        args = {"name": name, "task_id": row["args"]["task"], **row["args"]}
        yield row | place | {"cat": "task:execute", "name": "task:execute", "cname": "rail_animation", "args": {}}
        yield row | place | {"cat": f"task::{row['name']}", "name": name, "cname": "generic_work", "args": args}
