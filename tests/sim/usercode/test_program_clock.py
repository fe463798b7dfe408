"""A program under `dualray run --mode sim` reads virtual clocks from its first line to its last."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import pickle
import time
from time import perf_counter

began, counted = time.time(), perf_counter()
import dualray

@dualray.remote
def nap():
    time.sleep(2)
    return time.time()

woke = dualray.get(nap.remote())
print(round(woke - began, 1), round(time.time() - began, 1), round(perf_counter() - counted, 1))
dualray.shutdown()
print(round(time.time() - began, 1), round(time.time_ns() / 1e9 - began, 1))
while time.time() - began < 2.1:
    pass
pickled = pickle.dumps(time.time)
print(pickle.loads(pickled) is time.time)
"""


def test_the_clocks_do_not_jump_when_the_simulation_begins_and_ends(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    finished = subprocess.run(
        [sys.executable, "-m", "dualray", "run", "--mode", "sim", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "2.0 2.0 2.0\n2.0 2.0\nTrue\n"
