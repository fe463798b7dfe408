"""Compares predicted with measured memory: `python -m benchmarks.fidelity_memory`.

Ten programs, of which half spill, are recorded with one CPU and a large store, predicted for three CPUs and the store
that each names, and then run there. Compared are the most that the store and the workers held at once, and the bytes
that were written to disk. Then nine programs run with too little memory for what they do side by side, and a tenth with
enough: compared is whose worker the memory monitor ends first.

Times count for little here, so that this says something on a machine that others use, too. Without names, all of both
tables; it takes about three minutes, and prints tables in Markdown.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

import dualray as ray
from benchmarks.whatif_costs import processes
from dualray import whatif
from dualray.machine_memory import own_bytes
from dualray.recording.file import read_record_file
from dualray.whatif.configurations import Configuration

MIB = 1 << 20
CPUS = 3
STORE_BYTES = 1024 * MIB
"""While a program is recorded."""
LOOK_S = 0.02
"""How often the driver looks at what workers hold, and at the store."""
HELD_S = 0.4
"""How long a task holds what it has taken: for several looks."""
CHECK_NS = 50_000_000
"""How often the memory monitor looks."""
SHARE = 0.95
"""Of a node's memory, that a prediction lets workers and store use; `memory_limit_bytes` is of workers alone."""


# ---- What tasks do -------------------------------------------------------------------------------------------------


def _hold(mib: int, seconds: float) -> None:
    taken = np.ones(mib * MIB, dtype=np.uint8)
    time.sleep(seconds)
    assert taken[-1] == 1


@ray.remote(max_retries=0)
def hold(mib: int, seconds: float = HELD_S) -> int:
    """Hold so much, and return nothing of it."""
    _hold(mib, seconds)
    return mib


@ray.remote
def small(mib: int, seconds: float = HELD_S) -> int:
    """As `hold`, under another name."""
    _hold(mib, seconds)
    return mib


@ray.remote
def large(mib: int, seconds: float = HELD_S) -> int:
    """As `hold`, under another name."""
    _hold(mib, seconds)
    return mib


@ray.remote(max_retries=0)
def make(mib: int, seconds: float = 0.05) -> Any:
    """Return so much. It is not tried twice, so that the store keeps it on disk and not in mind."""
    time.sleep(seconds)
    return np.ones(mib * MIB, dtype=np.uint8)


@ray.remote(max_retries=0)
def add(*arrays: Any) -> Any:
    """Put arrays together."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    time.sleep(0.05)
    return total


@ray.remote(max_retries=0)
def look(*arrays: Any) -> int:
    """Read arrays, and return their first bytes' sum."""
    time.sleep(0.05)
    return int(sum(int(array[0]) for array in arrays))


@ray.remote
class Keeper:
    """Keeps whatever it is given."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, mib: int) -> int:
        self.kept.append(np.ones(mib * MIB, dtype=np.uint8))
        time.sleep(0.1)
        return len(self.kept)


# ---- Programs ------------------------------------------------------------------------------------------------------


def alike() -> None:
    """Tasks that hold as much as each other."""
    ray.get([hold.remote(60) for _ in range(9)])


def by_argument() -> None:
    """Tasks that hold as much as their argument says, three at a time. What is smaller than 32 MiB may stay with the
    allocator of a worker when it is freed, and then counts for the tasks that follow there."""
    for mibs in ((45, 120, 60), (80, 40, 100), (60, 130, 50)):
        ray.get([hold.remote(mib, 3 * HELD_S) for mib in mibs])


def keepers() -> None:
    """Actors that hold more with each call."""
    actors: list[Any] = [Keeper.options(num_cpus=0.5).remote() for _ in range(2)]  # type: ignore[attr-defined]
    for _ in range(6):
        ray.get([actor.keep.remote(15) for actor in actors])


def puts_that_fit() -> None:
    """The driver keeps what it has put, and tasks read it."""
    kept = [ray.put(np.ones(8 * MIB, dtype=np.uint8)) for _ in range(20)]
    ray.get([look.remote(*kept[first : first + 4]) for first in range(0, 20, 4)])


def tree_that_fits() -> None:
    """Arrays are made, and added two by two."""
    level = [make.remote(6) for _ in range(8)]
    while len(level) > 1:
        level = [add.remote(*level[first : first + 2]) for first in range(0, len(level), 2)]
    ray.get(level)


def puts_beyond() -> None:
    """The driver keeps more than the store holds, and reads it again."""
    kept = [ray.put(np.ones(8 * MIB, dtype=np.uint8)) for _ in range(24)]
    ray.get([look.remote(each) for each in kept])


def results_beyond() -> None:
    """Tasks return more than the store holds, and the driver keeps it."""
    kept = [make.remote(8) for _ in range(24)]
    ray.wait(kept, num_returns=len(kept), fetch_local=False)
    ray.get([look.remote(each) for each in kept])


def stages_beyond() -> None:
    """Every result of three stages is kept."""
    kept = [[make.remote(6) for _ in range(8)]]
    for _ in range(2):
        kept.append([add.remote(each) for each in kept[-1]])
    ray.get([look.remote(each) for each in kept[-1]])


def shuffle_beyond() -> None:
    """Every task of the second half needs one array of each of the first half."""
    made = [[make.remote(4) for _ in range(5)] for _ in range(5)]
    ray.get([look.remote(*[row[index] for row in made]) for index in range(5)])


def both() -> None:
    """Tasks hold memory while the store is too small."""
    kept = [ray.put(np.ones(8 * MIB, dtype=np.uint8)) for _ in range(16)]
    ray.get([hold.remote(50) for _ in range(6)])
    ray.get([look.remote(each) for each in kept])


PROGRAMS: dict[str, tuple[Callable[[], None], int]] = {
    "alike": (alike, 256),
    "by argument": (by_argument, 256),
    "keepers": (keepers, 256),
    "puts that fit": (puts_that_fit, 256),
    "tree that fits": (tree_that_fits, 256),
    "puts beyond": (puts_beyond, 96),
    "results beyond": (results_beyond, 96),
    "stages beyond": (stages_beyond, 64),
    "shuffle beyond": (shuffle_beyond, 48),
    "both": (both, 96),
}
"""Each program, with the size of its store in MiB."""


def _ordered(*calls: tuple[Any, int], apart_s: float = 0.35, seconds: float = 1.5) -> None:
    """Begin calls one after the other, and wait for all, however they end."""
    refs = []
    for function, mib in calls:
        refs.append(function.remote(mib, seconds))
        time.sleep(apart_s)
    for ref in refs:
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            print(f"  {type(error).__name__}", flush=True)


ENDED: dict[str, tuple[Callable[[], None], int]] = {
    "a large one last": (lambda: _ordered((small, 40), (small, 40), (large, 200)), 330),
    "a large one first": (lambda: _ordered((large, 200), (small, 60), (small, 60)), 330),
    "a large one between": (lambda: _ordered((small, 60), (large, 200), (small, 60)), 330),
    "two large ones": (lambda: _ordered((large, 150), (large, 150), (small, 20)), 330),
    "large before small": (lambda: _ordered((large, 150), (small, 150), (small, 20)), 330),
    "small before large": (lambda: _ordered((small, 150), (large, 150), (small, 20)), 330),
    "three alike": (lambda: _ordered((small, 120), (small, 120), (large, 120)), 370),
    "the second of two": (lambda: _ordered((large, 260), (small, 100), (small, 10)), 400),
    "one alone": (lambda: _ordered((small, 20), (small, 20), (large, 380)), 400),
    "enough": (lambda: _ordered((small, 60), (large, 100), (small, 60)), 600),
}
"""Each program, with the memory that its workers may use in MiB."""


# ---- Measuring -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Held:
    """The peaks of a node's store and workers, and the bytes that it spilled."""

    store_bytes: int = 0
    heap_bytes: int = 0
    spilled_bytes: int = 0
    ended: str = ""
    """The name of the task whose worker was ended first."""
    workers: dict[int, None] = field(default_factory=dict)


def _watch(held: Held, address: str, is_over: threading.Event) -> None:
    """Look until it is over."""
    looks = 0
    while not is_over.wait(LOOK_S):
        if looks % 10 == 0 or len(held.workers) < CPUS:  # workers are few, and stay
            titles = {pid: Path(f"/proc/{pid}/cmdline") for pid in processes()}
            held.workers = dict.fromkeys([pid for pid, path in titles.items() if _is_worker(path)])
        looks += 1
        held.heap_bytes = max(held.heap_bytes, sum(own_bytes(pid) for pid in held.workers))
        held.store_bytes = max(held.store_bytes, _metric(address, "dualray_store_used_bytes"))


def _is_worker(command_line: Path) -> bool:
    try:
        return b"dualray.real.processes.worker " in command_line.read_bytes()
    except OSError:
        return False  # it has ended


def _metric(address: str, name: str) -> int:
    """The value of a metric of the node."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        found = re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", answer.read().decode(), re.MULTILINE)
    return round(float(found[1])) if found else 0


@contextmanager
def _watched(held: Held, port: int) -> Iterator[None]:
    is_over = threading.Event()
    thread = threading.Thread(target=_watch, args=(held, f"127.0.0.1:{port}", is_over))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def record(path: Path, program: Callable[[], None]) -> whatif.Trace:
    """Record a program with one CPU and a store in which everything fits."""
    ray.init(mode="real", num_cpus=1, object_store_memory=STORE_BYTES, record=path, log_to_driver=False)
    try:
        program()
    finally:
        ray.shutdown()
    return whatif.load(path)


def run(path: Path, program: Callable[[], None], store_mib: int, memory_mib: int = 0) -> Held:
    """Run a program with three CPUs, and look at it; its record says what was spilled, and who was ended."""
    held = Held()
    limits = {"memory_limit_bytes": memory_mib * MIB, "memory_check_ns": CHECK_NS} if memory_mib else {}
    context = ray.init(
        mode="real",
        num_cpus=CPUS,
        object_store_memory=store_mib * MIB,
        record=path,
        limits=limits,
        log_to_driver=False,
        metrics_port=0,
    )
    try:
        with _watched(held, context.address_info["metrics_export_port"]):
            program()
    finally:
        ray.shutdown()
    found = read_record_file(path)
    held.spilled_bytes = sum(row["bytes"] for row in found.of_kind("spilled"))
    names = {row["task"]: row["name"] for row in found.of_kind("task")}
    retried = list(found.of_kind("retry"))
    held.ended = names[retried[0]["task"]] if retried else ""
    return held


# ---- The tables ----------------------------------------------------------------------------------------------------


def _error(predicted: int, measured: int) -> float:
    """|predicted - measured| / measured; both nothing: none."""
    least = MIB  # less is a rest
    if max(predicted, measured) < least:
        return 0.0
    return abs(predicted - measured) / max(measured, least)


def peaks(directory: Path, names: Sequence[str]) -> list[float]:
    """Print the table of peaks, and return its errors."""
    print("| program | store: predicted / measured | workers: predicted / measured | spilled: predicted / measured |")
    print("|---|--:|--:|--:|", flush=True)
    errors: list[float] = []
    for name in names:
        program, store_mib = PROGRAMS[name]
        trace = record(directory / "recorded.parquet", program)
        config = Configuration(nodes=1, cpus=CPUS, store_bytes=store_mib * MIB)
        row = whatif.predict(trace, [config], seeds=1, jobs=1).rows[0]
        if row.lacks:
            print(f"| {name} | {row.lacks} | | |", flush=True)
            continue
        held = run(directory / "run.parquet", program, store_mib)
        pairs = [
            (row.store_peak_bytes, held.store_bytes),
            (row.heap_peak_bytes, held.heap_bytes),
            (row.spilled_bytes, held.spilled_bytes),
        ]
        errors += [_error(*pair) for pair in pairs if max(pair) >= MIB]  # nothing of nothing is no feat
        cells = " | ".join(f"{it / MIB:.0f} / {real / MIB:.0f} MiB ({_error(it, real):.0%})" for it, real in pairs)
        print(f"| {name} | {cells} |", flush=True)
    return errors


def ended(directory: Path, names: Sequence[str]) -> int:
    """Print the table of those who are ended, and return how many are right."""
    print("| program | ended first: predicted | measured |")
    print("|---|---|---|", flush=True)
    right = 0
    for name in names:
        program, memory_mib = ENDED[name]
        trace = record(directory / "recorded.parquet", program)
        config = Configuration(
            nodes=1, cpus=CPUS, store_bytes=STORE_BYTES, memory_bytes=round(memory_mib * MIB / SHARE)
        )
        row = whatif.predict(trace, [config], seeds=1, jobs=1).rows[0]
        mine = row.killed[0][2] if row.killed else ""
        real = run(directory / "run.parquet", program, STORE_BYTES // MIB, memory_mib).ended
        right += mine == real
        print(f"| {name} | {mine or 'nobody'} | {real or 'nobody'} |", flush=True)
    return right


def main(names: Annotated[list[str] | None, typer.Argument(help="Programs; default: all.")] = None) -> None:
    """See the module."""
    of_peaks = [name for name in PROGRAMS if not names or name in names]
    of_ended = [name for name in ENDED if not names or name in names]
    with tempfile.TemporaryDirectory(prefix="dualray-memory-") as name:
        if of_peaks:
            errors = peaks(Path(name), of_peaks)
            print(f"\nMedian error of {len(errors)} figures: {median(errors):.1%}; worst {max(errors):.1%}.\n")
        if of_ended:
            right = ended(Path(name), of_ended)
            print(f"\nWho is ended first: right in {right} of {len(of_ended)}.")


if __name__ == "__main__":
    typer.run(main)
