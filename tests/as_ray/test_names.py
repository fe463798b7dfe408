"""docs/ray_names.md says what is so, of every name that Ray 2.60 has."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.as_ray.page import PAGE, ROOT

PROGRAM = """\
import sys

import dualray.as_ray

dualray.as_ray.install()
from tests.as_ray import page

assert not [row for _, rows in page.rows() for row in rows if row.state == page.REFUSED and not row.why]
sys.stdout.write(page.page())
"""


def test_the_page_is_up_to_date_and_no_name_is_missing_without_a_reason():
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout == PAGE.read_text(), "run `python -m tests.as_ray.page --write`"
    share = float(made.stdout.partition(" work in dualray (")[2].partition(" %")[0])
    assert share >= 95
