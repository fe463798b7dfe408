"""An actor that comes back without its state, and repeats the call that was lost."""

import os
import tempfile
from pathlib import Path

import ray


@ray.remote(max_restarts=1, max_task_retries=2)
class Fragile:
    def __init__(self):
        self.calls = 0

    def call(self, path):
        self.calls += 1
        if not Path(path).exists():
            Path(path).touch()
            os._exit(1)
        return self.calls


path = str(Path(tempfile.mkdtemp()) / "was-here")
fragile = Fragile.remote()
print(ray.get(fragile.call.remote(path)), ray.get(fragile.call.remote(path)))
Path(path).unlink()
