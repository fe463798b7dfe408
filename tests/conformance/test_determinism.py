"""Ids and random draws depend on the program, not on the mode, the run, or the timing."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

import dualray as ray
from tests.conformance.support import Tally, get, start_cluster


@ray.remote
def leaf(value):
    return value


@ray.remote
def branch(depth):
    """References that a task made, and those of its children."""
    put = ray.put(depth)
    child = leaf.remote(depth)
    below = ray.get(branch.remote(depth - 1), timeout=10) if depth else []
    return [put.hex(), child.hex(), ray.get_runtime_context().get_task_id(), *below]


@ray.remote(num_returns=2)
def two():
    return 1, 2


@ray.remote
class Maker:
    def make(self):
        return ray.put(1).hex(), leaf.remote(1).hex(), ray.get_runtime_context().get_actor_id()


@ray.remote
def draw():
    generator = np.random.default_rng(random.getrandbits(64))
    return random.random(), np.random.rand(3).tolist(), random.gauss(0, 1), generator.integers(1000)


@ray.remote
class Drawer:
    def draw(self):
        return random.random(), float(np.random.rand())


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of the program below saw."""

    ids: list[str]
    draws: list[object]
    calls: list[object]


def run_program(mode, **options):
    start_cluster(mode, **options)
    try:
        maker, drawer = Maker.remote(), Drawer.remote()
        ids = [repr(maker)]
        for _ in range(2):
            ids += get(maker.make.remote())
        ids += get(branch.remote(3))
        refs = [ray.put(0), leaf.remote(0), *two.remote(), leaf.options(num_cpus=2).remote(1)]
        ids += [ref.hex() for ref in refs]
        draws = get([draw.remote() for _ in range(6)])
        calls = [get(drawer.draw.remote()) for _ in range(3)]
        return Run(ids, draws, calls)
    finally:
        del maker, drawer, refs
        ray.shutdown()


@pytest.fixture(scope="module")
def seeded(mode):
    return run_program(mode, object_id_seed=7, seed=5)


def test_ids_are_those_of_the_program_in_both_modes(seeded):
    assert seeded.ids == run_program("sim", object_id_seed=7, nodes=5, num_cpus=4).ids


def test_with_a_seed_tasks_draw_the_same_in_both_modes(seeded):
    other = run_program("sim", object_id_seed=7, seed=5, nodes=2)
    assert seeded.draws == other.draws
    assert seeded.calls == other.calls


def test_another_seed_gives_other_draws_and_the_same_ids(seeded):
    other = run_program("sim", object_id_seed=7, seed=6)
    assert all(a != b for a, b in zip(seeded.draws, other.draws, strict=True))
    assert seeded.ids == other.ids


def test_another_object_id_seed_gives_other_ids(seeded):
    assert set(seeded.ids).isdisjoint(run_program("sim", object_id_seed=8).ids)


def test_every_id_is_used_once(seeded):
    actor_ids = [seeded.ids[3]]  # the actor's own, which each of its calls told
    assert seeded.ids.count(*actor_ids) == 2
    assert len(set(seeded.ids)) == len(seeded.ids) - 1


def test_each_task_draws_for_itself(seeded):
    assert len({repr(row) for row in seeded.draws}) == len(seeded.draws)
    assert len({repr(row) for row in seeded.calls}) == len(seeded.calls)


def test_without_a_seed_draws_are_new_in_real_mode_and_those_of_seed_0_in_sim_mode(mode):
    draws = run_program(mode).draws
    assert (draws == run_program("sim", seed=0).draws) == (mode == "sim")


def test_the_random_streams_of_the_driver_are_left_alone():
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    run_program("sim", seed=5)
    assert (random.random(), np.random.rand()) == expected


@ray.remote(max_retries=9, retry_exceptions=True)
def flaky(tally):
    draw = random.random(), float(np.random.random())
    if tally.add(repr(draw)) < 3:
        raise ValueError(draw)
    return draw


@ray.remote(max_restarts=3, max_task_retries=3)
class FlakyActor:
    @ray.method(retry_exceptions=True)
    def draw(self, tally):
        draw = random.random()
        if tally.add(repr(draw)) < 3:
            raise ValueError(draw)
        return draw


def test_each_attempt_draws_other_numbers_and_the_same_in_both_modes(tmp_path):
    """Code that fails by chance recovers in a simulation, as it does on machines."""
    found = []
    for mode in ("sim", "real"):
        start_cluster(mode, object_id_seed=7, seed=5, num_cpus=2)
        try:
            tallies = Tally(tmp_path / f"{mode}-task"), Tally(tmp_path / f"{mode}-actor")
            get([flaky.remote(tallies[0]), FlakyActor.remote().draw.remote(tallies[1])])
            assert [len(set(tally.notes)) for tally in tallies] == [3, 3]
            found.append([tally.notes for tally in tallies])
        finally:
            ray.shutdown()
    assert found[0] == found[1]
