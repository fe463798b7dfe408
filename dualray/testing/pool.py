"""Processes that run scenarios for exploration: one at a time each, and ended when one takes too long.

A worker reads scenario, faults and record of a `Run`, pickled, and answers with a pickled `Outcome`, or with what went
wrong. (To write and to read a scenario as YAML takes as long as half a small run.) What the program prints goes
nowhere. A worker that dies, or does not answer in time, is replaced; the run that it had is `Broken`.

Workers are of two sorts, which differ in PYTHONHASHSEED and in the rest of what `dualray scenario check` varies: those
for first runs, and those for repetitions. Neither ever does the work of the other.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

import dualray
from dualray.shared.scenario.fault_model import Fault
from dualray.shared.scenario.scenario import Scenario
from dualray.sim.usercode.isolation import HEAP
from dualray.sim.usercode.patches import stand
from dualray.testing.determinism import HASH_SEEDS, SURROUNDINGS
from dualray.testing.orphans import end_with_parent
from dualray.testing.outcome import Outcome
from dualray.testing.run import run_scenario
from dualray.testing.scripts import start_fork

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Run:
    """What a worker is asked for.

    Attributes:
        faults: instead of the scenario's own; None: those. Runs that have the scenario's object in common send it once.
        record: a new directory, for decision logs and trace in `log/` and for the program's temporary files in `tmp/`;
            None records nothing.
        is_repetition: which sort of worker it is for.
    """

    scenario: Scenario
    faults: tuple[Fault, ...] | None = None
    record: Path | None = None
    is_repetition: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """A run of which nothing came back."""

    why: str


_ENVIRONMENTS: dict[bool, dict[str, str]] = {
    False: {"PYTHONHASHSEED": HASH_SEEDS[0]},
    True: {**SURROUNDINGS[1], "PYTHONHASHSEED": HASH_SEEDS[1]},
}
"""What each sort of worker has in its environment: those for first runs, and those for repetitions."""


class _Worker:
    """One process and what it does now."""

    def __init__(self, directory: Path, *, is_repetition: bool) -> None:
        self.is_repetition = is_repetition
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dualray.testing.pool", str(directory.resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                **_ENVIRONMENTS[is_repetition],
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        self.deadline_s = 0.0
        self._knows: Scenario | None = None

    @property
    def answers(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def ask(self, run: Run, timeout_s: float) -> None:
        assert self.process.stdin is not None
        self.deadline_s = time.monotonic() + timeout_s
        scenario = None if run.scenario is self._knows else run.scenario
        pickle.dump((scenario, run.faults, run.record), self.process.stdin)
        self.process.stdin.flush()
        self._knows = run.scenario

    def answer(self) -> Outcome | Broken:
        try:
            answer: Outcome | str = pickle.load(self.answers)
        except (EOFError, pickle.UnpicklingError):  # it ended before, or in the middle of, its answer
            return Broken(f"its process ended with code {self.process.wait()}")
        return Broken(answer) if isinstance(answer, str) else answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Pool:
    """See the module. A context manager."""

    def __init__(self, *, jobs: int, directory: Path, timeout_s: float) -> None:
        self._jobs = jobs
        self._directory = directory
        self._timeout_s = timeout_s
        self._idle: dict[bool, list[_Worker]] = {False: [], True: []}
        """By whether they are for repetitions."""
        self._busy: dict[_Worker, object] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in (*self._idle[False], *self._idle[True], *self._busy):
            worker.end()
        self._idle = {False: [], True: []}
        self._busy.clear()

    def run(self, scenario: Scenario) -> Outcome | Broken:
        """Run one, and record nothing."""
        return next(iter(self.run_all([(0, Run(scenario))])))[1]

    def run_all(self, runs: Iterable[tuple[K, Run]]) -> Iterator[tuple[K, Outcome | Broken]]:
        """Run all, as many at once as there are jobs; they come back in the order in which they end."""
        waiting = iter(runs)
        running: dict[_Worker, K] = {}
        with selectors.DefaultSelector() as selector:

            def start() -> bool:
                for key, run in waiting:
                    idle = self._idle[run.is_repetition]
                    worker = idle.pop() if idle else _Worker(self._directory, is_repetition=run.is_repetition)
                    self._busy[worker] = key
                    running[worker] = key
                    worker.ask(run, self._timeout_s)
                    selector.register(worker.answers, selectors.EVENT_READ, worker)
                    return True
                return False

            def finish(worker: _Worker) -> K:
                selector.unregister(worker.answers)
                del self._busy[worker]
                return running.pop(worker)

            while len(running) < self._jobs and start():
                pass
            while running:
                soonest_s = min(worker.deadline_s for worker in running)
                for ready, _ in selector.select(max(0.0, soonest_s - time.monotonic())):
                    worker = ready.data
                    answer = worker.answer()
                    key = finish(worker)
                    if worker.process.poll() is None:
                        self._idle[worker.is_repetition].append(worker)
                    else:
                        worker.end()
                    start()
                    yield key, answer
                for worker in [worker for worker in running if worker.deadline_s <= time.monotonic()]:
                    key = finish(worker)
                    worker.end()
                    start()
                    yield key, Broken(f"the run did not end within {self._timeout_s:g} s of real time")


@contextlib.contextmanager
def _temporary_files(directory: Path) -> Iterator[None]:
    """Have the program's temporary files in a directory of this run, where nobody else has left any."""
    directory.mkdir(parents=True)
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    try:
        yield
    finally:
        variable, tempfile.tempdir = before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


def _perform(scenario: Scenario, directory: Path, record: Path | None) -> Outcome:
    if record is None:
        return run_scenario(scenario, directory=directory, start=start_fork)
    with _temporary_files(record / "tmp"):
        return run_scenario(scenario, directory=directory, decision_log=record / "log", start=start_fork)


def _nothing() -> None:
    """The task of `_warm_up`."""


def _warm_up() -> None:
    """Run a small simulation: forks of this process then find everything loaded and replaced."""
    dualray.init(mode="sim")
    dualray.get(dualray.remote(_nothing).remote())
    dualray.shutdown()


def serve(directory: Path) -> None:
    """What a worker does."""
    end_with_parent()
    runs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what programs print
    gc.disable()
    stand()
    _warm_up()
    is_first = True
    known: Scenario | None = None
    while True:
        try:
            scenario, faults, record = pickle.load(runs)
        except EOFError:
            return
        known = scenario or known
        assert known is not None
        answer: Outcome | str
        try:
            answer = _perform(known if faults is None else known.with_faults(faults), directory, record)
        except Exception as error:  # noqa: BLE001  # the one who asked is told
            answer = f"{type(error).__name__}: {error}"
        answers.write(pickle.dumps(answer))
        answers.flush()
        gc.collect()  # the cluster, which nobody else would look for
        if is_first:
            is_first = False
            gc.freeze()  # what is there now stays: it is not looked through again
            HEAP.is_frozen = True


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
