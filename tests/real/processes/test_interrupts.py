"""Ctrl-C at any moment: the step in hand is done first, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

from dualray.real.processes.interrupts import Interrupts, TaskInterrupts

PROGRAM = """
    import os, random, signal, sys, threading, time
    import dualray

    @dualray.remote
    def double(x):
        return 2 * x

    @dualray.remote
    class Counter:
        def __init__(self):
            self.n = 0
        def add(self):
            self.n += 1
            return self.n

    PRESSES = 150
    runtime = dualray.init(num_cpus=2)
    counter = Counter.remote()
    dualray.get(counter.add.remote())
    pressed = 0
    hold = threading.Event()

    def press():
        global pressed
        pauses = random.Random(7)
        while pressed < PRESSES:
            hold.wait()
            hold.clear()
            time.sleep(pauses.random() * 0.004)
            pressed += 1
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    caught = 0
    while caught < PRESSES:
        try:
            hold.set()
            while True:
                refs = [double.remote(i) for i in range(5)]
                assert dualray.get(refs, timeout=60) == [0, 2, 4, 6, 8]
                dualray.get(counter.add.remote(), timeout=60)
                dualray.wait(refs, num_returns=5, timeout=60)
                dualray.get(dualray.put(bytes(200_000)), timeout=60)
        except KeyboardInterrupt:
            caught += 1
    assert dualray.get([double.remote(i) for i in range(100)], timeout=60) == [2 * i for i in range(100)]
    runtime.core.machine.check_invariants()
    assert not runtime.core.waiting(), runtime.core.waiting()
    dualray.shutdown()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print("RIGHT", caught)
"""


def test_a_program_that_is_interrupted_again_and_again_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "RIGHT 150" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def presses() -> object:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_step_is_finished_first(presses: object) -> None:
    lock = threading.RLock()
    interrupts = Interrupts(lock._is_owned, lambda: None)  # type: ignore[attr-defined]
    interrupts.install()
    inside = False
    try:
        with lock:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            inside = True
        time.sleep(5)
        pytest.fail("the signal was lost")
    except KeyboardInterrupt:
        assert inside
    interrupts.restore()


def test_the_users_own_handler_is_called(presses: object) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    lock = threading.RLock()
    interrupts = Interrupts(lock._is_owned, lambda: None)  # type: ignore[attr-defined]
    interrupts.install()
    with lock:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.005)
        assert not seen
    deadline = time.monotonic() + 5
    while not seen and time.monotonic() < deadline:
        time.sleep(0.001)
    assert seen == [signal.SIGINT]
    interrupts.restore()
    assert callable(signal.getsignal(signal.SIGINT))


@pytest.mark.parametrize("ends", [True, False])
def test_a_task_is_left_alone_while_it_imports_but_not_for_ever(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualray.real.processes.interrupts.IMPORT_PATIENCE_S", 10.0 if ends else 0.2)
    name = f"imported_slowly_{ends}"
    (tmp_path / f"{name}.py").write_text(f"import time\ntime.sleep({0.3 if ends else 30})\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGURG)
    is_due = [True]
    interrupts = TaskInterrupts(
        lambda: False,
        lambda: None,
        is_in_user_code=lambda: True,
        is_due=lambda: bool(is_due),
        takes=lambda: bool(is_due) and is_due.pop(),
    )

    def task() -> None:
        import_module(name)
        time.sleep(10)

    interrupts.install()
    try:
        threading.Timer(0.1, interrupts.send).start()
        with pytest.raises(KeyboardInterrupt):
            task()
        assert (name in sys.modules) is ends
    finally:
        signal.signal(signal.SIGURG, before)
        sys.modules.pop(name, None)


SLEEPS = """
    import os, threading, time
    from dualray.real.processes.interrupts import TaskInterrupts

    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    is_due = []
    interrupts = TaskInterrupts(
        lambda: False,
        lambda: None,
        is_in_user_code=lambda: True,
        is_due=lambda: bool(is_due),
        takes=lambda: bool(is_due) and is_due.pop(),
    )
    interrupts.install()
    go = threading.Semaphore(0)

    def cancel():
        while go.acquire():
            is_due.append(True)
            interrupts.send()

    threading.Thread(target=cancel, daemon=True).start()
    for _ in range(20):
        try:
            go.release()
            time.sleep(60)
        except KeyboardInterrupt:
            continue
    print("WOKEN")
"""


def test_a_signal_just_before_a_call_of_the_system_is_not_lost() -> None:
    # On one core, who sends it goes on when the one who is about to sleep lets go of the interpreter.
    command = [sys.executable, "-c", textwrap.dedent(SLEEPS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout == "WOKEN\n", done.stdout + done.stderr


LIMITED = """
    import random, signal, sys
    import dualray

    class Limit(Exception):
        pass

    def limit(number, frame):
        raise Limit

    signal.signal(signal.SIGUSR1, limit)
    runtime = dualray.init(num_cpus=2)
    assert signal.signal(signal.SIGALRM, limit) == signal.SIG_DFL
    before = signal.signal(signal.SIGINT, limit)
    try:
        signal.raise_signal(signal.SIGINT)
    except Limit:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGINT) == before
    assert signal.getsignal(signal.SIGALRM) is limit is signal.getsignal(signal.SIGUSR1)

    @dualray.remote
    def double(x):
        return 2 * x

    pauses = random.Random(3)
    reached = 0
    for _ in range(100):
        try:
            signal.setitimer(signal.ITIMER_REAL, pauses.uniform(0.0002, 0.004))
            try:
                while True:
                    assert dualray.get([double.remote(i) for i in range(5)], timeout=60) == [0, 2, 4, 6, 8]
                    dualray.put(b"x" * 200_000)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Limit:
            reached += 1
    assert dualray.get([double.remote(i) for i in range(5)], timeout=60) == [0, 2, 4, 6, 8]
    runtime.shutdown()
    assert signal.getsignal(signal.SIGALRM) is limit is signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
    print("reached", reached)
"""


def test_a_time_limit_of_the_programs_own_ends_a_step_first(tmp_path: Path) -> None:
    (tmp_path / "limited.py").write_text(textwrap.dedent(LIMITED))
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "limited.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout == "reached 100\n", ran.stderr
