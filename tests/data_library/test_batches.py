"""Batches of functions and of pools of actors: each test is one promise, kept by both modes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import dualray as ray


def sizes(batch):
    """A function of a batch: how many rows it has."""
    return {"size": np.array([len(batch["id"])])}


def batch_sizes(dataset, **options) -> list[int]:
    """How many rows each batch of `map_batches` has."""
    return [row["size"] for row in dataset.map_batches(sizes, **options).take_all()]


def test_small_blocks_are_joined_for_a_batch():
    many = ray.data.range(100, override_num_blocks=20)
    assert batch_sizes(many, batch_size=32) == [32, 3, 32, 3, 30]  # seven blocks of 5 rows reach 32
    assert batch_sizes(many, batch_size=5) == [5] * 20
    assert batch_sizes(many, batch_size=1000) == [100]
    assert batch_sizes(many) == [5] * 20
    assert batch_sizes(ray.data.range(100, override_num_blocks=2), batch_size=30) == [30, 20, 30, 20]


def test_joined_blocks_keep_the_order_of_rows():
    many = ray.data.range(1000, override_num_blocks=50)
    assert [row["id"] for row in many.map_batches(lambda batch: batch, batch_size=64).take_all()] == list(range(1000))


def test_a_pool_gets_joined_blocks():
    class Sizes:
        def __call__(self, batch):
            return sizes(batch)

    many = ray.data.range(60, override_num_blocks=20)
    made = many.map_batches(Sizes, batch_size=30, compute=ray.data.ActorPoolStrategy(size=2))
    assert [row["size"] for row in made.take_all()] == [30, 30]


def test_files_are_joined_for_a_batch(tmp_path: Path):
    for number in range(8):
        pa.parquet.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
        (tmp_path / f"{number}.csv").write_text(f"id\n{number}\n")
    for read, pattern in ((ray.data.read_parquet, "*.parquet"), (ray.data.read_csv, "*.csv")):
        paths = sorted(str(path) for path in tmp_path.glob(pattern))
        assert batch_sizes(read(paths, override_num_blocks=8), batch_size=4) == [4, 4]


def test_a_step_between_that_drops_rows_ends_the_joining_of_its_input():
    many = ray.data.range(40, override_num_blocks=20)
    odd = many.filter(lambda row: row["id"] % 2)  # 20 blocks of one row: the next step joins these
    assert batch_sizes(odd, batch_size=10) == [10, 10]
    # As on Ray, a function of batches counts as one that keeps its rows.
    halved = many.map_batches(lambda batch: {"id": batch["id"][::2]}, udf_modifying_row_count=True)
    assert batch_sizes(halved, batch_size=10) == [5, 5, 5, 5]


@pytest.mark.parametrize("form", ["numpy", "pandas"])
def test_a_batch_can_be_changed_in_place_without_zero_copy(numbers, form):
    def double(batch):
        batch["id"] *= 2
        return batch

    assert numbers.map_batches(double, batch_format=form, zero_copy_batch=False).sum("id") == 9900
    if form == "numpy":
        hint = r"map_batches\(double\) tried to mutate a zero-copy read-only batch\. Pass zero_copy_batch=False"
        with pytest.raises(ValueError, match=hint):
            numbers.map_batches(double, batch_format=form, zero_copy_batch=True).take_all()


def test_options_of_a_function_hold_for_each_task(mode):
    asked = []

    def options():
        asked.append(1)
        return {"num_cpus": 0.5}

    made = ray.data.range(10, override_num_blocks=5).map(
        lambda row: row | {"cpus": ray.get_runtime_context().get_assigned_resources()["CPU"]},
        ray_remote_args_fn=options,
    )
    assert made.unique("cpus") == [0.5]
    assert len(asked) >= 5
    with pytest.raises(TypeError, match=r"Map\(<lambda>\): ray_remote_args_fn=7 must be a function that"):
        made.map(lambda row: row, ray_remote_args_fn=7)


def test_actors_of_a_pool_restart_and_try_again(mode, tmp_path: Path):
    if mode == "sim":
        pytest.skip("a simulated actor has no process of its own to kill")

    class Dies:
        def __call__(self, batch):
            if not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return batch

    made = ray.data.range(20, override_num_blocks=4).map_batches(Dies, compute=ray.data.ActorPoolStrategy(size=1))
    assert made.sum("id") == 190
    assert (tmp_path / "died").exists()


def test_instances_of_a_pool_run_their_del(tmp_path: Path):
    class Leaves:
        def __call__(self, batch):
            return batch

        def __del__(self):
            (tmp_path / f"left{id(self)}").touch()

    pool = ray.data.ActorPoolStrategy(size=2)
    assert ray.data.range(20, override_num_blocks=4).map_batches(Leaves, compute=pool).sum("id") == 190
    assert list(tmp_path.glob("left*"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda data: data.map_batches(sizes, num_gpus=1), "You must provide `batch_size` when requesting GPUs"),
        (lambda data: data.map_batches(sizes, compute="actors"), "compute='actors' must be an ActorPoolStrategy"),
        (lambda data: data.drop_columns(["id", "id"]), r"cols=\['id', 'id'\] must name each column once"),
        (lambda data: data.select_columns(["id", 1]), r"all elements of cols=\['id', 1\] must be strings or expr"),
        (lambda data: data.split_at_indices([]), "indices must name at least one row"),
        (lambda data: ray.data.range(0).random_sample(0.5), "the dataset has no rows to draw from"),
        (
            lambda data: data.add_column("x", lambda batch: 1, batch_format="numpy").take_all(),
            "For numpy batch format, the function must return a ndarray, not a int",
        ),
        (
            lambda data: ray.data.ActorPoolStrategy(max_tasks_in_flight_per_actor=0),
            "max_tasks_in_flight_per_actor=0 must be an int of at least 1: the number of tasks",
        ),
    ],
)
def test_a_wrong_argument_is_named(numbers, call, words):
    with pytest.raises(ValueError, match=words):
        call(numbers)


def test_each_loop_over_batches_reads_them_from_the_start():
    batches = ray.data.range(10).iter_batches(batch_size=4)
    assert [[len(batch["id"]) for batch in batches] for _ in range(2)] == [[4, 4, 2]] * 2
    rows = ray.data.range(3).iter_rows()
    assert [[row["id"] for row in rows] for _ in range(2)] == [[0, 1, 2]] * 2


def test_a_loop_goes_on_after_next():
    rows = ray.data.range(3).iter_rows()
    assert next(rows) == {"id": 0}
    assert [row["id"] for row in rows] == [1, 2]
