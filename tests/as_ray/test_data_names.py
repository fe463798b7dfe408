"""`import ray` gives the modules of datasets under Ray's names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, DataIterator
from ray.data.aggregate import Count, Sum
from ray.data.collate_fn import NumpyBatchCollateFn
from ray.data.context import DataContext, ShuffleStrategy
from ray.data.datatype import DataType
from ray.data.exceptions import RayDataUserCodeException
from ray.data.expressions import col, lit, udf
from ray.data.grouped_data import GroupedData

@udf(return_dtype=DataType.int64())
def twice(column):
    return column.to_numpy() * 2

ray.init(num_cpus=2)
DataContext.get_current().shuffle_strategy = ShuffleStrategy.HASH_SHUFFLE
data = ray.data.range(10).with_column("x", twice(col("id")) + lit(1))
assert isinstance(data, Dataset) and isinstance(data.groupby("id"), GroupedData)
print(data.aggregate(Count(), Sum("x")))
try:
    data.map(lambda row: 1 / 0).take_all()
except RayDataUserCodeException as error:
    print(type(error).__name__, isinstance(error, ray.exceptions.RayTaskError), isinstance(error, ZeroDivisionError))
for name in ("read_delta", "llm"):
    try:
        getattr(ray.data, name)
    except AttributeError as error:
        print(error)
"""


@pytest.mark.parametrize("run_mode", ["real", "sim"])
def test_a_program_of_rays(tmp_path: Path, run_mode):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "dualray", "run", "--as-ray", "--quiet", "--mode", run_mode]
    ran = subprocess.run([*command, str(tmp_path / "program.py")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    aggregates, error, *refused = ran.stdout.splitlines()
    assert aggregates == "{'count()': 10, 'sum(x)': 100}"
    assert error == "RayTaskError(ZeroDivisionError) True True"
    assert "ray.data.read_delta is not in dualray" in refused[0] and "from_arrow()" in refused[0]
    assert "ray.data.llm is not in dualray" in refused[1]
