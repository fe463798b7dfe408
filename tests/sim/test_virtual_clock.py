"""Virtual time in whole programs: no wait is shorter than asked, and the host it runs on does not matter."""

from __future__ import annotations

import asyncio
import hashlib
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dualray


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    dualray.shutdown()


def test_no_wait_is_shorter_than_asked_however_the_clock_is_read() -> None:
    """By rounding, the difference of two floats may be less than the time between them."""
    dualray.init(mode="sim")

    @dualray.remote(num_cpus=0)
    def never() -> None:
        time.sleep(1e6)

    async def asynchronously(seconds: float) -> None:
        await asyncio.sleep(seconds)

    ref: Any = never.remote()
    taken = threading.Lock()
    taken.acquire()
    waits: dict[str, Callable[[float], object]] = {
        "sleep": time.sleep,
        "event": lambda seconds: threading.Event().wait(seconds),
        "lock": lambda seconds: taken.acquire(timeout=seconds),
        "queue": no_item,
        "wait": lambda seconds: dualray.wait([ref], timeout=seconds),
        "asyncio": lambda seconds: asyncio.run(asynchronously(seconds)),
    }
    clocks = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "monotonic_ns", "time_ns")
    draw = random.Random(5)
    short = []
    for number in range(500):
        name, clock = draw.choice(list(waits)), draw.choice(clocks)
        seconds = draw.choice((0.2, 0.001, 1e-5, 0.1234567891, 3.0000000004, draw.random()))
        before = getattr(time, clock)()
        waits[name](seconds)
        passed = getattr(time, clock)() - before
        if passed < (seconds * 1e9 // 1 if clock.endswith("_ns") else seconds):
            short.append((number, name, clock, seconds, passed))
    assert short == []


def no_item(seconds: float) -> None:
    with pytest.raises(queue.Empty):
        queue.Queue().get(timeout=seconds)


PROGRAM = """
import sys, threading, time
import dualray as ray
runtime = ray.init(mode="sim", nodes=3, num_cpus=2, seed=7, decision_log=sys.argv[1], faults=["kill node-2 at 30ms"])
@ray.remote(max_retries=5)
def spin(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(2_000))
    return time.time()
@ray.remote
class Counter:
    def __init__(self):
        self.seen = []
    def add(self, value):
        self.seen.append((value, time.perf_counter()))
        return len(self.seen)
counter = Counter.remote()
refs = [spin.remote(0.01 * number) for number in range(6)]
done = threading.Event()
threading.Timer(0.02, done.set).start()
while not done.is_set():
    ray.get(counter.add.remote(time.time()))
while refs:
    ready, refs = ray.wait(refs, timeout=0.003)
    for ref in ready:
        print(repr(ray.get(ref)))
print(time.monotonic_ns())
"""


def run(tmp_path: Path, name: str, hash_seed: str) -> tuple[str, str]:
    """What it prints, and a digest of its logs."""
    logs = tmp_path / name
    command = [sys.executable, "-c", PROGRAM, str(logs)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    digest = hashlib.sha256()
    for path in sorted(logs.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return done.stdout, digest.hexdigest()


def test_virtual_time_is_the_same_beside_heavy_load(tmp_path: Path) -> None:
    calm = run(tmp_path, "calm", "1")
    burn = "while True: sum(range(10_000))"
    burners = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        loaded = run(tmp_path, "loaded", "2")
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert loaded == calm
    assert len(calm[0].splitlines()) == 7


def test_the_logs_of_a_program_that_does_not_shut_down_are_whole(tmp_path: Path) -> None:
    """Its logs are longer than a file's buffer, whose content Python drops when such a program ends."""
    program = PROGRAM + "if len(sys.argv) > 2:\n    ray.shutdown()\n"
    for name, more in (("left", []), ("shut", ["shut down"])):
        command = [sys.executable, "-c", program, str(tmp_path / name), *more]
        subprocess.run(command, capture_output=True, timeout=100, check=True)
    left, shut = (sorted((tmp_path / name).glob("*.decisions")) for name in ("left", "shut"))
    assert [path.name for path in left] == [path.name for path in shut]
    assert [path.name for path, whole in zip(left, shut, strict=True) if path.read_bytes() != whole.read_bytes()] == []
