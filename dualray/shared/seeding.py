"""Seeds of a task's random streams, derived from its id: the same in both modes."""

from __future__ import annotations

from hashlib import blake2b

from dualray.shared.model.ids import TaskID


def task_seed(seed: int, task: TaskID) -> bytes:
    """What all random streams of one task derive from."""
    return b"%d:" % seed + task


def stream_seed(seed: bytes, stream: bytes) -> int:
    """The seed of one stream, such as b"random" or b"numpy": 256 bits."""
    return int.from_bytes(blake2b(seed, digest_size=32, person=stream).digest(), "big")
