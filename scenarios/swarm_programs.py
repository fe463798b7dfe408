"""Programs for exploration that check for themselves what they were promised, whatever goes wrong around them.

Each returns the same whatever happens to nodes and workers, or ends with an error that the failure model allows; what
breaks a promise raises `BrokenPromise`, which it does not. (They are run by `actors_swarm.yaml` and its neighbours.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dualray
import dualray.exceptions
from dualray.autoscaler import request_resources
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

RETRIES = 1


class BrokenPromise(AssertionError):
    """dualray has done what it says that it never does."""


# ---- Actors: calls in order, within each life ----------------------------------------------------------------------


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Ledger:
    """Notes who called, and whether each caller's calls come in the order in which they were made."""

    def __init__(self) -> None:
        self.noted: dict[str, set[int]] = {}

    def note(self, caller: str, index: int) -> bool:
        """Whether the call came after those that this caller made before it, or came already, and is made again."""
        noted = self.noted.setdefault(caller, set())
        is_in_order = index in noted or all(each < index for each in noted)
        noted.add(index)
        return is_in_order

    def page(self, content: int, size: int) -> Any:
        """A block of bytes."""
        return np.full(size, content, dtype=np.uint8)


@dualray.remote(max_retries=-1, duration=0.5)
def write(name: str, ledger: Any, calls: int) -> int:
    """Call an actor many times at once; how many calls it was."""
    caller = f"{name}, attempt {dualray.get_runtime_context().get_attempt()}"
    answers = dualray.get([ledger.note.remote(caller, index) for index in range(calls)])
    if not all(answers):
        raise BrokenPromise(f"the calls of {caller} came out of order: {answers}")
    return len(answers)


@dualray.remote(max_retries=-1, duration=0.05)
def read(pages: list[Any]) -> int:
    """What is on pages to which it gets references only."""
    return sum(int(page[0]) for page in dualray.get(pages))


def ledgers(*, actors: int = 3, writers: int = 3, calls: int = 8, pages: int = 4, size: int = 150_000) -> Any:
    """Actors that several tasks call; pages of theirs that go from process to process as references."""
    made: list[Any] = [Ledger.remote() for _ in range(actors)]  # type: ignore[attr-defined]
    written = [
        write.remote(f"writer {number} of ledger {place}", ledger, calls)
        for place, ledger in enumerate(made)
        for number in range(writers)
    ]
    sums = []
    for ledger in made:
        refs = [ledger.page.remote(content, size) for content in range(pages)]
        sums.append(read.remote(refs))
    ordered = [made[0].note.remote("driver", index) for index in range(calls)]
    if not all(dualray.get(ordered)):
        raise BrokenPromise("the driver's calls came out of order")
    return [dualray.get(written), dualray.get(sums)]


# ---- Tasks whose retries are bounded -------------------------------------------------------------------------------


@dualray.remote(max_retries=RETRIES, duration=0.3)
def try_again(content: int, size: int, *before: Any) -> Any:
    """A block; it is an error to be tried more often than was said."""
    attempt = dualray.get_runtime_context().get_attempt()
    if attempt > RETRIES:
        raise BrokenPromise(f"attempt {attempt} of a task with max_retries={RETRIES}")
    return np.full(size, content, dtype=np.uint8)


def bounded(*, tasks: int = 24, rounds: int = 3, size: int = 200_000) -> list[int]:
    """Rounds of tasks that may be tried twice; each needs one of the round before. All are read twice."""
    blocks = [try_again.remote(index, size) for index in range(tasks)]
    for _ in range(rounds - 1):
        blocks = [try_again.remote(index, size, block) for index, block in enumerate(blocks)]
    return [sum(int(block[0]) for block in dualray.get(blocks[at : at + 4])) for at in range(0, tasks, 4) for _ in "12"]


# ---- One large object that everybody wants -------------------------------------------------------------------------


@dualray.remote(max_retries=-1, duration=0.2)
def large(content: int, size: int) -> Any:
    """A large block."""
    return np.full(size, content, dtype=np.uint8)


@dualray.remote(max_retries=-1, duration=0.2, scheduling_strategy="SPREAD")
def look(place: int, *blocks: Any) -> int:
    """What is in large blocks."""
    return place + sum(int(block[-1]) for block in blocks)


def broadcast(*, blocks: int = 3, readers: int = 12, size: int = 12_000_000) -> list[int]:
    """Every node wants the same large blocks, at about the same time."""
    made = [large.remote(content, size) for content in range(blocks)]
    return dualray.get([look.remote(place, *made) for place in range(readers)])


# ---- Some of everything that is not in `mixed` ---------------------------------------------------------------------


@dualray.remote(max_retries=-1, duration=0.3)
def where(*_: Any) -> str:
    """On which node it ran."""
    return str(dualray.get_runtime_context().get_node_id())


@dualray.remote(max_retries=-1, duration=0.3, num_gpus=0.5)
def on_gpu() -> int:
    """How many GPUs it may use."""
    return len(dualray.get_gpu_ids())


@dualray.remote(max_retries=-1, num_returns="streaming", _generator_backpressure_num_objects=3)
def stream(count: int, size: int) -> Any:
    """Blocks, one by one, small ones and large ones."""
    for index in range(count):
        yield np.full(size if index % 2 else 8, index, dtype=np.uint8)


@dualray.remote(max_retries=-1, num_returns="dynamic")
def several(count: int) -> Any:
    """As many items as are asked for."""
    yield from range(count)


@dualray.remote(max_retries=-1, duration=30.0)
def long() -> int:
    """Takes long, and is not waited for."""
    return 1


@dualray.remote(max_retries=3, retry_exceptions=True, duration=0.1)
def fails_first(times: int) -> int:
    """Raises in its first attempts."""
    attempt = int(dualray.get_runtime_context().get_attempt())
    if attempt < times:
        raise ValueError(f"attempt {attempt}")
    return attempt


@dualray.remote(max_retries=0, duration=0.1)
def raises(message: str) -> None:
    """Raises."""
    raise KeyError(message)


@dualray.remote(max_retries=-1, duration=0.1)
def makes_refs(count: int, size: int) -> list[Any]:
    """References to what it has put."""
    return [dualray.put(np.full(size, index, dtype=np.uint8)) for index in range(count)]


@dualray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=4)
class Beside:
    """Does several things at a time."""

    def wait(self, index: int) -> int:
        """After a while."""
        time.sleep(0.2)
        return index


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Keeper:
    """Keeps references, and is then called with what they refer to."""

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept

    def total(self, *blocks: Any) -> int:
        """Of what it was given, and of what it keeps."""
        return sum(int(block[0]) for block in (*blocks, *dualray.get(self.kept)))

    def fresh(self, content: int, size: int) -> list[Any]:
        """References to what it owns."""
        return [dualray.put(np.full(size, content, dtype=np.uint8)), make_small.remote(content)]


@dualray.remote(max_retries=-1, duration=0.05)
def make_small(content: int) -> Any:
    """A few bytes."""
    return np.full(8, content, dtype=np.uint8)


@dualray.remote(max_retries=-1, duration=0.1)
def consume(count: int, size: int) -> int:
    """Calls a generator from within a task, and gives up the last of its items."""
    total = 0
    for place, ref in enumerate(stream.remote(count, size)):
        total += int(dualray.get(ref)[0])
        if place == count - 2:
            break
    return total


@dualray.remote(max_retries=-1, duration=0.1)
def meet(size: int, *given: Any) -> int:
    """Takes values of all kinds, some of them twice, and hands them on."""
    made = [make_small.remote(3), large.remote(5, size), dualray.put(np.full(size, 7, dtype=np.uint8))]
    inner = read.remote([*made, *made])
    some, rest = dualray.wait([inner, *made], num_returns=2, timeout=60)
    return sum(int(block[0]) for block in given) + int(dualray.get(inner)) + len(some) + len(rest)


def _kept(size: int) -> list[int]:
    """Values that are ready in one process and not in another, as arguments, side by side."""
    small, big, put = make_small.remote(1), large.remote(2, size), dualray.put(np.full(size, 4, dtype=np.uint8))
    keeper: Any = Keeper.remote([small, big, put])  # type: ignore[attr-defined]
    totals = dualray.get([keeper.total.remote(), keeper.total.remote(small, big), keeper.total.remote(put, small, put)])
    owned = dualray.get(keeper.fresh.remote(6, size))
    met = meet.remote(size, small, big, *owned, small)
    again = keeper.total.remote(*owned, big)
    del small, big, put, owned
    return [*totals, *dualray.get([met, again, consume.remote(6, size)])]


def _groups() -> list[int]:
    """Bundles on nodes of their own, and what runs in them; then another group takes their place."""
    counts = []
    for strategy in ("STRICT_SPREAD", "PACK"):
        group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy=strategy)
        dualray.get(group.ready())
        inside = [PlacementGroupSchedulingStrategy(group, index) for index in (0, 1, 0, 1)]
        nodes = dualray.get([where.options(scheduling_strategy=bundle).remote() for bundle in inside])
        counts.append(len(nodes))
        remove_placement_group(group)
    return counts


def _cancelled() -> list[str]:
    """One that runs, and those that wait behind it."""
    refs = [long.remote() for _ in range(20)]
    dualray.wait(refs, timeout=0.5)
    for ref in refs:
        dualray.cancel(ref)
    ends = []
    for ref in refs:
        try:
            ends.append(str(dualray.get(ref)))
        except dualray.exceptions.TaskCancelledError:
            ends.append("cancelled")
    return sorted(set(ends))


def _named() -> list[str]:
    """An actor that is found by its name, until it is killed."""
    first: Any = Ledger.options(name="ledger", get_if_exists=True).remote()  # type: ignore[attr-defined]
    again: Any = Ledger.options(name="ledger", get_if_exists=True).remote()  # type: ignore[attr-defined]
    dualray.get([first.page.remote(1, 8), again.page.remote(2, 8)])
    found = dualray.get_actor("ledger")
    dualray.get(found.page.remote(3, 8))
    dualray.kill(first)
    try:
        dualray.get(found.page.remote(4, 8))
    except dualray.exceptions.ActorDiedError:
        return ["found", "ended"]
    return ["found", "alive"]


def features(*, size: int = 150_000) -> Any:
    """Groups, GPUs, labels, streams, names, cancelling, retries of what raised, references in results."""
    gpus = [on_gpu.remote() for _ in range(8)]
    labelled = where.options(label_selector={"kind": "gpu"})
    near = where.options(scheduling_strategy=NodeAffinitySchedulingStrategy("node-1", soft=True))
    places = [labelled.remote(), near.remote(), *(where.options(scheduling_strategy="SPREAD").remote() for _ in "1234")]
    streamed = [int(dualray.get(ref)[0]) for ref in stream.remote(8, size)]
    dynamic = [dualray.get(ref) for ref in dualray.get(several.remote(5))]
    beside: Any = Beside.remote()  # type: ignore[attr-defined]
    together = dualray.get([beside.wait.remote(index) for index in range(8)])
    del beside
    retried = dualray.get([fails_first.remote(times) for times in range(3)])
    try:
        dualray.get(where.remote(raises.remote("no")))
        raised = "nothing"
    except KeyError:
        raised = "KeyError"
    inner = dualray.get(makes_refs.remote(4, size))
    values = [int(block[0]) for block in dualray.get(inner)]
    total = dualray.get(read.remote(inner))
    del inner
    return {
        "gpus": dualray.get(gpus),
        "places": len(dualray.get(places)),
        "streamed": streamed,
        "dynamic": dynamic,
        "together": together,
        "retried": len(retried),
        "raised": raised,
        "values": values,
        "total": total,
        "kept": _kept(size),
        "groups": _groups(),
        "cancelled": _cancelled(),
        "named": _named(),
    }


# ---- A shuffle of several stages -----------------------------------------------------------------------------------


@dualray.remote(max_retries=-1, duration=0.2)
def stage(reducers: int, size: int, *blocks: Any) -> Any:
    """A block for each task of the next stage, made of one of each task of this one."""
    content = (sum(int(block[0]) for block in blocks) + 1) % 251
    return [np.full(size, content, dtype=np.uint8) for _ in range(reducers)]


def stages(*, tasks: int = 6, depth: int = 3, size: int = 200_000) -> list[int]:
    """All-to-all, several times over: every task needs a block of each one before it."""
    task = stage.options(num_returns=tasks)
    rows = [task.remote(tasks, size) for _ in range(tasks)]
    for _ in range(depth - 1):
        rows = [task.remote(tasks, size, *[row[place] for row in rows]) for place in range(tasks)]
    return dualray.get([look.options(name="total").remote(0, *row) for row in rows])


@dualray.remote(max_retries=-1, duration=1.5)
def grown(number: int) -> Any:
    """A piece of work, whose result is large enough for a store."""
    return np.full(40_000, number, dtype=np.int64)


@dualray.remote(max_retries=-1, duration=0.1)
def gathered(*pieces: Any) -> int:
    """Their sum."""
    return int(sum(int(piece[0]) for piece in pieces))


REQUEST_S = 600
"""Within which a cluster has what was requested, however often launches are refused and nodes are lost."""


def growing() -> list[int]:
    """Bursts with rests between them, one of them in a placement group that needs three nodes; a group that can never
    be whole, and a request."""
    sums = []
    for pieces in (12, 3, 20):
        made = [grown.remote(number) for number in range(pieces)]
        sums.append(dualray.get(gathered.remote(*made)))
        time.sleep(12)
    group = placement_group([{"CPU": 2}] * 3, strategy="STRICT_SPREAD")
    strategy = PlacementGroupSchedulingStrategy(group)
    made = [grown.options(scheduling_strategy=strategy).remote(number) for number in range(6)]
    sums.append(dualray.get(gathered.remote(*made)))
    remove_placement_group(group)
    too_large = placement_group([{"CPU": 2}] * 9, strategy="STRICT_SPREAD")
    time.sleep(5)
    remove_placement_group(too_large)
    request_resources(bundles=[{"CPU": 2}] * 5)
    becomes(lambda cpus: cpus >= 10)
    request_resources()
    becomes(lambda cpus: cpus <= 4)
    return sums


def becomes(as_requested: Callable[[float], bool]) -> None:
    """Wait until the cluster has as many CPUs as was requested."""
    for _ in range(REQUEST_S):
        if as_requested(dualray.cluster_resources().get("CPU", 0)):
            return
        time.sleep(1)
    raise BrokenPromise(f"the cluster has not become as large as was requested within {REQUEST_S} s")
