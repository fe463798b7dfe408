"""Under the name `ray`, a generator runs to its end when nobody takes its items: as on Ray, in both modes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import dualray.as_ray

dualray.as_ray.install()
import time

import ray
from ray._common.test_utils import wait_for_condition

ray.init(num_cpus=2)


@ray.remote(num_cpus=0)
class Notes:
    def __init__(self):
        self.notes = []

    def add(self, note):
        self.notes.append(note)

    def all(self):
        return self.notes


def make(notes, count):
    for item in range(count):
        ray.get(notes.add.remote(item))
        yield item


items = ray.remote(num_cpus=0)(make)


@ray.remote(num_cpus=0)
class Source:
    def items(self, notes, count):
        yield from make(notes, count)


@ray.remote(num_cpus=0)
class AsyncSource:
    async def items(self, notes, count):
        for item in range(count):
            await notes.add.remote(item)
            yield item


@ray.remote(num_cpus=0)
class Caller:
    def call(self, notes):
        self.items = items.remote(notes, 1_000_000)
        return ray.get(next(self.items))


source, async_source = Source.remote(), AsyncSource.remote()
for call in (items, source.items, async_source.items):
    for options in ({}, {"_generator_backpressure_num_objects": 1}):
        notes = Notes.remote()
        taken = call.options(**options).remote(notes, 7)
        assert ray.get(next(taken)) == 0
        del taken
        wait_for_condition(lambda: ray.get(notes.all.remote()) == list(range(7)))

notes, caller = Notes.remote(), Caller.remote()
assert ray.get(caller.call.remote(notes)) == 0
ray.kill(caller)


def has_stopped():
    before = ray.get(notes.all.remote())
    time.sleep(0.3)
    return ray.get(notes.all.remote()) == before


wait_for_condition(has_stopped)
print("done")
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_a_generator_runs_to_its_end_unless_its_caller_dies(tmp_path: Path, mode: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environ = os.environ | {"PYTHONPATH": str(ROOT), "DUALRAY_MODE": mode}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False, env=environ
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
