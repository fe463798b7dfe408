"""What the values of a process leave for its tasks, leases and streams: the owner's drain takes it up."""

from __future__ import annotations

from collections import deque

from dualray.shared.model.ids import ObjectID, TaskID, WaitID


class Worklists:
    """See the module. Whoever adds to one sets the outbox's `needs_drain`."""

    __slots__ = ("lineage_released", "remake_wanted", "streams_dropped", "tasks_to_look_at", "waits_completed")

    def __init__(self) -> None:
        self.tasks_to_look_at: deque[TaskID] = deque()
        self.waits_completed: deque[tuple[WaitID, tuple[ObjectID, ...]]] = deque()
        self.lineage_released: deque[ObjectID] = deque()
        self.remake_wanted: deque[ObjectID] = deque()
        self.streams_dropped: deque[TaskID] = deque()
