"""Ids and random draws depend on the program, not on the mode, the run, or the timing."""

from __future__ import annotations

import random

import numpy as np
import pytest

import dualray as ray
from tests.conformance.support import HAS_REAL_MODE, get, start_cluster


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


def ids_of_a_program(mode, **options):
    start_cluster(mode, **options)
    try:
        maker = Maker.remote()
        made = [get(maker.make.remote()) for _ in range(2)]
        tree = get(branch.remote(3))
        refs = [ray.put(0), leaf.remote(0), *two.remote(), leaf.options(num_cpus=2).remote(1)]
        return [ref.hex() for ref in refs], tree, made, repr(maker)
    finally:
        del maker, refs
        ray.shutdown()


def draws_of_a_program(mode, **options):
    start_cluster(mode, **options)
    try:
        drawer = Drawer.remote()
        mine = get([draw.remote() for _ in range(6)])
        return mine, [get(drawer.draw.remote()) for _ in range(3)]
    finally:
        del drawer
        ray.shutdown()


def test_ids_are_those_of_the_program_in_both_modes(mode):
    assert ids_of_a_program(mode, object_id_seed=7) == ids_of_a_program("sim", object_id_seed=7, nodes=5, num_cpus=4)


def test_another_object_id_seed_gives_other_ids(mode):
    if mode == "sim":
        assert ids_of_a_program(mode, object_id_seed=1) != ids_of_a_program(mode, object_id_seed=2)


def test_every_id_is_used_once():
    refs, tree, made, _ = ids_of_a_program("sim")
    ids = [*refs, *tree, *(hex_id for row in made for hex_id in row[:2])]
    assert len(set(ids)) == len(ids)


def test_with_a_seed_tasks_draw_the_same_in_both_modes(mode):
    assert draws_of_a_program(mode, seed=5) == draws_of_a_program("sim", seed=5, nodes=2)


def test_another_seed_gives_other_draws(mode):
    first, second = draws_of_a_program(mode, seed=5), draws_of_a_program("sim", seed=6)
    assert all(a != b for a, b in zip(first[0], second[0], strict=True))


def test_each_task_draws_for_itself():
    tasks, calls = draws_of_a_program("sim", seed=5)
    assert len({row[0] for row in tasks}) == len(tasks)
    assert len(set(calls)) == len(calls)


@pytest.mark.skipif(not HAS_REAL_MODE, reason="real mode is not built yet")
def test_without_a_seed_real_mode_draws_afresh():
    assert draws_of_a_program("real")[0] != draws_of_a_program("real")[0]


def test_the_random_streams_of_the_driver_are_left_alone(mode):
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    if mode == "sim":
        start_cluster(mode, seed=5)
        get(draw.remote())
        ray.shutdown()
    assert (random.random(), np.random.rand()) == expected
