"""A cluster of each mode for the tests of datasets."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv
import pytest

import dualray as ray

MIB = 1024 * 1024
# Arrow opens a pipe for Ctrl-C with the first file that it reads as CSV, and keeps it: it is no leak of ours.
pyarrow.csv.read_csv(pa.py_buffer(b"a\n1\n"))


@pytest.fixture(scope="module", params=["sim", "real"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    ray.init(mode=request.param, num_cpus=2, object_store_memory=100 * MIB)
    yield request.param
    ray.shutdown()


@pytest.fixture
def numbers() -> ray.data.Dataset:
    return ray.data.range(100, override_num_blocks=7)
