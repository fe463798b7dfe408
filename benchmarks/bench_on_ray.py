"""What mode "ray" costs over plain Ray: both run in turn on one local Ray.

    python -m benchmarks.bench_on_ray [ROUNDS]

Prints medians of: microseconds to submit a call, milliseconds of a round trip, tasks of 5 ms a second, and the CPU time
that such a task takes the driver, the workers and Ray's own processes. The last one is of use also where others use the
machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import ray

import dualray

CPUS = 2
SUBMITTED = 300
ROUND_TRIPS = 100
TASKS = 200
TASK_S = 0.005


def nothing() -> None:
    """The empty task."""


def sleeps() -> None:
    """The task of 5 ms."""
    time.sleep(TASK_S)


def submit_us(function: Any, get: Callable[[Any], Any]) -> float:
    """To submit one of many calls."""
    began = time.perf_counter()
    refs = [function.remote() for _ in range(SUBMITTED)]
    took = time.perf_counter() - began
    get(refs)
    return took / SUBMITTED * 1e6


def round_trip_ms(function: Any, get: Callable[[Any], Any]) -> float:
    """From the call to its value."""
    began = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        get(function.remote())
    return (time.perf_counter() - began) / ROUND_TRIPS * 1e3


def tasks_per_s(function: Any, get: Callable[[Any], Any]) -> float:
    """Of tasks that sleep for 5 ms."""
    began = time.perf_counter()
    get([function.remote() for _ in range(TASKS)])
    return TASKS / (time.perf_counter() - began)


def cpu_us(function: Any, get: Callable[[Any], Any]) -> float:
    """Of the same tasks: CPU time of all processes, for each."""
    before_s = _cpu_s()
    get([function.remote() for _ in range(TASKS)])
    return (_cpu_s() - before_s) / TASKS * 1e6


def _cpu_s() -> float:
    """CPU time of this process and those that it has started: a local Ray's are among them."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def main(rounds: int) -> None:
    """Measure and print."""
    dualray.init(mode="ray", address="local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False)
    plain = {"nothing": ray.remote(nothing), "sleeps": ray.remote(sleeps)}
    ours = {"nothing": dualray.remote(nothing), "sleeps": dualray.remote(sleeps)}
    peers = ((plain, ray.get), (ours, dualray.get))
    rows: list[tuple[str, Callable[[Any, Callable[[Any], Any]], float], str]] = [
        ("to submit a call, us", submit_us, "nothing"),
        ("round trip, ms", round_trip_ms, "nothing"),
        ("tasks of 5 ms a second", tasks_per_s, "sleeps"),
        ("CPU of such a task, us", cpu_us, "sleeps"),
    ]
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name, _, _ in rows}
    for functions, get in peers:  # workers start
        get([functions["sleeps"].remote() for _ in range(4 * CPUS)])
    for index in range(rounds):
        for name, measure, which in rows:
            for peer in (0, 1) if index % 2 else (1, 0):
                functions, get = peers[peer]
                found[name][peer].append(measure(functions[which], get))
    print(f"{'':26}{'Ray':>10}{'dualray':>10}{'ratio':>8}   medians of {rounds} rounds, in turn")
    for name, (of_ray, of_dualray) in found.items():
        one, other = statistics.median(of_ray), statistics.median(of_dualray)
        print(f"{name:26}{one:10.2f}{other:10.2f}{other / one:8.2f}")
    dualray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
