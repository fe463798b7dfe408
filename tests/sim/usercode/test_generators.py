"""Generators in virtual time: what items cost, items that are lost with their node, consumers that never come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import ObjectReconstructionFailedError, SimulationDeadlockError
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    ray.shutdown()


def blocks(items, path):
    for item in range(items):
        with path.open("a") as file:
            file.write(f"{item}\n")
        yield np.full(MIB, item, dtype=np.uint8)
        time.sleep(0.1)


def made(path):
    return [int(line) for line in path.read_text().split()]


def on_node_1():
    return NodeAffinitySchedulingStrategy("node-1", soft=True)


def test_a_duration_is_that_of_each_item():
    ray.init(mode="sim", nodes=1)

    @ray.remote(duration=2.0)
    def slow():
        yield from range(3)

    began_s = time.monotonic()
    times_s = [round(time.monotonic() - began_s) for _ in slow.remote()]
    assert times_s == [2, 4, 6]


def test_items_that_were_lost_with_their_node_are_made_again(tmp_path):
    path = tmp_path / "made"
    ray.init(mode="sim", nodes=3, faults=["kill node-1 at 10s"])
    generator: Any = ray.remote(blocks).options(scheduling_strategy=on_node_1()).remote(4, path)
    refs: list[Any] = list(generator)
    assert made(path) == [0, 1, 2, 3]
    time.sleep(20)
    assert [int(ray.get(ref)[0]) for ref in refs] == [0, 1, 2, 3]
    assert made(path) == [0, 1, 2, 3] * 2  # once more for all of them


def test_a_node_that_dies_in_the_middle_gives_no_item_twice(tmp_path):
    path = tmp_path / "made"
    ray.init(mode="sim", nodes=3, faults=["kill node-1 at 0.25s"])
    generator: Any = ray.remote(blocks).options(scheduling_strategy=on_node_1()).remote(6, path)
    assert [int(ray.get(ref)[0]) for ref in list(generator)] == [0, 1, 2, 3, 4, 5]
    assert len(made(path)) > 6


def test_one_that_must_not_run_again_loses_its_items_with_its_node(tmp_path):
    ray.init(mode="sim", nodes=3, faults=["kill node-1 at 10s"])
    remote = ray.remote(blocks).options(scheduling_strategy=on_node_1(), max_retries=0)
    refs: list[Any] = list(remote.remote(2, tmp_path / "made"))
    time.sleep(20)
    with pytest.raises(ObjectReconstructionFailedError):
        ray.get(refs[0])


def test_a_generator_that_makes_fewer_items_when_it_runs_again(tmp_path):
    path = tmp_path / "attempts"

    @ray.remote(scheduling_strategy=on_node_1())
    def shrinking():
        is_first = not path.exists()
        path.touch()
        for item in range(3 if is_first else 2):
            yield np.full(MIB, item, dtype=np.uint8)

    ray.init(mode="sim", nodes=3, faults=["kill node-1 at 10s"])
    refs: list[Any] = list(shrinking.remote())
    time.sleep(20)
    with pytest.raises(ObjectReconstructionFailedError, match="yielded only 2 items when it ran again"):
        ray.get(refs[2])
    assert int(ray.get(refs[1])[0]) == 1


def test_waiting_for_the_end_of_one_that_is_held_back_is_a_deadlock():
    ray.init(mode="sim", nodes=1)

    @ray.remote(_generator_backpressure_num_objects=2)
    def eager():
        yield from range(5)

    generator = eager.remote()
    with pytest.raises(SimulationDeadlockError, match="has yielded as many items as"):
        ray.get(generator.completed())


def test_two_runs_are_alike(tmp_path):
    def run():
        ray.init(mode="sim", nodes=3, seed=5)

        @ray.remote(_generator_backpressure_num_objects=2)
        def numbers(items):
            for item in range(items):
                time.sleep(0.01)
                yield item, time.time(), np.random.default_rng().integers(1000)

        generators: list[Any] = [numbers.remote(items) for items in (3, 5, 4)]
        found: list[Any] = []
        while generators:
            done: Any = ray.wait(generators)
            [ready], generators = done
            for ref in ready:
                found.append((ref.hex(), ray.get(ref)[:2]))
                generators.append(ready)
                break
        ray.shutdown()
        return found

    first = run()
    assert len(first) == 12
    assert run() == first
