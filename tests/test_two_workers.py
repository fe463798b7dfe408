from __future__ import annotations

from pathlib import Path

import pytest

from tests import two_workers
from tests.two_workers import MACHINE, scope_of


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/shared/model/test_ids.py::test_a_name", "tests/shared/model/test_ids.py"),
        ("tests/conformance/test_queue.py::test_a[sim]", "tests/conformance/test_queue.py"),
        ("tests/conformance/test_queue.py::test_a[real]", "tests/conformance/test_queue.py"),
        ("tests/real/cluster/test_cluster.py::test_the_clock[1]", MACHINE),
        ("tests/test_demo.py::test_results", MACHINE),
    ],
)
def test_where_a_test_runs(nodeid, scope):
    assert scope_of(nodeid) == scope


def test_what_needs_the_machine_is_there():
    root = Path(two_workers.__file__).parent.parent
    assert all((root / place).exists() for place in two_workers._NEED_THE_MACHINE)
