"""Workloads with modelled durations and sizes, on the public API alone: they run in both modes.

A piece of work takes `seconds`, drawn by the driver from a stream of the workload's own seed: in sim mode as the task's
duration, in real mode as a sleep. What it makes is a block of `size` bytes whose content depends on its place in the
workload only, so that the results can be compared between runs. Each workload returns plain data (JSON).

`WORKLOADS` has them by name; those in `SURVIVORS` give the same result whatever happens to nodes and workers, because
they are made of tasks that may be retried without end and keep no state.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

import dualray
from dualray.shared.nearest import nearest
from dualray.testing.arguments import check_arguments, check_types

Block = np.ndarray[Any, np.dtype[np.uint8]]

RETRY_FOREVER = -1


def _takes(seconds: float, *_: Any, **__: Any) -> float:
    """The duration of a task whose first argument says it."""
    return seconds


def _spend(seconds: float) -> None:
    """In real mode, let the time pass that sim mode adds by itself."""
    if dualray.get_runtime_context().mode == "real":
        time.sleep(seconds)


def _block(content: int, size: int) -> Block:
    return np.full(max(size, 1), content % 251, dtype=np.uint8)


def _digest(*blocks: Block) -> int:
    return int(sum(int(block[0]) * (place + 1) for place, block in enumerate(blocks)) % 1_000_003)


def _drawing(seconds: float, spread: float, seed: int) -> Callable[[], float]:
    """Draws of a log-normal distribution with the median `seconds`; `spread` 0 means no spread."""
    stream = random.Random(seed)
    return lambda: seconds * (np.exp(spread * stream.gauss(0, 1)) if spread else 1.0)


@dualray.remote(max_retries=RETRY_FOREVER, duration=_takes)
def make(seconds: float, content: int, size: int) -> Block:
    """A block."""
    _spend(seconds)
    return _block(content, size)


@dualray.remote(max_retries=RETRY_FOREVER, duration=_takes)
def merge(seconds: float, size: int, *blocks: Block) -> Block:
    """A block made of others."""
    _spend(seconds)
    return _block(_digest(*blocks), size)


@dualray.remote(max_retries=RETRY_FOREVER, duration=_takes)
def digest(seconds: float, *blocks: Block) -> int:
    """A number made of blocks."""
    _spend(seconds)
    return _digest(*blocks)


def bag_of_tasks(
    *,
    tasks: int = 100,
    seconds: float = 0.1,
    spread: float = 0.0,
    size: int = 8,
    cpus: float = 1,
    gpus: float = 0,
    strategy: str = "DEFAULT",
    seed: int = 0,
) -> list[int]:
    """Tasks that need nothing of one another."""
    draw = _drawing(seconds, spread, seed)
    piece = make.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy, name="piece")
    count = digest.options(num_cpus=0, name="count")
    return dualray.get([count.remote(0.0, piece.remote(draw(), index, size)) for index in range(tasks)])


def chain(*, length: int = 50, seconds: float = 0.1, size: int = 200_000, seed: int = 0) -> int:
    """Each task needs what the one before has made."""
    link = merge.options(name="link")
    block = make.options(name="link").remote(seconds, seed, size)
    for _ in range(length - 1):
        block = link.remote(seconds, size, block)
    total: int = dualray.get(digest.remote(0.0, block))
    return total


def tree_reduce(*, leaves: int = 64, fan_in: int = 2, seconds: float = 0.1, size: int = 200_000, seed: int = 0) -> int:
    """Blocks are merged in groups, until one is left."""
    leaf, node = make.options(name="leaf", scheduling_strategy="SPREAD"), merge.options(name="node")
    level = [leaf.remote(seconds, seed + index, size) for index in range(leaves)]
    while len(level) > 1:
        level = [node.remote(seconds, size, *level[at : at + fan_in]) for at in range(0, len(level), fan_in)]
    total: int = dualray.get(digest.remote(0.0, level[0]))
    return total


@dualray.remote(max_retries=RETRY_FOREVER, duration=_takes)
def partition(seconds: float, content: int, sizes: list[int]) -> Any:
    """One block for each reducer."""
    _spend(seconds)
    blocks = [_block(content + reducer, size) for reducer, size in enumerate(sizes)]
    return blocks if len(blocks) > 1 else blocks[0]


def shuffle(
    *, maps: int = 16, reduces: int = 16, seconds: float = 0.1, size: int = 200_000, seed: int = 0
) -> list[int]:
    """All-to-all: every reducer needs a block of every mapper; `size` is that of one block."""
    return _map_reduce(maps, [size] * reduces, seconds, seed)


def map_reduce(
    *, maps: int = 16, reduces: int = 16, seconds: float = 0.1, size: int = 200_000, skew: float = 1.0, seed: int = 0
) -> list[int]:
    """As shuffle, with blocks and reducers whose sizes and times fall as 1 / rank ** skew."""
    return _map_reduce(maps, [max(1, int(size / rank**skew)) for rank in range(1, reduces + 1)], seconds, seed)


def _map_reduce(maps: int, sizes: list[int], seconds: float, seed: int) -> list[int]:
    mapper = partition.options(name="map", num_returns=len(sizes), scheduling_strategy="SPREAD")
    made = [mapper.remote(seconds, seed + index, sizes) for index in range(maps)]
    rows = made if len(sizes) > 1 else [[row] for row in made]
    reducer = digest.options(name="reduce")
    return dualray.get(
        [reducer.remote(seconds * size / max(sizes), *[row[index] for row in rows]) for index, size in enumerate(sizes)]
    )


def incast(
    *, senders: int = 16, size: int = 10_000_000, seconds: float = 0.01, rounds: int = 1, seed: int = 0
) -> list[int]:
    """Many nodes send to one at once."""
    send = make.options(name="send", scheduling_strategy="SPREAD")
    receive = digest.options(name="receive")
    results = []
    for number in range(rounds):
        blocks = [send.remote(seconds, seed + number + index, size) for index in range(senders)]
        results.append(dualray.get(receive.remote(seconds, *blocks)))
    return results


@dualray.remote(max_retries=RETRY_FOREVER, duration=_takes)
def branch(seconds: float, depth: int, fan_out: int, content: int) -> int:
    """A task that submits tasks, waits for them, and adds up."""
    _spend(seconds)
    if depth == 0:
        return content % 251
    below = [branch.remote(seconds, depth - 1, fan_out, content * fan_out + child) for child in range(fan_out)]
    total: int = sum(dualray.get(below))
    return (content + total) % 1_000_003


def nested(*, depth: int = 3, fan_out: int = 3, seconds: float = 0.05, seed: int = 0) -> int:
    """Tasks that submit tasks, down to `depth`."""
    total: int = dualray.get(branch.remote(seconds, depth, fan_out, seed))
    return total


def retry_storm(*, tasks: int = 200, seconds: float = 0.2, failing: float = 0.3, seed: int = 0) -> list[int]:
    """Tasks of which many end their worker in their first attempts."""
    stream = random.Random(seed)
    unlucky = [sum(stream.random() < failing for _ in range(2)) for _ in range(tasks)]
    return dualray.get([stumble.remote(seconds, index, deaths) for index, deaths in enumerate(unlucky)])


@dualray.remote(max_retries=RETRY_FOREVER, duration=_takes)
def stumble(seconds: float, content: int, deaths: int) -> int:
    """Ends its process in its first attempts."""
    if dualray.get_runtime_context().get_attempt() < deaths:
        raise SystemExit(1)
    _spend(seconds)
    return content % 251


# ---- With state ----------------------------------------------------------------------------------------------------


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class ParameterServer:
    """Keeps parameters, and counts what was applied to them since it was made."""

    def __init__(self, size: int) -> None:
        self.parameters = _block(0, size)
        self.applied = 0

    def read(self) -> Block:
        """The parameters."""
        return self.parameters

    def apply(self, *gradients: Block) -> int:
        """Apply gradients; how many there were so far."""
        for gradient in gradients:
            self.parameters = self.parameters + gradient
        self.applied += len(gradients)
        return self.applied


@dualray.remote(max_retries=RETRY_FOREVER, duration=_takes)
def gradient(seconds: float, content: int, parameters: Block) -> Block:
    """What one worker finds."""
    _spend(seconds)
    return _block(content, len(parameters))


def parameter_server(
    *, workers: int = 8, steps: int = 10, seconds: float = 0.1, spread: float = 0.2, size: int = 400_000, seed: int = 0
) -> int:
    """Synchronous steps: every worker reads the parameters, and its gradient is applied."""
    draw = _drawing(seconds, spread, seed)
    server = cast(Any, ParameterServer).remote(size)
    applied = 0
    for step in range(steps):
        parameters = server.read.remote()
        gradients = [gradient.remote(draw(), step + worker, parameters) for worker in range(workers)]
        applied = dualray.get(server.apply.remote(*gradients))
    return applied


@dualray.remote
class RingMember:
    """One of a ring that adds up blocks, chunk by chunk."""

    def __init__(self, rank: int, members: int, size: int) -> None:
        self.chunks = [_block(rank + 1, max(1, size // members)) for _ in range(members)]

    def give(self, chunk: int) -> Block:
        """A chunk, for the next member."""
        return self.chunks[chunk]

    def add(self, chunk: int, block: Block) -> None:
        """Reduce-scatter: add what the previous member has."""
        self.chunks[chunk] = self.chunks[chunk] + block

    def take(self, chunk: int, block: Block) -> None:
        """All-gather: what the previous member has is complete."""
        self.chunks[chunk] = block

    def total(self) -> int:
        """What all chunks are now, as one number."""
        return _digest(*self.chunks)


def allreduce(*, members: int = 4, size: int = 4_000_000, rounds: int = 1) -> list[int]:
    """A ring of actors, each on a CPU of its own: every member ends with the sum of all blocks."""
    spread = cast(Any, RingMember).options(num_cpus=1, scheduling_strategy="SPREAD")
    ring = [spread.remote(rank, members, size) for rank in range(members)]
    for _ in range(rounds):
        for step in range(members - 1):
            _pass_on(ring, step, "add")
        for step in range(members - 1):
            _pass_on(ring, step + members - 1, "take")
    return dualray.get([member.total.remote() for member in ring])


def _pass_on(ring: list[Any], step: int, verb: str) -> None:
    count = len(ring)
    given = [(rank, (rank - step) % count, ring[rank].give.remote((rank - step) % count)) for rank in range(count)]
    dualray.get([getattr(ring[(rank + 1) % count], verb).remote(chunk, block) for rank, chunk, block in given])


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Simulator:
    """Plays one rollout after another."""

    @dualray.method(duration=_takes)
    def rollout(self, seconds: float, content: int, size: int) -> Block:
        """The gradient of one rollout; it takes as long as the rollout is."""
        _spend(seconds)
        return _block(content, size)


def rollouts(
    *,
    batch: int = 32,
    simulators: int | None = None,
    updates: int = 3,
    seconds: float = 1.0,
    spread: float = 0.5,
    size: int = 1_000,
    driver_seconds: float = 0.0,
    seed: int = 0,
) -> int:
    """Learning to play Pong: a batch of rollouts of random length, then the driver adds up the gradients one by one.

    One actor for each of `simulators` slots (default: as many as the batch); `driver_seconds` is what the driver needs
    for one gradient.
    """
    draw = _drawing(seconds, spread, seed)
    actors = [
        cast(Any, Simulator).options(num_cpus=1, scheduling_strategy="SPREAD").remote()
        for _ in range(simulators or batch)
    ]
    total = 0
    for update in range(updates):
        gradients = [actors[index % len(actors)].rollout.remote(draw(), update + index, size) for index in range(batch)]
        while gradients:
            ready, gradients = dualray.wait(gradients)
            total = (total + _digest(dualray.get(ready[0]))) % 1_000_003
            if driver_seconds:
                time.sleep(driver_seconds)
    return total


@dualray.remote
class Counter:
    """Counts; what it answers shows in which order it was called."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        """The sum so far."""
        self.value += amount
        return self.value


@dualray.remote(max_retries=3, duration=_takes)
def call_counter(seconds: float, counter: Any, calls: int) -> list[int]:
    """Another caller of an actor: what it sees must rise."""
    seen = dualray.get([counter.add.remote(1) for _ in range(calls)])
    if seen != sorted(set(seen)):
        raise AssertionError(f"the actor ran the calls of one caller out of order: {seen}")
    return seen


def counters(
    *, actors: int = 4, callers: int = 3, calls: int = 10, seconds: float = 0.05, restarts: int = 0
) -> list[int]:
    """Actors that several tasks call; each caller checks the order of its answers. What each actor has counted."""
    made = [cast(Any, Counter).options(max_restarts=restarts).remote() for _ in range(actors)]
    waiting = [[call_counter.remote(seconds, counter, calls) for _ in range(callers)] for counter in made]
    return [max(map(max, dualray.get(refs))) for refs in waiting]


def mixed(*, tasks: int = 40, seconds: float = 0.1, size: int = 300_000, seed: int = 0) -> dict[str, Any]:
    """Some of everything that keeps no state: bags, chains, trees, nested tasks, puts, waits with a timeout."""
    draw = _drawing(seconds, 0.5, seed)
    shared = dualray.put(_block(7, size))
    blocks = [merge.options(name="piece").remote(draw(), size, shared) for _ in range(tasks)]
    done, rest = dualray.wait(blocks, num_returns=tasks // 2, timeout=10 * seconds)
    early = len(done) + len(rest)
    digests = [digest.options(name="count").remote(0.0, *blocks[at : at + 4]) for at in range(0, tasks, 4)]
    tree = nested(depth=2, fan_out=3, seconds=seconds, seed=seed)
    last = chain(length=5, seconds=seconds, size=size, seed=seed)
    return {"blocks": early, "digests": dualray.get(digests), "nested": tree, "chain": last}


WORKLOADS: Mapping[str, Callable[..., Any]] = {
    workload.__name__: workload
    for workload in (
        allreduce,
        bag_of_tasks,
        chain,
        counters,
        incast,
        map_reduce,
        mixed,
        nested,
        parameter_server,
        retry_storm,
        rollouts,
        shuffle,
        tree_reduce,
    )
}

SURVIVORS = frozenset(
    {"bag_of_tasks", "chain", "incast", "map_reduce", "mixed", "nested", "retry_storm", "shuffle", "tree_reduce"}
)


def workload(name: str, kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """A workload by name, with its arguments.

    Raises:
        ArgumentError: an unknown argument, with the nearest one that is known, or a value of the wrong type.
        ValueError: an unknown name, with the nearest one that is known.
    """
    function = WORKLOADS.get(name)
    if function is None:
        raise ValueError(f"there is no workload {name!r}{nearest(name, WORKLOADS)}")
    check_arguments(name, function, kwargs)
    check_types(function, kwargs)
    return lambda: function(**kwargs)
