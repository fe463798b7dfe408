"""Random numbers of PyTorch and TensorFlow follow from the seed, and each process draws its own."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dualray as ray


class OfTorch:
    """Draws of PyTorch."""

    def __init__(self) -> None:
        self.library: Any = pytest.importorskip("torch")

    def draw(self) -> float:
        return float(self.library.rand(1).item())

    def seed(self) -> None:
        self.library.manual_seed(7)


class OfTensorFlow:
    """Draws of TensorFlow."""

    def __init__(self) -> None:
        self.library: Any = importlib.import_module("tensorflow")

    def draw(self) -> float:
        return float(self.library.random.uniform([1]).numpy()[0])

    def seed(self) -> None:
        self.library.random.set_seed(7)


@pytest.fixture(params=[OfTensorFlow, OfTorch], scope="module")
def draws(request: pytest.FixtureRequest) -> Any:
    return request.param()


def drawn(draws: Any, seed: int) -> list[float]:
    """What tasks, actors and the driver draw in one simulation."""

    class Keeps:
        def __init__(self) -> None:
            self.first = draws.draw()

        def draw(self) -> float:
            return float(draws.draw())

    ray.init(mode="sim", seed=seed)
    try:
        tasks = ray.get([ray.remote(draws.draw).remote() for _ in range(3)])
        actor = ray.remote(Keeps).remote()
        return [*tasks, *ray.get([actor.draw.remote() for _ in range(2)]), draws.draw()]
    finally:
        ray.shutdown()


def test_unseeded_numbers_follow_from_the_seed_of_the_simulation(draws: Any) -> None:
    first = drawn(draws, seed=1)
    assert len(set(first)) == len(first)
    assert drawn(draws, seed=1) == first
    assert set(drawn(draws, seed=2)).isdisjoint(first)


def test_a_process_that_seeds_draws_what_it_would_draw_alone(draws: Any) -> None:
    class Seeds:
        def __init__(self) -> None:
            draws.seed()

        def draw(self) -> float:
            return float(draws.draw())

    draws.seed()
    expected = [draws.draw(), draws.draw()]
    ray.init(mode="sim")
    try:
        first, second = ray.remote(Seeds).remote(), ray.remote(Seeds).remote()
        calls = [actor.draw.remote() for _ in range(2) for actor in (first, second)]
        assert ray.get(calls) == [expected[0], expected[0], expected[1], expected[1]]
    finally:
        ray.shutdown()


def test_threads_of_a_task_draw_from_the_same_numbers(draws: Any) -> None:
    def drawn() -> list[float]:
        draws.seed()
        with ThreadPoolExecutor(1) as pool:
            return [draws.draw(), pool.submit(draws.draw).result(), draws.draw()]

    expected = drawn()
    ray.init(mode="sim")
    try:
        assert ray.get(ray.remote(drawn).remote()) == expected
    finally:
        ray.shutdown()


def test_a_driver_draws_on_from_its_seed_and_has_it_again_after_the_simulation(draws: Any) -> None:
    draws.seed()
    expected = [draws.draw(), draws.draw()]
    draws.seed()
    ray.init(mode="sim")
    try:
        assert draws.draw() == expected[0]
        ray.get(ray.remote(draws.draw).remote())
        assert draws.draw() == expected[1]
    finally:
        ray.shutdown()
    assert draws.draw() == expected[0]
