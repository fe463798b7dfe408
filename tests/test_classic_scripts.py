"""start_ray.sh and stop_ray.sh say to `dualray` what their flags meant in 2017."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "dualray" / "classic" / "scripts"
CALL = "-m dualray "


def said(script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """What the script would run: `echo` stands in for python."""
    environment = os.environ | {"DUALRAY_PYTHON": "echo"}
    return subprocess.run([str(SCRIPTS / script), *flags], capture_output=True, text=True, env=environment, timeout=20)


@pytest.mark.parametrize(
    ("flags", "becomes", "left_out"),
    [
        (["--head", "--redis-port=6379"], "start --head --port=6379", ""),
        (["--head", "--redis-port", "6379", "--num-cpus=10"], "start --head --port=6379 --num-cpus=10", ""),
        (["--redis-address=10.0.0.1:6379"], "start --address=10.0.0.1:6379", ""),
        (["--redis-address", "h:1", "--node-ip-address=10.0.0.2"], "start --address=h:1 --node-ip=10.0.0.2", ""),
        (["--num-gpus=1", "--head", "--num-workers=3"], "start --num-gpus=1 --head --num-workers=3", ""),
        (["--head", "--object-manager-port=8076"], "start --head", "--object-manager-port left out"),
        (["--redis-address=h:1", "--num-workers=3"], "start --address=h:1", "--num-workers left out"),
        (["--redis-address=h:1", "--object-manager-port=8"], "start --address=h:1 --object-manager-port=8", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_start(flags: list[str], becomes: str, left_out: str):
    done = said("start_ray.sh", *flags)
    assert (done.returncode, done.stdout) == (0, f"{CALL}{becomes}\n")
    assert left_out in done.stderr
    assert bool(done.stderr) == bool(left_out)


def test_a_flag_without_its_value():
    done = said("start_ray.sh", "--head", "--redis-port")
    assert (done.returncode, done.stderr) == (2, "start_ray.sh: --redis-port needs a value\n")


def test_stop():
    assert said("stop_ray.sh").stdout == f"{CALL}stop\n"
