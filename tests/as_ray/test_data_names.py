"""`import ray` gives the modules of datasets under Ray's names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import math

import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, DataIterator
from ray.data.aggregate import Count, Sum
from ray.data.collate_fn import NumpyBatchCollateFn
from ray.data.context import DataContext, ShuffleStrategy
from ray.data.datatype import DataType
from ray.data.exceptions import RayDataUserCodeException
from ray.data.expressions import col, lit, udf
from ray.data.grouped_data import GroupedData
from ray.data.read_api import from_items, range as range_of_rows, read_parquet
from ray.util.collective.collective import allreduce, create_collective_group

assert range_of_rows is ray.data.range and create_collective_group is ray.util.collective.create_collective_group

@udf(return_dtype=DataType.int64())
def twice(column):
    return column.to_numpy() * 2

ray.init(num_cpus=2)
DataContext.get_current().shuffle_strategy = ShuffleStrategy.HASH_SHUFFLE
limits = ray.data.ExecutionResources.for_limits(cpu=2, object_store_memory=1 << 30)
ray.data.DatasetContext.get_current().execution_options.resource_limits = limits
assert limits.to_resource_dict() == {"CPU": 2, "GPU": math.inf, "object_store_memory": 1 << 30, "memory": math.inf}
assert ray.data.ExecutionResources.from_resource_dict({"num_cpus": 1, "GPU": 2}) == ray.data.ExecutionResources(1, 2)
assert ray.data.ExecutionResources(gpu=1).cpu == 0 and ray.data.ExecutionResources.zero().copy(memory=5).memory == 5
assert ray.data.ExecutionOptions().resource_limits == ray.data.ExecutionResources.inf() == limits.copy(
    cpu=math.inf, object_store_memory=math.inf
)
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


SOURCES = """
import pyarrow as pa
import ray
from ray.data import Datasink, Datasource
from ray.data._internal.util import _check_import, call_with_retry
from ray.data.block import Block, BlockMetadata
from ray.data.datasource.datasink import WriteResult
from ray.data.datasource.datasource import ReadTask

class Numbers(Datasource):
    def get_read_tasks(self, parallelism):
        read = lambda: [call_with_retry(lambda: pa.table({"x": [1, 2]}), "read numbers")]
        return [ReadTask(read, BlockMetadata(2, 16, None, None)) for _ in range(parallelism)]

class Sum(Datasink):
    def write(self, blocks, ctx):
        return sum(sum(block["x"].to_pylist()) for block in blocks)

    def on_write_complete(self, write_result):
        print(isinstance(write_result, WriteResult), sum(write_result.write_returns))

Numbers().get_name()
ray.data.from_items([{"x": 5}]).write_datasink(Sum())  # the first verb starts a cluster
ray.data.read_datasource(Numbers(), override_num_blocks=3).write_datasink(Sum())
try:
    _check_import(Numbers(), module="no_such_module", package="no-such")
except ImportError as error:
    print(error)
calls = []
def fails():
    calls.append(1)
    raise OSError("busy" if len(calls) < 3 else "gone")
try:
    call_with_retry(fails, "fail", match=["busy"], max_attempts=5, max_backoff_s=0)
except OSError as error:
    print(error, len(calls))
"""


@pytest.mark.parametrize("run_mode", ["real", "sim"])
def test_sources_and_targets_of_a_program(tmp_path: Path, run_mode):
    (tmp_path / "program.py").write_text(SOURCES)
    command = [sys.executable, "-m", "dualray", "run", "--as-ray", "--quiet", "--mode", run_mode]
    ran = subprocess.run([*command, str(tmp_path / "program.py")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    five, nine, refused, retried = ran.stdout.splitlines()
    assert (five, nine, retried) == ("True 5", "True 9", "gone 3")
    assert refused.startswith("Numbers needs the module 'no_such_module'") and "pip install no-such" in refused


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
