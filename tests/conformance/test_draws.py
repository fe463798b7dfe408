"""A seed that a program sets holds for its process, as on Ray."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dualray as ray
from tests.conformance.support import get


class Seeds:
    def __init__(self):
        random.seed(7)
        np.random.seed(7)

    def draw(self):
        return random.random(), float(np.random.random())


class SeedsOnALoop(Seeds):
    async def draw(self):
        return super().draw()


@pytest.mark.parametrize(("kind", "options"), [(Seeds, {}), (Seeds, {"max_concurrency": 2}), (SeedsOnALoop, {})])
def test_an_actor_that_seeds_in_its_constructor_draws_on_from_there(cluster, kind, options):
    own, numpys = random.Random(7), np.random.RandomState(7)
    expected = [(own.random(), float(numpys.random_sample())) for _ in range(3)]
    actor = ray.remote(kind).options(**options).remote()
    assert [get(actor.draw.remote()) for _ in range(3)] == expected


def test_threads_of_a_task_draw_from_the_same_numbers(cluster):
    @ray.remote
    def drawn():
        random.seed(7)
        with ThreadPoolExecutor(1) as pool:
            return [random.random(), pool.submit(random.random).result(), random.random()]

    own = random.Random(7)
    assert get(drawn.remote()) == [own.random() for _ in range(3)]
