"""Threads of a program that use the cluster while another thread shuts it down, and starts the next."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import faulthandler
import threading
import time

import dualray as ray

faulthandler.dump_traceback_later(100, exit=True)
done = []
is_over = threading.Event()


@ray.remote(num_cpus=0)
def same(x):
    return x


def use():
    while not is_over.is_set():
        try:
            ref = ray.put(3)
            assert ray.get([same.remote(i) for i in range(5)]) == list(range(5))
            assert ray.get(ref) == 3
            done.append(1)
        except ray.exceptions.DualrayError:
            continue  # its cluster is gone


threads = [threading.Thread(target=use) for _ in range(3)]
ray.init(mode="real", num_cpus=1)
for thread in threads:
    thread.start()
for _ in range(4):
    before = len(done)
    while len(done) == before:  # on a busy machine, workers need longer than any fixed pause
        time.sleep(0.05)
    ray.shutdown()
    ray.init(mode="real", num_cpus=1, ignore_reinit_error=True)
is_over.set()
for thread in threads:
    thread.join()
print(len(done) >= 4)
"""


def test_a_thread_reads_while_another_shuts_down():
    program = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=150)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
    assert "Traceback" not in ran.stderr
