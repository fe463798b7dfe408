"""The benchmarks that nothing else runs still do: each on something small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("benchmarks.task_profile --count 50 --rounds 1", ("driver", "worker", "together")),
        pytest.param(
            "benchmarks.dashboard --count 200 --minutes 0",
            ("pair  1 real 50 pages", "alone", "50 stopped", "1 pairs"),
            marks=pytest.mark.slow,
        ),
        ("benchmarks.bench_sim --only bag_100 --tasks 2000", ("bag_100", "2,000")),
    ],
)
def test_it_prints_its_table(words: str, found: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for word in found:
        assert word in done.stdout
