"""What recording costs, and what a sweep costs: `python -m benchmarks.whatif_costs`.

Recording: the CPU time that a worker uses for a task, recorded and not, in pairs that follow one another; the least of
each, for what else runs on the machine only ever adds, and the same of all other processes. A worker that is always
busy loses that share of its throughput. A sweep: a trace of so many
tasks, a third of them with two arguments, replayed on so many configurations on all cores; time, and CPU time.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import dualray
from dualray import whatif

WARM_UP = 200
"""Tasks that run before those that count."""


@dualray.remote
def empty() -> None:
    """The task of `recording`."""


def processes() -> Iterator[int]:
    """This process, and all that it has begun, by way of others, too."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [os.getpid()]
    while found:
        pid = found.pop()
        yield pid
        found += parents.get(pid, [])


def is_worker(pid: int) -> bool:
    """Whether a process runs tasks."""
    try:
        return b"dualray.real.processes.worker " in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # it has just ended


def cpu_ns() -> tuple[int, int]:
    """CPU time of the threads of all these processes: of workers, and of all others."""
    used_ns = [0, 0]
    for pid in processes():
        place = 0 if is_worker(pid) else 1
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                used_ns[place] += int((thread / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return used_ns[0], used_ns[1]


def us_per_task(record: Path | None, count: int, milliseconds: float) -> tuple[float, float]:
    """CPU time of one run, in microseconds for each task: of its worker, and of all other processes."""

    @dualray.remote
    def busy(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    dualray.init(mode="real", num_cpus=1, record=record, log_to_driver=False)
    try:
        call: Any = busy.remote if milliseconds else empty.remote
        args = (milliseconds / 1000,) if milliseconds else ()
        dualray.get([call(*args) for _ in range(WARM_UP)])
        before_ns = cpu_ns()
        dualray.get([call(*args) for _ in range(count)])
        of_worker, of_others = (after - before for before, after in zip(before_ns, cpu_ns(), strict=True))
        return of_worker / count / 1000, of_others / count / 1000
    finally:
        dualray.shutdown()


def recording(directory: Path, pairs: int) -> None:
    """Print a line for each length of task."""
    for milliseconds, count in ((0.0, 20_000), (1.0, 1000), (5.0, 300)):
        of: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for number in range(pairs):
            for is_recorded in (number % 2 == 0, number % 2 == 1):
                path = directory / "run.parquet" if is_recorded else None
                of[is_recorded].append(us_per_task(path, count, milliseconds))
        plain, recorded = (min(worker for worker, _ in of[which]) for which in (False, True))
        more = [after[0] - before[0] for before, after in zip(of[False], of[True], strict=True)]
        others = min(each for _, each in of[True]) - min(each for _, each in of[False])
        print(
            f"tasks of {milliseconds:g} ms: their worker uses {plain:,.1f} us of CPU time for each, and recorded "
            f"{recorded - plain:+.1f} us ({recorded / plain - 1:+.1%}); driver and others {others:+.1f} us; the pairs: "
            f"{', '.join(f'{it:+.0f}' for it in more)}",
            flush=True,
        )


def make_trace(path: Path, tasks: int) -> None:
    """Record a simulation: two tasks, and one that needs both, again and again."""

    @dualray.remote(duration=0.01)
    def leaf(number: int) -> int:
        return number

    @dualray.remote(duration=0.01)
    def add(one: int, other: int) -> int:
        return one + other

    dualray.init(mode="sim", nodes=2, num_cpus=4, record=path)
    try:
        call_leaf: Any = leaf.remote
        dualray.get([add.remote(call_leaf(i), call_leaf(i + 1)) for i in range(tasks // 3)])
    finally:
        dualray.shutdown()


def sweep(directory: Path, tasks: int, configurations: int) -> None:
    """Print how long a sweep takes."""
    path = directory / "big.parquet"
    make_trace(path, tasks)
    begun, used_before_s = time.perf_counter(), used_s()
    found = whatif.predict(path, nodes=list(range(1, configurations + 1)), cpus=[8], seeds=1)
    took_s, cpu_s = time.perf_counter() - begun, used_s() - used_before_s
    assert len(found.possible) == configurations
    print(
        f"{tasks:,} tasks on {configurations} configurations, loading included: {took_s:.0f} s, "
        f"{cpu_s:.0f} s of CPU time",
        flush=True,
    )


def used_s() -> float:
    """CPU time of this process and of those that it has begun and waited for."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def main(
    tasks: Annotated[int, typer.Option()] = 100_000,
    configurations: Annotated[int, typer.Option(help="Of the sweep; 0: it is not measured.")] = 40,
    pairs: Annotated[int, typer.Option(help="Of runs, recorded and not; 0: recording is not measured.")] = 7,
) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory(prefix="dualray-costs-") as name:
        if pairs:
            recording(Path(name), pairs)
        if configurations:
            sweep(Path(name), tasks, configurations)


if __name__ == "__main__":
    typer.run(main)
