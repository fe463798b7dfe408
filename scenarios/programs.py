"""Programs that scenario files name: `function: scenarios.programs:NAME`."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Any

import numpy as np

import dualray
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@dualray.remote(max_retries=-1, duration=0.2)
def block(content: int, size: int) -> Any:
    """A block of bytes."""
    return np.full(size, content, dtype=np.uint8)


@dualray.remote(max_retries=-1, duration=0.05)
def first(made: Any) -> int:
    """What is in it."""
    return int(made[0])


def digest_twice(blocks: int, size: int) -> list[int]:
    """Make blocks, and read all of them twice, a few at a time: a small store must make them again."""
    made = [block.remote(content, size) for content in range(blocks)]
    sums = []
    for _ in range(2):
        total = 0
        for at in range(0, blocks, 8):
            total += sum(dualray.get([first.remote(ref) for ref in made[at : at + 8]]))
        sums.append(total)
    return sums


@dualray.remote(scheduling_strategy=NodeAffinitySchedulingStrategy("node-1", soft=False))
class Keeper:
    """Owns a small value, away from the driver."""

    def put(self, value: Any) -> list[Any]:
        """A reference to it."""
        self.ref = dualray.put(value)
        return [self.ref]


def read_later(value: int, seconds: float) -> int:
    """Have an actor on another node keep a value, and ask it for that value after a while."""
    maker: Any = Keeper
    keeper = maker.remote()
    [ref] = dualray.get(keeper.put.remote(value))
    time.sleep(seconds)
    read: int = dualray.get(ref)
    return read


def read_much_later(blocks: int, size: int, seconds: float) -> int:
    """Make blocks all over the cluster, and read them after a while."""
    made = [block.options(scheduling_strategy="SPREAD").remote(content, size) for content in range(blocks)]
    dualray.wait(made, num_returns=blocks, fetch_local=False)
    time.sleep(seconds)
    return sum(dualray.get([first.remote(ref) for ref in made]))


@dualray.remote(num_returns=2, max_retries=-1, duration=0.2)
def block_and_digest(content: int, size: int) -> tuple[Any, str]:
    """A block of bytes, and what it must be read as."""
    made = np.full(size, content, dtype=np.uint8)
    return made, sha256(made.tobytes()).hexdigest()


def check_blocks(blocks: int, size: int) -> dict[str, int]:
    """Make blocks, and hold each against the digest that was taken where it was made."""
    made = [block_and_digest.remote(content, size) for content in range(blocks)]
    time.sleep(2.0)
    damaged = sum(sha256(dualray.get(data).tobytes()).hexdigest() != dualray.get(digest) for data, digest in made)
    return {"whole": blocks - damaged, "damaged": damaged}


@dualray.remote(duration=20)
def piece(number: int) -> int:
    """A piece of a burst."""
    return number * number


def bursts(bursts: int, pieces: int, rest: float) -> list[int]:
    """Bursts of tasks with rests between them, on a cluster that may grow and shrink."""
    sums = []
    for _ in range(bursts):
        sums.append(sum(dualray.get([piece.remote(number) for number in range(pieces)])))
        time.sleep(rest)
    return sums
