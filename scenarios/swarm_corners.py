"""Programs for exploration that go where others do not: errors and their words, the state API, stores that are full.

What they return under faults depends on the faults, for they return errors as words; without faults it is always the
same, and `tests/kept_runs` knows it. (They are run by `words_swarm.yaml` and its neighbours.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dualray
import dualray.exceptions
from dualray.util.explain import explain
from dualray.util.named_actors import list_named_actors
from dualray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from dualray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)
from dualray.util.state import (
    list_actors,
    list_nodes,
    list_objects,
    list_placement_groups,
    list_tasks,
    list_workers,
    summarize_actors,
    summarize_objects,
    summarize_tasks,
)

SOON_S = 20.0
"""Within which everything here should have come to its end."""


def told(ask: Callable[[], Any]) -> str:
    """What came of a call, in words."""
    try:
        return repr(ask())[:200]
    except (dualray.exceptions.DualrayError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def outcome(ref: Any, timeout: float = SOON_S) -> str:
    """What came of a task, in words."""
    return told(lambda: dualray.get(ref, timeout=timeout))


# ---- What cannot be placed -----------------------------------------------------------------------------------------


@dualray.remote(max_retries=-1, duration=0.1)
def node(*_: Any) -> str:
    """On which node it ran."""
    return str(dualray.get_runtime_context().get_node_id())


@dualray.remote
class Teller:
    """Tells where it is, and dies when it is told to."""

    def __init__(self, word: str = "") -> None:
        if word == "no":
            raise ValueError("it does not want to be made")
        self.word = word

    def where(self) -> str:
        """On which node."""
        return str(dualray.get_runtime_context().get_node_id())

    def again(self) -> bool:
        """Whether it is in a later life."""
        return dualray.get_runtime_context().was_current_actor_reconstructed

    def slow(self, seconds: float, *_: Any) -> float:
        """After a while."""
        time.sleep(seconds)
        return seconds

    def crash(self) -> None:
        """Ends its process."""
        raise SystemExit(3)

    def fail(self, word: str) -> None:
        """Raises."""
        raise KeyError(word)

    def leave(self) -> None:
        """Ends in good order."""
        dualray.exit_actor()

    def items(self, count: int) -> Any:
        """One by one."""
        for index in range(count):
            time.sleep(0.05)
            yield index


def unplaceable() -> list[str]:
    """Demands that no node meets, and strategies that name what there is not."""
    demands: list[dict[str, Any]] = [
        {"num_cpus": 64},
        {"num_gpus": 9},
        {"num_cpus": 3, "num_gpus": 2},
        {"resources": {"magic": 1}},
        {"memory": "64GiB"},
        {"label_selector": {"kind": "none"}},
        {"label_selector": {"kind": "gpu"}, "num_cpus": 4},
        {"scheduling_strategy": NodeAffinitySchedulingStrategy("node-99", soft=False)},
        {"scheduling_strategy": NodeAffinitySchedulingStrategy("node-99", soft=True)},
        {"scheduling_strategy": NodeAffinitySchedulingStrategy("node-1", soft=False), "num_cpus": 4},
        {"scheduling_strategy": NodeAffinitySchedulingStrategy("node-1", soft=True), "num_cpus": 4},
        {"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"kind": In("gpu", "tpu")})},
        {"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"kind": NotIn("gpu")})},
        {"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"kind": Exists()}, soft={"rack": In("b")})},
        {"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"kind": DoesNotExist(), "rack": In("z")})},
        {"scheduling_strategy": "SPREAD", "num_gpus": 1},
    ]
    words = [told(lambda demand=demand: dualray.get(node.options(**demand).remote())) for demand in demands]  # type: ignore[misc]
    words += [told(lambda demand=demand: _placed(demand)) for demand in demands[:10:2]]  # type: ignore[misc]
    groups = [
        ([{"CPU": 64}], "PACK"),
        ([{"CPU": 3}, {"CPU": 3}], "STRICT_PACK"),
        ([{"CPU": 1}] * 9, "STRICT_SPREAD"),
        ([{"GPU": 1, "CPU": 4}], "SPREAD"),
        ([{"CPU": 2}, {"magic": 1}], "SPREAD"),
    ]
    words += [told(lambda each=each: _reserved(*each)) for each in groups]  # type: ignore[misc]
    return words


def _placed(demand: dict[str, Any]) -> Any:
    make: Any = Teller
    return dualray.get(make.options(**demand).remote().where.remote(), timeout=SOON_S)


def _reserved(bundles: list[dict[str, float]], strategy: str) -> list[str]:
    group = placement_group(bundles, strategy=strategy, name=f"too large {strategy}")
    inside = node.options(num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0))
    words = [outcome(group.ready(), 2.0), told(lambda: dualray.get(inside.remote(), timeout=2.0))]
    remove_placement_group(group)
    return words


# ---- What ends ill -------------------------------------------------------------------------------------------------


@dualray.remote(max_retries=0, duration=0.1)
def ends(how: str, *_: Any) -> int:
    """Ends as it is told to."""
    if how == "exit":
        raise SystemExit(2)
    if how == "raise":
        raise RuntimeError("as it was told")
    return len(how)


@dualray.remote(max_retries=0, num_returns="streaming")
def breaks_off(count: int, how: str) -> Any:
    """Some items, and then an end."""
    for index in range(count):
        yield np.full(150_000 if index % 2 else 4, index, dtype=np.uint8)
    if how == "exit":
        raise SystemExit(2)
    raise RuntimeError("no more items")


def ill() -> list[str]:
    """Tasks and actors that fail, and those that need them."""
    failed = ends.remote("raise")
    needs = [ends.remote("fine", failed), ends.options(num_returns=2).remote("fine", failed)[1]]
    words = [outcome(ref) for ref in (failed, *needs, ends.remote("further", *needs))]
    words += [outcome(ends.options(max_retries=retries).remote("exit")) for retries in (0, 1)]
    words.append(outcome(ends.options(retry_exceptions=[RuntimeError], max_retries=2).remote("raise")))
    words.append(outcome(ends.options(max_calls=1).remote("fine")))
    words += [outcome(ref) for ref in [ends.options(max_calls=2).remote("four") for _ in range(5)]]
    for how in ("exit", "raise"):
        generator = breaks_off.remote(3, how)
        words += [told(lambda ref=ref: int(dualray.get(ref)[0])) for ref in generator]  # type: ignore[misc]
        words.append(outcome(generator.completed()))
    return words


def actors_ill() -> list[str]:
    """Actors that are not made, that crash, that leave, that are killed and come back."""
    make: Any = Teller
    words = []
    unmade = make.remote("no")
    words += [outcome(ref) for ref in (unmade.where.remote(), unmade.again.remote())]
    for restarts, retries in ((0, 0), (1, 0), (1, 1), (-1, -1)):
        actor = make.options(max_restarts=restarts, max_task_retries=retries).remote()
        waiting = [actor.slow.remote(0.3), actor.again.remote()]
        dualray.wait(waiting, timeout=0.2)
        dualray.kill(actor, no_restart=False)
        words += [outcome(ref) for ref in (*waiting, actor.again.remote())]
        if retries == 0:
            crashed = [actor.crash.remote(), actor.where.remote(), actor.again.remote()]
            words += [outcome(ref) for ref in crashed]
        words.append(outcome(actor.fail.remote("word")))
        leaves = [actor.leave.remote(), actor.where.remote()]
        words += [outcome(ref) for ref in leaves]
        dualray.kill(actor)
        words.append(outcome(actor.where.remote()))
    streaming = make.options(max_restarts=1).remote()
    taken = [outcome(ref) for ref in streaming.items.options(num_returns="streaming").remote(3)]
    several = streaming.items.options(num_returns="streaming").remote(20)
    taken.append(told(lambda: dualray.get(next(several))))
    dualray.kill(streaming, no_restart=False)
    taken += [outcome(ref) for ref in several]
    few = make.options(max_pending_calls=2).remote()
    calls = [told(lambda: len([few.slow.remote(0.1) for _ in range(4)]))]
    return [*words, *taken, *calls]


def names() -> list[str]:
    """Names that are taken, unknown, in another namespace, and free again."""
    make: Any = Teller
    first = make.options(name="one").remote()
    words = [outcome(first.where.remote())]
    words.append(told(lambda: dualray.get(make.options(name="one").remote().where.remote())))
    words.append(told(lambda: dualray.get_actor("another")))
    words.append(told(lambda: dualray.get_actor("one", namespace="elsewhere")))
    apart = make.options(name="one", namespace="elsewhere", lifetime="detached").remote("apart")
    words.append(outcome(apart.where.remote()))
    words += [repr(list_named_actors()), repr(list_named_actors(all_namespaces=True))]
    shared = make.options(name="shared", get_if_exists=True, max_restarts=1).remote()
    again = make.options(name="shared", get_if_exists=True, max_restarts=1).remote()
    words.append(outcome(again.where.remote()))
    dualray.kill(shared, no_restart=False)
    words.append(told(lambda: dualray.get(dualray.get_actor("shared").again.remote())))
    dualray.kill(first)
    words.append(outcome(first.where.remote()))
    words.append(told(lambda: dualray.get_actor("one")))
    newer = make.options(name="one").remote("newer")
    words.append(outcome(newer.where.remote()))
    dualray.kill(apart)
    words.append(outcome(apart.where.remote()))
    return words


def words() -> list[str]:
    """Everything that ends in an error, with its words."""
    return [*unplaceable(), *ill(), *actors_ill(), *names()]


# ---- Cancelling ----------------------------------------------------------------------------------------------------


@dualray.remote(max_retries=-1)
def sleeps(seconds: float, *_: Any) -> float:
    """Sleeps."""
    time.sleep(seconds)
    return seconds


@dualray.remote(max_retries=-1)
def has_children(depth: int) -> int:
    """A task that waits for tasks."""
    if not depth:
        time.sleep(5.0)
        return 1
    return sum(dualray.get([has_children.remote(depth - 1) for _ in range(2)]))


@dualray.remote(max_retries=-1, duration=0.05)
def cancels(refs: list[Any], force: bool) -> int:
    """Cancels what somebody else owns."""
    for ref in refs:
        dualray.cancel(ref, force=force)
    return len(refs)


@dualray.remote(max_retries=-1, num_returns="streaming", _generator_backpressure_num_objects=2)
def counts_slowly(count: int, size: int) -> Any:
    """Items, each with the time at which it was made."""
    for _ in range(count):
        time.sleep(0.1)
        made = np.zeros(size, dtype=np.float64)
        made[0] = time.time()
        yield made


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Loop:
    """Runs coroutines, in groups."""

    async def rest(self, seconds: float, *_: Any) -> float:
        """After a while."""
        await asyncio.sleep(seconds)
        return seconds

    @dualray.method(concurrency_group="few")
    async def rest_with_few(self, seconds: float, *_: Any) -> float:
        """After a while, with few others."""
        await asyncio.sleep(seconds)
        return seconds

    async def items(self, count: int) -> Any:
        """One by one."""
        for index in range(count):
            await asyncio.sleep(0.05)
            yield index


def cancelling(*, size: int = 20_000) -> list[str]:
    """Tasks that wait, run, have children, stream; calls of actors; by their owner and by another."""
    words = []
    for force in (False, True):
        running = [sleeps.remote(3.0) for _ in range(12)]
        behind = sleeps.remote(0.1, running[0])
        dualray.wait(running, timeout=0.4)
        for ref in (behind, *running[::2]):
            dualray.cancel(ref, force=force)
        words += [outcome(ref) for ref in (behind, *running)]
        borrowed = [sleeps.remote(4.0) for _ in range(10)]
        dualray.wait(borrowed, timeout=0.3)
        words.append(outcome(cancels.options(num_cpus=0).remote(borrowed, force)))
        words += [outcome(ref) for ref in borrowed]
    for recursive in (True, False):
        parent = has_children.remote(2)
        dualray.wait([parent], timeout=0.6)
        dualray.cancel(parent, recursive=recursive)
        words.append(outcome(parent))
    done = sleeps.remote(0.0)
    words.append(outcome(done))
    dualray.cancel(done)
    words.append(outcome(done))
    stream = counts_slowly.remote(12, size)
    words.append(told(lambda: float(dualray.get(next(stream))[0])))
    dualray.cancel(stream)
    words += [told(lambda ref=ref: float(dualray.get(ref)[0])) for ref in stream]  # type: ignore[misc]
    return words


def loops() -> list[str]:
    """Coroutines of actors, in groups and in order, cancelled while they run and while they wait for arguments."""
    loop: Any = Loop.options(concurrency_groups={"few": 2}, max_concurrency=4).remote()  # type: ignore[attr-defined]
    calls = [loop.rest.remote(0.3) for _ in range(8)]
    few = [loop.rest_with_few.remote(0.2) for _ in range(6)]
    late = loop.rest.remote(0.1, sleeps.remote(0.6))
    missing = loop.rest_with_few.remote(0.1, sleeps.remote(8.0))
    failing = loop.rest.remote(0.1, ends.remote("raise"))
    dualray.wait(calls, timeout=0.1)
    for ref in (calls[0], calls[6], few[1], few[5]):
        dualray.cancel(ref)
    words = [outcome(ref) for ref in (*calls, *few, late, failing)]
    dualray.cancel(missing)
    words.append(outcome(missing))
    words += [outcome(ref) for ref in loop.items.options(num_returns="streaming").remote(4)]
    teller: Any = Teller.options(max_concurrency=2).remote()  # type: ignore[attr-defined]
    beside = [teller.slow.remote(0.4, *([sleeps.remote(0.2)] * (index % 2))) for index in range(6)]
    dualray.wait(beside, timeout=0.2)
    for ref in (beside[0], beside[3], beside[5]):
        dualray.cancel(ref)
    words += [outcome(ref) for ref in beside]
    dualray.kill(loop)
    return [*words, outcome(loop.rest.remote(0.0))]


def paces(*, size: int = 20_000) -> list[Any]:
    """How far generators get ahead of those who read them: when each item was made."""
    times = []
    for ref in counts_slowly.remote(8, size):
        time.sleep(0.35)
        times.append(round(float(dualray.get(ref)[0]), 6))
    given_up = counts_slowly.remote(8, size)
    first = next(given_up)
    dualray.wait([first], timeout=1.0)
    times.append(round(float(dualray.get(first)[0]), 6))
    del given_up, first
    unread = counts_slowly.options(_generator_backpressure_num_objects=-1).remote(6, size)
    time.sleep(1.0)
    times += [round(float(dualray.get(ref)[0]), 6) for ref in unread]
    return times


def cancelled(*, size: int = 20_000) -> list[Any]:
    """Everything about stopping."""
    return [*cancelling(size=size), *loops(), *paces(size=size)]


# ---- What others see -----------------------------------------------------------------------------------------------

FORMS = {
    "tasks": list_tasks,
    "actors": list_actors,
    "objects": list_objects,
    "nodes": list_nodes,
    "workers": list_workers,
    "placement_groups": list_placement_groups,
}


def rows() -> dict[str, Any]:
    """All that the state API says now."""
    found: dict[str, Any] = {
        table: [dict(row) for row in ask(raise_on_missing_output=False)] for table, ask in FORMS.items()
    }
    found["summaries"] = [told(summary) for summary in (summarize_tasks, summarize_actors, summarize_objects)]
    found["nodes of ours"] = dualray.nodes()
    found["resources"] = [dualray.cluster_resources(), dualray.available_resources()]
    return found


def _group(bundles: list[dict[str, float]], strategy: str, name: str) -> Any:
    """A placement group; None when the nodes that are left could never hold it."""
    try:
        return placement_group(bundles, strategy=strategy, name=name)
    except dualray.exceptions.PlacementGroupUnschedulableError:
        return None


@dualray.remote(max_retries=-1, duration=0.2)
def context(*_: Any) -> Any:
    """What it knows of itself."""
    here = dualray.get_runtime_context()
    return [here.get(), here.get_assigned_resources(), here.get_node_labels(), dualray.get_gpu_ids()]


def seen(*, size: int = 150_000) -> list[Any]:
    """A cluster at work, as the state API shows it, and why things wait."""
    make: Any = Teller
    blocks = [dualray.put(np.full(size, index, dtype=np.uint8)) for index in range(3)]
    actor = make.options(name="seen", num_cpus=1).remote()
    dead = make.remote("no")
    told_first = [outcome(dead.where.remote()), outcome(actor.where.remote())]
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="SPREAD", name="seen group")
    dualray.get(group.ready())
    wide = _group([{"CPU": 4}, {"CPU": 4}], "PACK", "wide group")
    bundles = [PlacementGroupSchedulingStrategy(group, index) for index in (0, 1)]
    inside = [sleeps.options(scheduling_strategy=bundle).remote(2.0) for bundle in bundles]
    busy = [sleeps.remote(2.0, *blocks) for _ in range(12)]
    behind = sleeps.options(name="behind").remote(0.1, busy[-1])
    calls = [actor.slow.remote(2.0), actor.slow.remote(0.1, behind), actor.where.remote()]
    failed, crashed = ends.remote("raise"), ends.options(num_cpus=0).remote("exit")
    stream = counts_slowly.remote(6, 40)
    inherited = wide.ready() if wide is not None else behind
    dualray.wait([crashed], timeout=0.5)
    told_next: list[Any] = [rows()]
    waiting = [*blocks[:1], *inside, *busy[-2:], behind, *calls, failed, crashed, inherited]
    told_next += [told(lambda ref=ref: explain(ref)) for ref in waiting]  # type: ignore[misc]
    told_next += [outcome(ref, 0.05) for ref in (behind, calls[1], inherited)]
    told_next += [dualray.get(context.options(num_cpus=0).remote(*blocks)), repr(get_placement_group("seen group"))]
    if wide is not None:
        remove_placement_group(wide)
    ended = [outcome(ref) for ref in (*busy, *inside, behind, *calls, failed, crashed, inherited)]
    ended += [told(lambda ref=ref: len(dualray.get(ref))) for ref in stream]  # type: ignore[misc]
    remove_placement_group(group)
    dualray.kill(actor)
    return [told_first, told_next, ended, rows()]


# ---- Arguments by value, in narrow stores --------------------------------------------------------------------------


@dualray.remote(max_retries=-1, duration=0.1)
def first_of(*blocks: Any) -> int:
    """What is in blocks that came by value, and by reference."""
    return sum(int(block[0]) for block in blocks)


@dualray.remote(max_retries=-1, duration=0.1)
def crashes_first(block: Any) -> int:
    """Ends its process in its first attempt, with its argument in hand."""
    if not dualray.get_runtime_context().get_attempt():
        raise SystemExit(1)
    return int(block[0])


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Shelf:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, block: Any) -> int:
        """A view of its argument outlives the call."""
        self.kept.append(block)
        return len(self.kept)

    def total(self) -> int:
        """Of all that is kept."""
        return sum(int(block[-1]) for block in self.kept)

    def clear(self) -> int:
        """Keeps nothing any more."""
        count = len(self.kept)
        self.kept.clear()
        return count


def _block(content: int, size: int) -> Any:
    return np.full(size, content % 251, dtype=np.uint8)


def arguments(*, rounds: int = 4, size: int = 200_000) -> list[Any]:
    """Large arguments by value, round after round in the same room; some are kept, some cross nodes, some are retried;
    and puts that want the room back."""
    shelf: Any = Shelf.remote()  # type: ignore[attr-defined]
    spread = first_of.options(scheduling_strategy="SPREAD")
    sums: list[Any] = []
    for number in range(rounds):
        near = [first_of.remote(_block(number + index, size)) for index in range(4)]
        far = [spread.remote(_block(number * index, size), _block(index, size // 3)) for index in range(4)]
        tried = crashes_first.remote(_block(number, size))
        sums.append(dualray.get(shelf.keep.remote(_block(number, size))))
        sums += [dualray.get(near), dualray.get(far), dualray.get(tried)]
    put = [dualray.put(_block(index, 2 * size)) for index in range(6)]
    sums.append(dualray.get(spread.remote(*put[:3], _block(1, size))))
    inner = dualray.put([first_of.remote(_block(9, size)), put[0]])
    nested = dualray.get(inner)
    sums += [dualray.get(nested[0]), dualray.get(shelf.total.remote()), dualray.get(shelf.clear.remote())]
    del put, inner, nested
    time.sleep(1.0)  # room that nobody uses goes back
    sums += dualray.get([first_of.remote(_block(index, size)) for index in range(3)])
    held = sleeps.remote(3.0, _block(1, size), _block(2, size))
    again = first_of.remote(_block(3, size), held and _block(4, size))
    more = [told(lambda: int(dualray.get(dualray.put(_block(5, 3 * size)))[0])) for _ in range(3)]
    return [*sums, *more, outcome(again), outcome(held), outcome(shelf.keep.remote(_block(7, size)))]


def full(*, size: int = 700_000) -> list[str]:
    """Stores that are full of what is held: puts, results, arguments and generators wait, and are refused."""
    held = [dualray.put(_block(index, size)) for index in range(2)]
    words = [told(lambda: int(dualray.get(dualray.put(_block(3, 3 * size)))[0]))]
    made = [first_of.options(num_cpus=0.5).remote(_block(index, size // 2), *held) for index in range(6)]
    large = [makes.options(scheduling_strategy="SPREAD").remote(index, size) for index in range(8)]
    words += [outcome(ref) for ref in made]
    words += [told(lambda ref=ref: int(dualray.get(ref)[0])) for ref in large]  # type: ignore[misc]
    near = NodeAffinitySchedulingStrategy("node-1", soft=False)
    both = first_of.options(scheduling_strategy=near).remote(*large[:5])
    words.append(outcome(both, 40.0))
    taken = [told(lambda ref=ref: int(dualray.get(ref)[0])) for ref in makes_many.remote(6, size)]  # type: ignore[misc]
    too_large = makes.remote(1, 40 * size)
    words += [*taken, outcome(too_large, 40.0)]
    del held, large
    return [*words, told(lambda: int(dualray.get(dualray.put(_block(8, 2 * size)))[0]))]


@dualray.remote(max_retries=-1, duration=0.1)
def makes(content: int, size: int) -> Any:
    """A block."""
    return _block(content, size)


@dualray.remote(max_retries=-1, num_returns="streaming")
def makes_many(count: int, size: int) -> Any:
    """Blocks, one after the other."""
    for index in range(count):
        yield _block(index, size)


# ---- Many small ones, and streams that are lost --------------------------------------------------------------------


@dualray.remote(max_retries=-1, duration=0.0004)
def tiny(index: int) -> int:
    """Next to nothing."""
    return index


@dualray.remote(max_retries=-1, duration=0.05)
def crowds(count: int) -> int:
    """Makes many small ones; some are not read, some are cancelled."""
    refs = [tiny.remote(index) for index in range(count)]
    for ref in refs[-3:]:
        dualray.cancel(ref)
    return sum(dualray.get(refs[:-6]))


@dualray.remote
class Reader:
    """Reads what others own."""

    def total(self, refs: list[Any]) -> int:
        """Of references."""
        return sum(int(np.asarray(each).flat[0]) for each in dualray.get(refs))


def crowd(*, tasks: int = 300, size: int = 300_000) -> list[Any]:
    """Many small tasks of several owners at once, on workers that do nothing else; then large items of streams, that
    are read again when their nodes may be gone."""
    refs = [tiny.remote(index) for index in range(tasks)]
    others = [crowds.remote(tasks // 3) for _ in range(3)]
    once = [tiny.options(max_calls=10, name="once").remote(index) for index in range(30)]
    few = [tiny.options(max_retries=0, name="few").remote(index) for index in range(10)]
    sums = [sum(dualray.get(refs)), dualray.get(others), sum(dualray.get(once)), len([outcome(ref) for ref in few])]
    far = makes_many.options(scheduling_strategy="SPREAD")
    streams = [list(far.remote(4, size)) for _ in range(4)]
    chained = [first_of.options(scheduling_strategy="SPREAD").remote(*items) for items in zip(*streams, strict=True)]
    reader: Any = Reader.options(max_restarts=-1, max_task_retries=-1).remote()  # type: ignore[attr-defined]
    totals = [reader.total.remote([*items, *refs[:3]]) for items in streams]
    time.sleep(1.0)
    again = [first_of.options(scheduling_strategy="SPREAD").remote(*items) for items in streams]
    more = [tiny.options(scheduling_strategy="SPREAD").remote(index) for index in range(tasks // 2)]
    return [*sums, dualray.get(chained), dualray.get(totals), dualray.get(again), sum(dualray.get(more))]


# ---- Narrow groups -------------------------------------------------------------------------------------------------

TIGHT: tuple[tuple[str, list[dict[str, float]]], ...] = (
    ("PACK", [{"CPU": 2}, {"CPU": 3}, {"CPU": 1}, {"CPU": 2, "GPU": 1}]),
    ("SPREAD", [{"CPU": 1}, {"CPU": 1, "GPU": 1}, {"CPU": 3}, {"CPU": 1}, {"GPU": 1}]),
    ("STRICT_PACK", [{"CPU": 2}, {"CPU": 1, "GPU": 1}, {"GPU": 1}]),
    ("STRICT_SPREAD", [{"CPU": 1}, {"CPU": 4}, {"CPU": 1, "GPU": 1}, {"CPU": 2}]),
    ("STRICT_SPREAD", [{"GPU": 1}, {"CPU": 1}, {"CPU": 3}]),
    ("PACK", [{"CPU": 4}, {"CPU": 4}]),
)
"""Strategies and bundles: each fits on the cluster of tight_swarm when it is alone, and most in one way only."""


@dualray.remote(max_retries=-1, num_cpus=0)
def within(seconds: float) -> str:
    """In a bundle; it has a child there."""
    time.sleep(seconds)
    here = dualray.get_runtime_context()
    return f"{here.get_node_id()} {here.get_placement_group_id()} {dualray.get(node.options(num_cpus=0).remote())}"


def tight() -> list[str]:
    """Groups that want the same nodes, one behind the other; tasks and actors in them; and they are removed."""
    words = []
    made = [_group(bundles, strategy, f"{number}") for number, (strategy, bundles) in enumerate(TIGHT)]
    groups = [group for group in made if group is not None]
    for number, group in enumerate(groups):
        words.append(f"{number}: {outcome(group.ready(), 0.1)[:80]}")
    for number, group in enumerate(groups):
        bundles = [PlacementGroupSchedulingStrategy(group, index, True) for index in range(-1, group.bundle_count)]
        inside = [within.options(scheduling_strategy=bundle).remote(0.2) for bundle in bundles]
        make: Any = Teller
        actor = make.options(num_cpus=0, scheduling_strategy=bundles[1]).remote()
        called = actor.where.remote()
        ready, _ = dualray.wait([*inside, called], num_returns=len(inside) + 1, timeout=3.0)
        words.append(f"{number}: {len(ready)}")
        removed_early = within.options(scheduling_strategy=bundles[-1]).remote(9.0) if number % 2 else called
        remove_placement_group(group)
        words += [outcome(ref) for ref in (*inside, called, removed_early)]
        words.append(told(lambda number=number: get_placement_group(f"{number}")))  # type: ignore[misc]
    too_much = [node.options(num_cpus=4).remote() for _ in range(3)]
    words += [*(outcome(ref) for ref in too_much), told(lambda: _reserved([{"CPU": 4}], "STRICT_PACK"))]
    return words


# ---- Memory --------------------------------------------------------------------------------------------------------


@dualray.remote(duration=1.0)
def heavy(index: int) -> int:
    """Takes much memory."""
    return index


def memory(*, tasks: int = 8) -> list[str]:
    """More than fits at once: the newest are ended; some may be tried again, some may not."""
    refs = [heavy.options(max_retries=-1 if index % 2 else 0, name="heavy").remote(index) for index in range(tasks)]
    alone = heavy.options(max_retries=1, name="monster").remote(1)
    again = [outcome(ref, 60.0) for ref in (*refs, alone)]
    asked = [heavy.options(memory="1GiB", max_retries=2, name="heavy").remote(index) for index in range(6)]
    return [*again, *(outcome(ref, 60.0) for ref in asked)]


# ---- What outlives those who own it --------------------------------------------------------------------------------


@dualray.remote(max_restarts=-1, max_task_retries=-1)
class Lender:
    """Owns blocks, and gives references to them away."""

    @dualray.method(duration=0.1)
    def lend(self, contents: list[int], size: int) -> list[Any]:
        """References to blocks that it owns."""
        return [dualray.put(np.full(size, content, dtype=np.uint8)) for content in contents]


@dualray.remote(max_retries=-1, duration=0.2)
def holds_on(refs: list[Any], contents: list[int], seconds: float) -> int:
    """Reads blocks whose owner may die meanwhile: those that it has, it has as they were, and may read again. How many
    that were."""
    held = []
    for ref in refs:
        try:
            held.append((ref, dualray.get(ref)))
        except dualray.exceptions.ObjectLostError:
            break
    time.sleep(seconds)
    again = dualray.get([ref for ref, _ in held])
    for content, (_, first), second in zip(contents, held, again, strict=False):
        if not (first == content).all() or not (second == content).all():
            raise AssertionError(f"a block of {content} became {first[0]}, and then {second[0]}")
    return len(held)


def orphans(*, lenders: int = 4, rounds: int = 3, size: int = 300_000) -> list[int]:
    """Blocks that actors own, and that tasks on other nodes read for a while, one round after the other."""
    make: Any = Lender.options(num_cpus=0.5, scheduling_strategy="SPREAD")  # type: ignore[attr-defined]
    made = [make.remote() for _ in range(lenders)]
    reads = holds_on.options(scheduling_strategy="SPREAD")
    counts: list[int] = []
    for number in range(rounds):
        contents = [[number + 10 * place, number + 10 * place + 1] for place in range(lenders)]
        lent = [lender.lend.remote(each, size) for lender, each in zip(made, contents, strict=True)]
        refs = dualray.get(lent)
        reading = [
            reads.remote(refs[place], contents[place], seconds) for place in range(lenders) for seconds in (0.3, 1.5)
        ]
        del lent, refs
        counts += dualray.get(reading)
    return counts
