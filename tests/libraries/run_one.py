"""One library in one mode: `python -m tests.libraries.run_one numba sim` prints a line of JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import dualray as ray
from tests.libraries.programs import PROGRAMS

TASKS, ACTORS = 6, 2


def call(name: str) -> object:
    """What a task runs. Read the clock before and after, as measured code does."""
    before_s = time.perf_counter()
    used = PROGRAMS[name][1]()
    assert time.perf_counter() >= before_s
    return used


class User:
    """An actor that uses a library twice."""

    def use(self, name: str) -> object:
        return call(name)


def run(name: str, mode: str) -> list[Any]:
    """What six tasks and two actors give, all at once."""
    ray.init(mode=mode, num_cpus=TASKS + ACTORS)
    try:
        task, actor = ray.remote(call), ray.remote(num_cpus=1)(User)
        refs: list[Any] = [task.remote(name) for _ in range(TASKS)]
        users: list[Any] = [actor.remote() for _ in range(ACTORS)]
        refs += [user.use.remote(name) for user in users for _ in range(2)]
        found: list[Any] = ray.get(refs)
        return [*found, *([time.time()] if mode == "sim" else [])]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2])), flush=True)
