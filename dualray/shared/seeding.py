"""Seeds of a task's random streams, derived from its id: the same in both modes."""

from __future__ import annotations

from hashlib import blake2b

from dualray.shared.model.ids import TaskID


def task_seed(seed: int, task: TaskID, attempt: int = 0) -> bytes:
    """What all random streams of one attempt of a task derive from."""
    return b"%d:" % seed + task + of_attempt(attempt)


def of_attempt(attempt: int) -> bytes:
    """How the seed of an attempt ends: each draws other numbers, so that what failed by chance may succeed."""
    return b":%d" % attempt if attempt else b""


def stream_seed(seed: bytes, stream: bytes) -> int:
    """The seed of one stream, such as b"random" or b"numpy": 256 bits."""
    return int.from_bytes(blake2b(seed, digest_size=32, person=stream).digest(), "big")
