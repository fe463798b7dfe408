"""The programs of examples/core give the same output in both modes and, with only the import changed, on Ray."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "examples" / "core"
TIMEOUT_S = 60
MODES = {"sim": {"DUALRAY_NODES": "3"}, "real": {}}
SAYS = {
    "actor_tree": """\
9 leaves, their sum is 36
2 leaves died, 2 have forgotten their number
their sum is 36
""",
    "batch_prediction": """\
12 batches of 500 points: 99.4% are right
12 batches by 3 predictors
""",
    "game_of_life": "alive: 102 cells after the first generation, 79 after 30\n",
    "key_value_store": """\
60 writes, 60 in the store
key-0=10 key-1=10 key-2=10 key-3=10 key-4=10 key-5=10
shards have died: yes
""",
    "map_reduce": """\
8 files, 5760 words, 378 different ones
   887 utm
   399 tln
   309 ir
   222 msaaite
   178 ems
""",
    "monte_carlo_pi": """\
8 tasks have thrown 400000 darts
pi is about 3.13928, off by 0.00231
""",
    "parameter_server": """\
40 updates by 4 workers
weights: 1.00 2.00 3.00 4.00 5.00 6.00 7.00 8.00
""",
    "rate_limiter": """\
free: 16 requests were sent
paid: 16 requests were sent
free: 50 a second and 2 at once were kept
paid: 200 a second and 10 at once were kept
""",
    "streaming_pipeline": """\
24 batches, 5760 words, at most 6 batches under way
  614 SIT
  601 LOREM
  600 IPSUM
""",
    "web_crawl": """\
39 of 40 pages were found, the farthest is 8 links away
4 links are broken: gone-0.html, gone-10.html, gone-20.html, gone-30.html
18 pages have the word fox
""",
}
"""How the output of each program ends."""
FLAGS = {"monte_carlo_pi": ["--quiet"]}


def test_every_program_is_tested_and_has_a_row():
    programs = {path.stem for path in PROGRAMS.glob("*.py")}
    assert programs == set(SAYS)
    readme = (PROGRAMS / "README.md").read_text()
    assert [name for name in sorted(programs) if f"[{name}.py]({name}.py)" not in readme] == []
    for name in programs:
        assert 50 <= len((PROGRAMS / f"{name}.py").read_text().splitlines()) <= 150


SLOW = {"batch_prediction", "key_value_store", "web_crawl", "game_of_life", "parameter_server"}


@pytest.mark.parametrize("name", [pytest.param(it, marks=pytest.mark.slow if it in SLOW else ()) for it in SAYS])
def test_program(name: str):
    """In both modes at once: that is nearly twice as fast."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), *FLAGS.get(name, [])]
    running = {
        mode: subprocess.Popen(
            command,
            env=outside | settings | {"DUALRAY_MODE": mode, "DUALRAY_NUM_CPUS": "2", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for mode, settings in MODES.items()
    }
    output = {}
    try:
        for mode, process in running.items():
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
            assert (process.returncode, stderr) == (0, ""), f"{name} in {mode} mode"
            output[mode] = stdout
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    assert output["sim"] == output["real"]
    assert output["sim"].endswith(SAYS[name])


@pytest.fixture
def ray_directory() -> Iterator[str]:
    """Where Ray puts its sockets: their paths must be short, shorter than those of pytest's directories."""
    directory = tempfile.mkdtemp(prefix="r")
    yield directory
    shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra: bench)")
@pytest.mark.parametrize("name", list(SAYS))
def test_program_runs_on_ray(name: str, tmp_path: Path, ray_directory: str):
    """These are programs for Ray, too: only the import is another."""
    source = (PROGRAMS / f"{name}.py").read_text()
    program = tmp_path / f"{name}.py"
    program.write_text(source.replace("import dualray as ray", "import ray").replace("from dualray.", "from ray."))
    environment = os.environ | {"RAY_TMPDIR": ray_directory, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(program), *FLAGS.get(name, [])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=2 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    words = [line for line in done.stdout.splitlines() if "raylet" not in line and "pid=" not in line]
    assert "\n".join(words).endswith(SAYS[name].rstrip("\n"))
