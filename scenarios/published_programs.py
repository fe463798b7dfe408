"""The programs behind the published results of 2017 and 2018 (scenarios/published_*.yaml), on the public API alone.

Each returns the figures that were published, by name. docs/published.md says what was fitted on what.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, cast

import numpy as np

import dualray
from dualray.shared.scenario.distributions import parse_distribution
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def _takes(seconds: float, *_: Any, **__: Any) -> float:
    """The duration of a task whose first argument says it."""
    return seconds


def _draws(words: str, seed: int) -> Callable[[], float]:
    """Draws of a distribution in words, in seconds."""
    distribution, uniform = parse_distribution(words), Random(seed).random
    return lambda: distribution.sample_ns(uniform) / 1e9


# ---- Learning to play Pong ---------------------------------------------------------------------------------------


@dualray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class PongEnv:
    """Plays games, one after another."""

    def ready(self) -> bool:
        """That it is there."""
        return True

    @dualray.method(duration=_takes)
    def compute_gradient(self, seconds: float, model: Any) -> Any:
        """One game with this model, and its gradient, which is as large as the model."""
        return np.zeros_like(model)


def pong(
    *, batch: int, slots: int, updates: int, rollout: str, add_seconds: float, gradient_bytes: int, seed: int = 0
) -> dict[str, float]:
    """Batches of games, one actor for each slot; the driver adds the gradients up one by one as they come.

    Args:
        batch: games of one update.
        slots: how many can be played at once; an actor plays several when there are fewer slots than games.
        rollout: how long a game takes: a distribution in words.
        add_seconds: what the driver needs for one gradient.
    """
    draw = _draws(rollout, seed)
    actors = [cast(Any, PongEnv).remote() for _ in range(min(batch, slots))]
    dualray.get([actor.ready.remote() for actor in actors])
    gradients = np.zeros(gradient_bytes, dtype=np.uint8)
    began = time.perf_counter()
    for _ in range(updates):
        model = dualray.put(gradients)
        played = [actors[index % len(actors)].compute_gradient.remote(draw(), model) for index in range(batch)]
        while played:
            ready, played = dualray.wait(played)
            gradients = gradients + dualray.get(ready[0])
            time.sleep(add_seconds)
    return {"seconds_per_update": (time.perf_counter() - began) / updates}


# ---- Asynchronous Advantage Actor Critic ---------------------------------------------------------------------------


@dualray.remote(num_cpus=1)
class Runner:
    """Simulates the environment; a call plays some steps with the latest parameters."""

    @dualray.method(duration=_takes)
    def compute_gradient(self, seconds: float, parameters: int) -> int:
        """The gradient of these steps."""
        return parameters


def a3c(
    *, workers: int, gradients: int, gradients_to_train: int, rollout: str, apply_seconds: float, seed: int = 0
) -> dict[str, float]:
    """Each gradient that comes is applied by the driver, which sends its worker on with the new parameters.

    Args:
        gradients: how many are simulated; the time for `gradients_to_train` follows from their rate.
        rollout: how long a worker needs for one: a distribution in words.
        apply_seconds: what the driver needs for one.
    """
    draw = _draws(rollout, seed)
    runners = [cast(Any, Runner).remote() for _ in range(workers)]
    waiting = {runner.compute_gradient.remote(draw(), 0): runner for runner in runners}
    for ref in list(waiting):  # one round, so that all workers are up
        dualray.get(ref)
    began = time.perf_counter()
    for step in range(gradients):
        (ready,), _ = dualray.wait(list(waiting))
        runner = waiting.pop(ready)
        dualray.get(ready)
        time.sleep(apply_seconds)
        waiting[runner.compute_gradient.remote(draw(), step)] = runner
    seconds = (time.perf_counter() - began) / gradients
    dualray.get(list(waiting))
    return {
        "minutes_to_train": seconds * gradients_to_train / 60,
        "driver_busy_percent": 100 * apply_seconds / seconds,
    }


# ---- Locality ------------------------------------------------------------------------------------------------------


@dualray.remote
def produce(size: int) -> Any:
    """An object."""
    return np.zeros(size, dtype=np.uint8)


@dualray.remote(duration=0)
def consume(made: Any) -> int:
    """A task with one object as its dependency."""
    return int(made[0])


def locality(*, sizes: dict[str, list[int]], at_once: int, aware: bool, seed: int = 0) -> dict[str, float]:
    """The mean latency of tasks whose argument lies on one node or the other, from submission to result.

    Args:
        sizes: by name: the bytes of the objects, and how many tasks there are.
        at_once: tasks that are submitted together; the next ones follow when their results are there.
        aware: whether a task may go where its argument is; else its node is drawn.
    """
    stream = Random(seed)
    nodes = [row["NodeID"] for row in dualray.nodes()]
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]

    def where() -> Any:
        return "DEFAULT" if aware else stream.choice(places)

    found = {}
    for name, (size, tasks) in sizes.items():
        total = 0.0
        for _ in range(tasks // at_once):
            made = [produce.options(scheduling_strategy=stream.choice(places)).remote(size) for _ in range(at_once)]
            dualray.wait(made, num_returns=at_once, fetch_local=False)
            began = time.perf_counter()
            waiting = [consume.options(scheduling_strategy=where()).remote(it) for it in made]
            while waiting:
                _, waiting = dualray.wait(waiting)
                total += time.perf_counter() - began
            del made
        found[f"latency_ms_{name}"] = 1000 * total / tasks
    return found


# ---- Throughput ------------------------------------------------------------------------------------------------------


WARM_UP = 20
"""Tasks of each node that come before those that are measured: its workers are up and leased then."""


@dualray.remote(duration=0)
def empty() -> None:
    """Nothing."""


@dualray.remote(num_cpus=1, duration=0, scheduling_strategy="SPREAD")
def submit(tasks: int, begin_at: float) -> float:
    """Submit empty tasks on this node from a time on; when the last of them has ended."""
    dualray.get([empty.remote() for _ in range(WARM_UP)])
    time.sleep(begin_at - time.time())
    dualray.get([empty.remote() for _ in range(tasks)])
    return time.time()


def throughput(*, tasks: int) -> dict[str, float]:
    """Empty tasks a second: one task on each node submits so many, all beginning at the same instant."""
    nodes = len(dualray.nodes())
    begin_at = time.time() + 1.0
    ended = dualray.get([submit.remote(tasks, begin_at) for _ in range(nodes)])
    rate = nodes * tasks / (max(ended) - begin_at)
    return {"tasks_per_second": rate, "tasks_per_second_and_node": rate / nodes}


# ---- Reconstruction --------------------------------------------------------------------------------------------------


KEPT = 10
"""Links of each chain that the driver holds on to."""


@dualray.remote(max_retries=-1, duration=0.1)
def link(before: Any, content: int) -> Any:
    """One task of a chain."""
    return np.full(2_000, content % 251, dtype=np.uint8)


def chains(*, count: int, seconds: float, lost_at: list[float], back_after: float) -> dict[str, float]:
    """Chains of tasks that a driver submits link by link while nodes are lost and come back.

    Throughput is what the driver sees: links that are ready for the first time. The newest KEPT links of each chain are
    kept, so that a chain goes on from the newest of them that is left. What was kept when a node was lost is read at
    the end: of that, what lay on this node alone is made again.

    Args:
        count: how many chains there are.
        lost_at, back_after: when nodes are lost, in seconds since `init`, and how long they are away.
    """
    waiting = {link.remote(None, number): deque[Any](maxlen=KEPT) for number in range(count)}
    ready_at = []
    kept_at_loss: list[list[Any]] = []
    to_come = list(lost_at)
    while time.perf_counter() < seconds:
        ready, _ = dualray.wait(list(waiting), fetch_local=False)
        now = time.perf_counter()
        if to_come and now >= to_come[0]:
            del to_come[0]
            kept_at_loss += [list(chain) for chain in waiting.values()]
        for ref in ready:
            chain = waiting.pop(ref)
            ready_at.append(now)
            chain.append(ref)
            waiting[link.remote(ref, len(ready_at))] = chain
    dualray.wait(list(waiting), num_returns=len(waiting), fetch_local=False)
    found = {}
    times = np.array(ready_at)

    def rate(begin: float, end: float) -> float:
        return float(((times >= begin) & (times < end)).sum()) / (end - begin)

    for place, at in enumerate(lost_at, 1):
        before = rate(at - 10, at)
        slow = min(rate(at + second, at + second + 2) for second in np.arange(0, back_after + 10, 1.0))
        after = rate(at + back_after + 5, at + back_after + 15)
        found[f"tasks_per_second_before_{place}"] = before
        found[f"dip_{place}_percent"] = 100 * slow / before
        found[f"back_{place}_percent"] = 100 * after / before
    for kept in kept_at_loss:
        dualray.get(kept[1:])  # each is made of the one before it; who made the first is long forgotten
    return found
