"""Runs a plan, block by block, with no more of it in memory than the context allows.

Theory of operation
-------------------
Each step is an iterator over the blocks of the step before, pulled by whoever consumes the last one. A step of tasks
keeps a window open: it submits a task for a next block while no more than `tasks_max` of its tasks are under way and
what they hold, results that nobody has taken included, stays within its share of `bytes_in_flight_max`. A result is
dropped from the object store when the consumer asks for the next one and keeps no reference of its own. So the consumer
sets the pace, and blocks come in the order of the source, whatever finishes first.

How large a result will be is not known before it is there: until the first one is, what the source says of its size
counts; afterwards the mean of those seen, and never less than the largest of the last few. One task may always run.

A task makes two objects: the block, and how many rows and bytes it has. The second one is small and comes to the
driver, the first stays in the store where it was made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from typing import Any

import pyarrow as pa

from dualray import api
from dualray.data.compute import options_now
from dualray.data.context import DataContext
from dualray.data.plan import (
    ActorMap,
    Bundle,
    Drawing,
    Exchange,
    Held,
    Input,
    Limit,
    Map,
    Numbered,
    Part,
    Plan,
    Read,
    Transform,
    Union,
    begun,
    block_of,
    fused,
    of_block,
)
from dualray.exceptions import DualrayError, TaskError, UserCodeException

Meta = tuple[int, int]
"""Rows and bytes of a block."""
Submit = Callable[[Input], tuple[Any, Any]]
_SEEN = 8
_TRIES_MORE = 3
"""How often a call of a pool's actor is tried again after the death of its process. Ray tries without end, so that a
run with a function that always ends its process hangs."""
_CLOSING_S = 10
"""How long the actors of a pool have for the `__del__` of the user's instances."""


def execute(plan: Plan) -> Iterator[Held]:
    """The blocks of a plan, in order, each while it is asked for."""
    ensure_initialized()
    steps = list(plan.steps)
    stages = 1 + sum(not isinstance(step, Map) for step in steps)
    stream: Iterator[Input] = iter(plan.source)
    known = Plan(plan.source)
    while steps:
        step = steps.pop(0)
        known = known.then(step)
        match step:
            case Map():
                together = [step]
                while steps and isinstance(steps[0], Map) and _run_together(together, steps[0]):
                    more = steps.pop(0)
                    assert isinstance(more, Map)
                    known = known.then(more)
                    together.append(more)
                name = "->".join(each.name for each in together)
                transform = fused(begun(each.transform) for each in together)
                stream = bundled(stream, _rows_min(together), stages)
                stream = _by_tasks(stream, transform, name, step.needs, stages, step.tasks_max)
            case ActorMap():
                stream = _by_actors(bundled(_held(stream, stages), step.rows_min, stages), step, stages)
            case Limit(count=most):
                stream = _limited(_held(stream, stages), most)
            case Exchange():
                stream = step.run(_held(stream, stages), known.blocks)
            case Union(others=others):
                stream = chain(stream, *(execute(other) for other in others))
    yield from _held(stream, stages)


def _run_together(steps: list[Map], next_: Map) -> bool:
    """Whether the tasks of these steps can run one more, too.

    A step that needs `rows_min` rows at a time gets them from the blocks of the first step: the steps between must not
    drop rows, or number the blocks. As on Ray, functions of batches are taken to drop none.
    """
    if steps[0].needs != next_.needs or steps[0].tasks_max != next_.tasks_max:
        return False
    if (next_.rows_min or 0) <= _rows_min(steps):
        return True
    keeping = (step.keeps_rows or step.counts_as_keeping for step in steps)
    return all(keeping) and not any(isinstance(step.transform, Numbered | Drawing) for step in steps)


def _rows_min(steps: list[Map]) -> int:
    """How many rows a task of these steps needs."""
    return max(step.rows_min or 0 for step in steps)


def bundled(stream: Iterator[Input], rows_min: int | None, stages: int) -> Iterator[Input]:
    """Join neighbouring blocks until they have so many rows. What does not say how many rows it has is read first."""
    if not rows_min:
        yield from stream
        return
    parts: list[Part] = []
    for part in _counted(stream, stages):
        assert not isinstance(part, Bundle)
        if part.rows is not None:
            parts.append(part)
        if parts and (part.rows is None or sum(each.rows or 0 for each in parts) >= rows_min):
            yield parts[0] if len(parts) == 1 else Bundle(tuple(parts))
            parts.clear()
        if part.rows is None:  # among blocks that say how many they have: it stays alone
            yield part
        del part
    if parts:
        yield parts[0] if len(parts) == 1 else Bundle(tuple(parts))


def _counted(stream: Iterator[Input], stages: int) -> Iterator[Input]:
    first = next(stream, None)
    if first is None:
        return iter(())
    whole = chain([first], stream)
    return _held(whole, stages) if isinstance(first, Read) and first.rows is None else whole


def ensure_initialized() -> None:
    """`init()`, if the program has not called it."""
    if not api.is_initialized():
        api.init()


def load(held: Held) -> pa.Table:
    """The rows of a block, here."""
    table = held.block if isinstance(held.block, pa.Table) else api.get(held.block)
    return table if held.start == 0 and held.stop == table.num_rows else table.slice(held.start, held.rows)


def in_store(held: Held) -> Any:
    """A reference to the block, from which its rows must be cut."""
    return api.put(held.block) if isinstance(held.block, pa.Table) else held.block


def held(ref: Any, meta: Meta, files: tuple[str, ...] = ()) -> Held:
    """A block that a task has made."""
    return Held(block=ref, start=0, stop=meta[0], size_bytes=meta[1], files=files)


def measured(table: pa.Table) -> tuple[pa.Table, Meta]:
    """What a task returns: a block, and what it is."""
    return table, (table.num_rows, table.nbytes)


# ---- Steps -------------------------------------------------------------------------------------------------------


def _nothing(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    return tables


def _held(stream: Iterator[Input], stages: int) -> Iterator[Held]:
    """What has not been read yet is read."""
    first = next(stream, None)
    if first is None:
        return iter(())
    whole = chain([first], stream)
    if isinstance(first, Held):  # a source is of one kind, and steps make blocks
        return (
            part if isinstance(part, Held) else next(_by_tasks(iter([part]), _nothing, "Read", {}, 1)) for part in whole
        )
    return _by_tasks(whole, _nothing, "Read", {}, stages)


def _run_read(transform: Transform | Numbered, part: Read, number: int = 0) -> tuple[pa.Table, Meta]:
    return measured(block_of(of_block(transform, number), part.load()))


def _run_held(
    transform: Transform | Numbered, table: pa.Table, start: int, stop: int, number: int = 0
) -> tuple[pa.Table, Meta]:
    return measured(block_of(of_block(transform, number), table.slice(start, stop - start)))


def _run_bundle(
    transform: Transform | Numbered, number: int, cuts: list[tuple[int, int]], *parts: Read | pa.Table
) -> tuple[pa.Table, Meta]:
    tables = [
        part.load() if isinstance(part, Read) else part.slice(start, stop - start)
        for part, (start, stop) in zip(parts, cuts, strict=True)
    ]
    return measured(block_of(of_block(transform, number), *tables))


def _cuts(bundle: Bundle) -> list[tuple[int, int]]:
    """Which rows of its blocks it has; of a part that is to be read, all."""
    return [(part.start, part.stop) if isinstance(part, Held) else (0, 0) for part in bundle.parts]


def _given(bundle: Bundle) -> list[Any]:
    """Its parts as arguments of a task."""
    return [in_store(part) if isinstance(part, Held) else part for part in bundle.parts]


@cache
def _tasks() -> tuple[Any, Any, Any]:
    remote = api.remote(num_returns=2)
    return remote(_run_read), remote(_run_held), remote(_run_bundle)


def _by_tasks(
    stream: Iterator[Input],
    transform: Transform | Numbered,
    name: str,
    needs: Mapping[str, Any],
    stages: int,
    tasks_max: int | None = None,
) -> Iterator[Held]:
    context = DataContext.get_current()
    duration = {} if context.task_duration is None else {"duration": context.task_duration}
    read, map_, join = (task.options(name=f"data:{name}", **duration) for task in _tasks())
    shared = api.put(transform)
    numbers = count()

    def submit(part: Input) -> tuple[Any, Any]:
        number = (next(numbers),) if isinstance(transform, Numbered) else ()
        options = options_now(needs)
        if isinstance(part, Bundle):
            given = _cuts(part), *_given(part)
            return tuple(join.options(**options).remote(shared, number[0] if number else 0, *given))
        if isinstance(part, Read):
            return tuple(read.options(**options).remote(shared, part, *number))
        return tuple(map_.options(**options).remote(shared, in_store(part), part.start, part.stop, *number))

    most = context.tasks_max_of_cluster() if tasks_max is None else tasks_max
    return _window(stream, submit, most, context.bytes_in_flight_max // stages)


class _Mapper:
    """An actor of a pool: an instance of the user's class, and what it does with a block."""

    def __init__(self, make: Callable[[], Transform]) -> None:
        self._transform: Transform = make()

    def run(self, table: pa.Table, start: int, stop: int) -> tuple[pa.Table, Meta]:
        """What a block becomes."""
        return _run_held(self._transform, table, start, stop)

    def run_bundle(self, cuts: list[tuple[int, int]], *tables: pa.Table) -> tuple[pa.Table, Meta]:
        """What several blocks become."""
        return _run_bundle(self._transform, 0, cuts, *tables)

    def close(self) -> None:
        """Let go of the user's instance: its `__del__` runs, which a kill would skip."""
        del self._transform


def _by_actors(stream: Iterator[Input], step: ActorMap, stages: int) -> Iterator[Held]:
    context = DataContext.get_current()
    there = api.cluster_resources().get("CPU", 0)
    size = max(step.size, min(step.size_max, int(there)))
    wanted = size * (step.needs.get("num_cpus") or 0)
    if wanted and wanted >= there:
        raise ValueError(
            f"{step.name}: {size} actors of {step.needs['num_cpus']:g} CPUs would occupy all {there:g} CPUs of the "
            "cluster, so the tasks that produce input for the actors could not run. Use fewer actors"
        )
    pool = api.remote(_Mapper).options(max_restarts=-1, max_task_retries=_TRIES_MORE)
    actors = [pool.options(**options_now(step.needs)).remote(step.make) for _ in range(size)]
    turn = 0

    def submit(part: Input) -> tuple[Any, Any]:
        nonlocal turn
        assert not isinstance(part, Read)
        actor = actors[turn % len(actors)]
        turn += 1
        if isinstance(part, Bundle):
            return tuple(actor.run_bundle.options(num_returns=2).remote(_cuts(part), *_given(part)))
        call = actor.run.options(num_returns=2)
        return tuple(call.remote(in_store(part), part.start, part.stop))

    try:
        yield from _window(stream, submit, 2 * len(actors), context.bytes_in_flight_max // stages)
        closing = [actor.close.remote() for actor in actors]
        api.wait(closing, num_returns=len(closing), timeout=_CLOSING_S)
    finally:
        for actor in actors:
            api.kill(actor)


@dataclass(slots=True)
class _Flight:
    """A task that was submitted and not taken yet."""

    block: Any
    meta: Any
    guess: int
    files: tuple[str, ...]


def _window(stream: Iterator[Input], submit: Submit, tasks_max: int, bytes_max: int) -> Iterator[Held]:
    """Results of tasks in the order of the stream, with a bounded number of them, and of bytes, under way."""
    flying: deque[_Flight] = deque()
    seen: deque[int] = deque(maxlen=_SEEN)
    is_over = False
    while True:
        while not is_over and len(flying) < tasks_max:
            guess = max(seen, default=0)
            if flying and sum(max(flight.guess, guess) for flight in flying) + guess > bytes_max:
                break
            part = next(stream, None)
            if part is None:
                is_over = True
                break
            block, meta = submit(part)
            flying.append(_Flight(block, meta, part.size_bytes, part.files))
            del block, meta, part
        if not flying:
            return
        flight = flying.popleft()
        try:
            rows, size = api.get(flight.meta)
        except DualrayError as error:
            give_up([flight.meta for flight in flying])
            raise of_user_code(error) from None
        seen.append(size)
        done = held(flight.block, (rows, size), flight.files)
        del flight
        yield done
        del done


def of_user_code(error: DualrayError) -> DualrayError:
    """The error of a step's task, which is a `UserCodeException` as well: Ray's programs catch it under this name."""
    kind = type(error)
    if isinstance(error, TaskError) and not isinstance(error, UserCodeException):
        with suppress(TypeError):  # a class that allows no further base
            error.__class__ = type(kind.__name__, (kind, UserCodeException), {"__module__": kind.__module__})
    return error


def give_up(refs: Iterable[Any]) -> None:
    """Nobody will take these results, as the one before them has failed: their tasks end, and their errors, mostly that
    one again, are no news, whenever they come."""
    for ref in refs:
        api.cancel(ref)
        ref.future().add_done_callback(_is_read)


def _is_read(ended: Future[Any]) -> None:
    """Whatever became of it."""
    if not ended.cancelled():
        ended.exception()


def _limited(stream: Iterator[Held], count: int) -> Iterator[Held]:
    left = count
    while left > 0:
        part = next(stream, None)
        if part is None:
            return
        if part.rows > left:
            part = part.cut(0, left)
        left -= part.rows
        yield part
