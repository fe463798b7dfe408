"""Large copies by several threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dualray.real.store import copying

MIB = 2**20


@pytest.fixture(params=[1, 2, 3, 16])
def processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(request.param)))
    return int(request.param)


@pytest.mark.parametrize("size", [1, 8 * MIB, 16 * MIB, 16 * MIB + 1, 33 * MIB - 7, 100 * MIB + 4097])
def test_all_bytes_arrive(processors: int, size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.zeros(size + 2, np.uint8)
    copying.copy(target[1:-1].data, source.data)
    assert np.array_equal(target[1:-1], source)
    assert (target[0], target[-1]) == (0, 0)


def test_a_read_only_source_of_another_shape_is_copied() -> None:
    source = np.arange(4 * MIB, dtype=np.float64)
    source.flags.writeable = False
    target = bytearray(source.nbytes)
    copying.copy(memoryview(target), source.data.cast("B"))
    assert bytes(target) == source.tobytes()


def test_what_interrupts_it_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory may be another object's as soon as `copy` has ended."""
    helps, slow, mine = threading.Event(), threading.Event(), threading.get_ident()
    begun: list[int] = []
    ended: list[int] = []

    def copyto(to: np.ndarray, of: np.ndarray) -> None:
        if threading.get_ident() == mine:
            assert helps.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
        else:
            begun.append(len(to))
            helps.set()
            slow.wait(0.1)
            ended.append(len(to))

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(np, "copyto", copyto)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        copying.copy(memoryview(bytearray(16 * MIB)), memoryview(bytes(16 * MIB)))
    assert ended == begun
    assert ended
    assert time.monotonic() - start < 30


def test_who_has_not_begun_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(copying, "_helpers", ThreadPoolExecutor(1))
    assert copying._helpers is not None
    busy = threading.Event()
    copying._helpers.submit(busy.wait, 60)
    source, target = os.urandom(16 * MIB), bytearray(16 * MIB)
    try:
        copying.copy(memoryview(target), memoryview(source))
        assert target == source
    finally:
        busy.set()


def test_a_forked_process_copies_with_threads_of_its_own() -> None:
    source = memoryview(os.urandom(16 * MIB))
    copying.copy(memoryview(bytearray(16 * MIB)), source)
    child = os.fork()
    if child == 0:
        target = bytearray(16 * MIB)
        copying.copy(memoryview(target), source)
        os._exit(int(target != source))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_goes_wrong_in_a_helper_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, failed = threading.get_ident(), threading.Event()

    def copyto(to: np.ndarray, of: np.ndarray) -> None:
        if threading.get_ident() == mine:
            assert failed.wait(30)
        else:
            failed.set()
            raise MemoryError("no more")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(np, "copyto", copyto)
    with pytest.raises(MemoryError, match="no more"):
        copying.copy(memoryview(bytearray(16 * MIB)), memoryview(bytes(16 * MIB)))


def test_a_process_that_ends_copies_alone() -> None:
    """At its end an interpreter starts no threads: what an exit handler puts arrives all the same."""
    program = """if True:
        import atexit, os, threading
        from dualray.real.store import copying

        def put():
            source, target = memoryview(os.urandom(16 * 2**20)), memoryview(bytearray(16 * 2**20))
            copying.copy(target, source)
            print("the same" if target == source else "not the same")

        atexit.register(put)
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("the same\n", "")
