"""What plain Ray does otherwise, or what a layer over it gets wrong: dualray's promise holds in mode "ray"."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

import dualray
from dualray.exceptions import ActorUnschedulableError, TaskCancelledError, TaskError, TaskUnschedulableError
from dualray.util.placement_group import get_current_placement_group, placement_group, remove_placement_group
from dualray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.conformance.support import Tally, eventually, get


class TwoArgumentsError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("two")
        self.first, self.second = first, second


@dualray.remote(num_cpus=0.1)
def add(x: int, y: int = 1) -> int:
    return x + y


@dualray.remote(num_cpus=0.1)
def count_to(number: int) -> Any:
    yield from range(number)


def test_references_are_resolved_at_the_top_level_alone(on_ray):
    @dualray.remote
    def kinds(plain, named, nested):
        return plain, named, type(nested[0]).__name__, dualray.get(nested[0])

    ref = dualray.put(5)
    assert len(ref.binary()) == 28
    assert get(kinds.remote(ref, named=ref, nested=[ref])) == (5, 5, "ObjectRef", 5)


def test_what_nobody_refers_to_any_more_is_freed(on_ray):
    import ray

    @dualray.remote
    def first_of(refs):
        return int(dualray.get(refs[0])[0])

    held = dualray.put(np.zeros(1_000_000))
    key = held.hex()
    assert [get(first_of.remote([held])) for _ in range(3)] == [0, 0, 0]
    counts = ray._private.worker.global_worker.core_worker.get_all_reference_counts
    assert key.encode() in counts()
    del held
    gc.collect()
    eventually(lambda: key.encode() not in counts(), "the object is freed")


def test_an_exception_keeps_its_type_and_its_attributes(on_ray):
    @dualray.remote
    def fails():
        raise TwoArgumentsError(1, second=2)

    with pytest.raises(TwoArgumentsError) as caught:
        get(add.remote(fails.remote()))
    assert (caught.value.first, caught.value.second) == (1, 2)
    assert isinstance(caught.value, TaskError)
    assert isinstance(caught.value.cause, TwoArgumentsError)
    assert "test_traps.py" in str(caught.value)
    assert "on_ray/calls.py" not in str(caught.value)


def test_retries_go_by_the_users_exceptions(on_ray, tmp_path):
    tally, others, behind = Tally(tmp_path / "a"), Tally(tmp_path / "b"), Tally(tmp_path / "c")

    @dualray.remote(max_retries=2, retry_exceptions=[KeyError])
    def fails(where, error):
        if where.add() < 3 or error is not KeyError:
            raise error("no")
        return dualray.get_runtime_context().get_attempt()

    @dualray.remote
    def depends(value):
        behind.add()

    assert get(fails.remote(tally, KeyError)) == 2
    with pytest.raises(ValueError, match="no"):
        get(depends.remote(fails.remote(others, ValueError)))
    assert (others.count, behind.count) == (1, 0)


def test_cancelling(on_ray):
    @dualray.remote
    class Sleeper:
        async def sleep(self):
            await asyncio.sleep(100)

        async def other(self):
            return 1

    @dualray.remote(num_cpus=2)
    def holds():
        import time

        time.sleep(100)

    running, waiting = holds.remote(), holds.remote()
    for ref, force in ((waiting, False), (running, True)):
        dualray.cancel(ref, force=force)
        with pytest.raises((TaskCancelledError, dualray.exceptions.WorkerCrashedError)):
            get(ref)
    sleeper = Sleeper.options(num_cpus=0).remote()
    assert get(sleeper.other.remote()) == 1
    ref = sleeper.sleep.remote()
    with pytest.raises(ValueError, match="force"):
        dualray.cancel(ref, force=True)
    dualray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)


def test_items_of_a_generator(on_ray):
    items = count_to.remote(3)
    assert [get(ref) for ref in items] == [0, 1, 2]
    assert items.is_finished()
    assert get(items.completed()) is None

    async def read():
        return [await ref async for ref in count_to.remote(3)]

    assert asyncio.run(read()) == [0, 1, 2]
    waited = count_to.remote(1)
    ready, _ = dualray.wait([waited], timeout=20)
    assert ready == [waited]
    with pytest.raises(TypeError, match="passed to another process"):
        add.remote([waited])
    dynamic = get(count_to.options(num_returns="dynamic").remote(3))
    assert [get(ref) for ref in dynamic] == [0, 1, 2]


def test_an_actors_class_keeps_the_kinds_of_its_methods(on_ray):
    @dualray.remote(num_cpus=0, concurrency_groups={"io": 2})
    class Mixed:
        def __init__(self, start):
            self.start = start
            self.born = dualray.get_runtime_context().get_actor_id()

        @dualray.method(concurrency_group="io")
        async def later(self, x):
            return await add.remote(self.start, x)

        @dualray.method(num_returns=2)
        def pair(self):
            return self.start, self.born

        async def items(self):
            for i in range(2):
                yield self.start + i

        def which(self):
            return type(self).__name__

    made = Mixed.options(name="mixed").remote(10)
    found = dualray.get_actor("mixed")
    assert found == made
    assert hash(found) == hash(made)
    assert get(found.later.remote(1)) == 11
    start, born = found.pair.remote()
    assert (get(start), get(born)) == (10, made._actor_id.hex())
    assert [get(ref) for ref in found.items.remote()] == [10, 11]
    assert get(found.which.remote()) == "Mixed"
    assert get(found.__ray_call__.remote(lambda self, x: self.start + x, 5)) == 15
    with pytest.raises(TypeError, match="later"):
        found.later.remote()


def test_a_handle_keeps_its_actor_alive_and_the_last_one_lets_it_go(on_ray):
    @dualray.remote(num_cpus=0)
    class Kept:
        def ping(self):
            return dualray.get_runtime_context().current_actor

    handles = [Kept.options(name="kept").remote()]
    assert get(handles[0].ping.remote()) == handles[0]
    handles.clear()
    gc.collect()

    def is_gone():
        try:
            get(dualray.get_actor("kept").ping.remote())
        except (ValueError, dualray.exceptions.ActorDiedError):
            return True
        return False

    eventually(is_gone, "the actor is gone")


def test_each_call_knows_where_it_runs(on_ray):
    @dualray.remote(num_cpus=0, max_concurrency=2)
    class Threads:
        def where(self):
            here = dualray.get_runtime_context()
            return here.get_task_id(), here.get_actor_id(), here.get_task_name()

    here = dualray.get_runtime_context()
    assert here.mode == "ray"
    assert (here.get_task_id(), here.get_task_name(), here.get_actor_id()) == (None, None, None)
    actor = Threads.remote()
    told = get([actor.where.remote() for _ in range(4)])
    assert len({task for task, _, _ in told}) == 4
    assert {(actor_id, name) for _, actor_id, name in told} == {(actor._actor_id.hex(), "Threads.where")}


def test_a_placement_group_and_what_runs_in_it(on_ray):
    group = placement_group([{"CPU": 1}], strategy="PACK", name="group")
    assert get(group.ready()) == group
    strategy = PlacementGroupSchedulingStrategy(group, 0)

    @dualray.remote(num_cpus=1)
    def inside():
        return get_current_placement_group()

    assert get(inside.options(scheduling_strategy=strategy).remote()) == group
    with pytest.raises(ValueError, match="demands 2 CPU, but bundle 0"):
        inside.options(num_cpus=2, scheduling_strategy=strategy).remote()
    remove_placement_group(group)
    with pytest.raises(dualray.exceptions.TaskPlacementGroupRemoved):
        get(inside.options(scheduling_strategy=strategy).remote())
    with pytest.raises(dualray.exceptions.PlacementGroupUnschedulableError, match="50 CPU"):
        placement_group([{"CPU": 50}])


def test_what_no_node_can_meet_fails_at_once(on_ray):
    @dualray.remote(resources={"absent": 1})
    class Nowhere:
        pass

    with pytest.raises(TaskUnschedulableError, match="50 CPU"):
        get(add.options(num_cpus=50).remote(1))
    with pytest.raises(ActorUnschedulableError, match="1 absent"):
        Nowhere.remote()
    with pytest.raises(TaskUnschedulableError, match="no-such-node does not match"):  # Ray ends the program for it
        get(add.options(label_selector={"ray.io/node-id": "no-such-node"}).remote(1))


def test_what_ray_cannot_give_is_refused_with_the_way_out(on_ray):
    from dualray.util import explain

    @dualray.remote(num_cpus=1)
    def waits():
        import time

        time.sleep(100)

    pending = waits.remote()
    with pytest.raises(dualray.exceptions.DualrayError, match="mode='sim'"):
        explain(pending)
    dualray.cancel(pending, force=True)
    with pytest.raises(dualray.exceptions.DualrayError, match=r"ray\.timeline"):
        dualray.timeline()


def test_plain_ray_and_dualray_meet(on_ray):
    import ray

    from dualray.on_ray import from_ray, to_ray

    @ray.remote
    def plain(x):
        return x + 1

    @ray.remote
    def reads(refs):  # a worker that has had nothing of dualray's before
        return dualray.get(refs[0]) + 1

    assert get(add.remote(from_ray(plain.remote(to_ray(add.remote(1)))))) == 4
    assert ray.get(reads.remote([dualray.put(5)])) == 6
    with pytest.raises(TypeError, match="to_ray takes an ObjectRef"):
        to_ray(5)
    with pytest.raises(TypeError, match=r"from_ray takes a ray\.ObjectRef"):
        from_ray(5)
