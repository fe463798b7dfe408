"""Task durations by name, from a recorded run: a simulation uses them for tasks without a duration of their own.

A run of a task counts with what its own code computed: the time from its call to its return without what it waited for
(`get`, `wait`), and, where the record knows the CPU time, without what it slept, for a simulated body sleeps and waits
by itself. Attempts that failed do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dualray.recording.file import read_record_file
from dualray.recording.graph import graph_of


@dataclass(frozen=True, slots=True)
class Profile:
    """What tasks took: nanoseconds, in ascending order, by the name of the task."""

    path: Path
    took_ns: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        return str(self.path)


def load_profile(path: Path) -> Profile:
    """Read what the tasks of a recorded run took.

    Raises:
        ValueError: there is no such file, or it is no recorded run; or pyarrow, which reads it, is missing.
    """
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    return _load(path.absolute(), changed_ns)


@lru_cache(maxsize=2)
def _load(path: Path, changed_ns: int) -> Profile:
    """Many runs of one exploration take the same; a file that was written anew is read anew."""
    try:
        record = read_record_file(path)
    except ImportError:
        raise ValueError("a profile needs pyarrow, which is not installed: pip install 'dualray[whatif]'") from None
    ended = {row["task"] for row in record.of_kind("run") if not row["other"]}
    graph = graph_of(record)
    took: dict[str, list[int]] = {}
    for task_id, node in graph.tasks.items():
        if task_id in ended:
            computed_ns = round(node.script.compute_ns * min(node.script.weight, 1.0))
            took.setdefault(graph.templates[node.template].name, []).append(computed_ns)
    return Profile(path, {name: tuple(sorted(each)) for name, each in took.items()})
