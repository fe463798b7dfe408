"""What stands between the simulations of a process that only simulates (dualray/sim/usercode/patches.py): each test in
its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

BEGIN = """
import sys, time, types
import dualray
from dualray.sim.usercode.patches import stand

stand()

def simulate(program, seed=0):
    dualray.init(mode="sim", nodes=3, seed=seed)
    try:
        return program()
    finally:
        dualray.shutdown()

def in_a_task(function):
    return simulate(lambda: dualray.get(dualray.remote(function).remote()))
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_simulation_has_its_own_time_and_chance_and_nobody_else_has():
    run(
        """
        import random, uuid

        def look():
            time.sleep(1000)
            return time.monotonic(), random.random(), str(uuid.uuid4())

        real = time.time()
        first, second = in_a_task(look), in_a_task(look)
        assert first == second and first[0] > 1000, (first, second)
        assert 0 <= time.time() - real < 60  # between them, and after them, time is real
        assert random.random() != random.random() and str(uuid.uuid4()) != first[2]
        """
    )


def test_a_module_that_has_come_since_sees_virtual_time():
    run(
        """
        late = types.ModuleType("late")
        exec("from time import sleep, monotonic\\ndef nap():\\n    sleep(1000)\\n    return monotonic()", late.__dict__)
        in_a_task(lambda: 1)
        sys.modules["late"] = late  # with what `time` held before
        began = time.perf_counter()
        assert in_a_task(late.nap) > 1000
        assert time.perf_counter() - began < 60
        """
    )


def test_what_was_done_to_functions_that_came_by_value_is_undone():
    run(
        """
        from dualray.sim.usercode.patches import take_patches

        def nap(sleep=time.sleep):
            sleep(5)

        sizes = []
        for _ in range(3):
            in_a_task(nap)
            sizes.append(len(take_patches().isolation._installed._journal))
        assert len(set(sizes)) == 1, sizes
        """
    )


def test_only_one_simulation_at_a_time():
    run(
        """
        from dualray.sim.kernel.kernel import Kernel
        from dualray.sim.kernel.fibers import FiberScheduler
        from dualray.sim.usercode.patches import take_patches

        def another():
            kernel = Kernel()
            try:
                take_patches().enter(kernel, FiberScheduler(kernel), ahead_ns=lambda fiber: 0, make_loop=None)
            except RuntimeError as error:
                return str(error)

        assert simulate(another) == "another simulation runs in this process: call dualray.shutdown() first"
        assert simulate(lambda: 7) == 7
        """
    )


def test_the_cluster_of_before_is_let_go():
    run(
        """
        import gc, weakref
        from dualray import runtime

        gone = []
        def program():
            gone.append(weakref.ref(runtime.current("x")))

        simulate(program)
        gc.collect()
        assert gone[0]() is None
        """
    )
