"""One session, and what is taken from its processes."""

from __future__ import annotations

import errno
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import dualray as ray
from dualray.exceptions import DualrayError, GetTimeoutError, WorkerCrashedError

KINDS = ("driver", "head", "node", "template", "worker")
OF_PROCESSES = ("open files", "file size", "memory", "threads")
"""`threads` are a user's threads and processes; root has no such limit."""
DIRECTORIES = {"disk": tempfile.gettempdir(), "shared memory": "/dev/shm"}
"""What a run fills, for all processes."""
RESOURCES = (*OF_PROCESSES, *DIRECTORIES)
MACHINE = "machine"
ANSWER_WITHIN_S = 30.0
MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """What a run has shown; `wrong` is empty when it is as it should be."""

    seed: int
    what: str
    answers: int
    errors: tuple[str, ...]
    wrong: str
    elapsed_s: float


@ray.remote(max_retries=3)
def double(x: int) -> int:
    return 2 * x


@ray.remote(max_retries=3)
def fill(x: int) -> Any:
    return np.full(MIB // 8, x)


@ray.remote(num_cpus=0)
class Adder:
    def __init__(self, start: int) -> None:
        self.total = start

    def add(self, x: int) -> int:
        self.total += x
        return self.total


def _call_task(number: int) -> bool:
    return bool(ray.get(double.remote(number), timeout=ANSWER_WITHIN_S) == 2 * number)


def _call_many(number: int) -> bool:
    refs = [double.remote(number + x) for x in range(20)]
    return bool(ray.get(refs, timeout=ANSWER_WITHIN_S) == [2 * (number + x) for x in range(20)])


def _call_actor(number: int) -> bool:
    actor = Adder.remote(number)  # type: ignore[attr-defined]  # the decorator's
    return bool(ray.get(actor.add.remote(1), timeout=ANSWER_WITHIN_S) == number + 1)


def _call_actors(number: int) -> bool:
    actors = [Adder.remote(number + x) for x in range(6)]  # type: ignore[attr-defined]  # the decorator's
    answers = ray.get([actor.add.remote(1) for actor in actors], timeout=ANSWER_WITHIN_S)
    return bool(answers == [number + x + 1 for x in range(6)])


def _put(number: int) -> bool:
    return int(ray.get(ray.put(np.full(MIB // 4, number)), timeout=ANSWER_WITHIN_S)[-1]) == number


def _make_object(number: int) -> bool:
    return int(ray.get(fill.remote(number), timeout=ANSWER_WITHIN_S)[-1]) == number


def _call_new_function(number: int) -> bool:
    @ray.remote
    def new() -> int:
        return number

    return bool(ray.get(new.remote(), timeout=ANSWER_WITHIN_S) == number)


def _spill(number: int) -> bool:
    refs = [ray.put(np.full(3 * MIB, number + x)) for x in range(4)]  # 96 MiB in a store of 64
    return [int(ray.get(ref, timeout=ANSWER_WITHIN_S)[-1]) for ref in refs] == [number + x for x in range(4)]


WORK: tuple[Callable[[int], bool], ...] = (
    _call_task, _call_many, _call_actor, _call_actors, _put, _make_object, _call_new_function, _spill,
)  # fmt: skip


def pids_of(kind: str, runtime: Any) -> list[int]:
    """The processes of a kind that a session has now."""
    if kind in ("driver", MACHINE):
        return [os.getpid()]
    if kind in ("head", "node"):
        return [runtime._children.processes["head" if kind == "head" else "node-0"].pid]
    founder = psutil.Process(runtime._children._founder.pid)
    wanted = "worker_template" if kind == "template" else "processes.worker"
    found = []
    for process in founder.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.ppid() in found and kind == "template":
                continue  # a worker that has not named itself yet
            if any(word.endswith(wanted) for word in process.cmdline()):
                found.append(process.pid)
    return found


def limit_of(pid: int, what: str, slack: int) -> tuple[int, int]:
    """The limit of a resource, and what a process has of it now, and `slack` more."""
    if what == "open files":
        used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
        lowest = next(fd for fd in range(len(used) + 1) if fd not in used)  # those above it stay open
        return resource.RLIMIT_NOFILE, lowest + slack
    if what == "memory":
        return resource.RLIMIT_AS, psutil.Process(pid).memory_info().vms + slack * MIB
    if what == "threads":
        return resource.RLIMIT_NPROC, _threads_of(os.getuid()) + slack
    return resource.RLIMIT_FSIZE, slack * 4096


def _threads_of(uid: int) -> int:
    """Of all processes of a user."""
    count = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            count += process.num_threads() if process.uids().real == uid else 0
    return count


@contextmanager
def filled(directory: str, slack: int) -> Iterator[None]:
    """Its file system has no room for more than `slack` pages."""
    with tempfile.TemporaryFile(dir=directory) as filler:
        while True:
            status = os.statvfs(directory)
            try:
                os.posix_fallocate(filler.fileno(), 0, max(1, (status.f_bavail - slack) * status.f_frsize))
                break
            except OSError as error:  # others have written meanwhile
                if error.errno != errno.ENOSPC:
                    raise
        yield


@contextmanager
def taken(pid: int, what: str, slack: int) -> Iterator[None]:
    """A process cannot have more of a resource than it has now, and `slack` more."""
    if what in DIRECTORIES:
        with filled(DIRECTORIES[what], slack):
            yield
        return
    limit, amount = limit_of(pid, what, slack)
    before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (amount, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            resource.prlimit(pid, limit, before)
            for child in psutil.Process(pid).children(recursive=True):
                with suppress(ProcessLookupError):
                    resource.prlimit(child.pid, limit, before)  # what was forked meanwhile has inherited it


@dataclass(frozen=True)
class Drawn:
    """What a seed says: from which kind of process what is taken, how much more it gets, and the work meanwhile."""

    kind: str
    what: str
    slack: int
    work: tuple[Callable[[int], bool], ...]


def drawn(seed: int, resources: Sequence[str] = OF_PROCESSES, kinds: Sequence[str] = KINDS) -> Drawn:
    """What a seed says, if these resources are taken from processes of these kinds."""
    draw = random.Random(seed)
    kind, what, slack = draw.choice(kinds), draw.choice(resources), draw.choice((0, 0, 1, 2, 4, 8))
    kind = MACHINE if what in DIRECTORIES else kind
    return Drawn(kind, what, slack, tuple(draw.choice(WORK) for _ in range(draw.randrange(1, 4))))


def _again(each: Callable[[int], bool], seed: int) -> bool:
    """Work when the resource is back. Workers that have started without it may still end for a while."""
    deadline = time.monotonic() + ANSWER_WITHIN_S
    while True:
        try:
            return each(seed)
        except WorkerCrashedError:
            if time.monotonic() > deadline:
                raise


def run(seed: int, runtime: Any, draw: Drawn) -> Outcome:
    """Take something away, work, give it back, work."""
    kind, what, slack, work = draw.kind, draw.what, draw.slack, draw.work
    pids = pids_of(kind, runtime)
    words = f"{kind}: {what}, {slack} more; " + ", ".join(each.__name__.strip("_") for each in work)
    answers, errors, wrong = 0, [], ""
    began_s = time.monotonic()
    if pids:
        with suppress(ProcessLookupError, FileNotFoundError), taken(pids[seed % len(pids)], what, slack):
            for number, each in enumerate(work):
                try:
                    if each(seed * 10 + number):
                        answers += 1
                    else:
                        wrong = f"{each.__name__} has a wrong answer"
                except (DualrayError, OSError, MemoryError) as error:
                    errors.append(f"{type(error).__name__}: {error}")
                    if "bug in dualray" in str(error) or isinstance(error, GetTimeoutError):
                        wrong = errors[-1]
    try:
        for each in WORK:
            if each is not _spill and not _again(each, seed):
                wrong = wrong or f"afterwards {each.__name__} has a wrong answer"
    except (DualrayError, OSError) as error:
        wrong = wrong or f"afterwards: {type(error).__name__}: {error}"
    return Outcome(seed, words, answers, tuple(errors), wrong, time.monotonic() - began_s)


def in_sessions(
    seeds: Sequence[int], resources: Sequence[str] = OF_PROCESSES, kinds: Sequence[str] = KINDS
) -> Iterator[Outcome]:
    """Run each seed in one session, in a new one after a run that has gone wrong."""
    runtime = None
    try:
        for seed in seeds:
            if runtime is None:
                runtime = ray.init(num_cpus=2, object_store_memory=64 * MIB, log_to_driver=False)
                _call_task(seed)  # the worker template has its modules: a template without them cannot go on
            outcome = run(seed, runtime, drawn(seed, resources, kinds))
            yield outcome
            if outcome.wrong:
                ray.shutdown()
                runtime = None
    finally:
        ray.shutdown()
