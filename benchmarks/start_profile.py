"""CPU time that a session takes to start, by process: `python -m benchmarks.start_profile`.

Seconds say little on a machine that does other things as well; CPU time, least of a few rounds, says where the work is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

import dualray

ROUNDS = 5
ACTORS = 20


class Empty:
    def call(self) -> None:
        pass


def name_of(process: psutil.Process) -> str:
    """Driver, the last part of a module's name, or redis-server."""
    command = process.cmdline()
    if process.pid == os.getpid():
        return "driver"
    return command[2].rpartition(".")[2] if command[1:2] == ["-m"] else "redis-server"


def cpu_ms() -> dict[str, float]:
    """Of this process and all that it has started, by name; schedstat counts nanoseconds on a CPU."""
    spent: dict[str, float] = {}
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            name = name_of(process)
            spent[name] = spent.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e6
    return spent


def since(before: dict[str, float]) -> dict[str, float]:
    return {name: ms - before.get(name, 0.0) for name, ms in cpu_ms().items()}


def show(what: str, rounds: list[tuple[float, dict[str, float]]]) -> None:
    seconds = min(elapsed for elapsed, _ in rounds)
    least = min((spent for _, spent in rounds), key=lambda spent: sum(spent.values()))
    parts = ", ".join(f"{name} {ms:.0f}" for name, ms in least.items())
    print(f"{what}: {seconds:.3f} s; {sum(least.values()):.0f} ms of CPU: {parts}")


def main() -> None:
    remote_class = dualray.remote(Empty)
    remote_task = dualray.remote(lambda: None)
    starts, actors, stops = [], [], []
    for _ in range(ROUNDS):
        before, begun = cpu_ms(), time.perf_counter()
        dualray.init(num_cpus=2, log_to_driver=False)
        starts.append((time.perf_counter() - begun, since(before)))
        dualray.get([remote_task.remote() for _ in range(4)])
        before, begun = cpu_ms(), time.perf_counter()
        handles = [remote_class.remote() for _ in range(ACTORS)]
        dualray.get([handle.call.remote() for handle in handles])
        actors.append((time.perf_counter() - begun, since(before)))
        before, begun = cpu_ms(), time.perf_counter()
        dualray.shutdown()
        stops.append((time.perf_counter() - begun, since(before)))
    show("init()", starts)
    show(f"{ACTORS} actors, each called once", actors)
    show("shutdown(), the driver's part", stops)


if __name__ == "__main__":
    main()
