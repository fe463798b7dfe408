"""dualray.train without a framework: each test is one promise, kept by both modes."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dualray as ray
from dualray import train
from dualray.train import (
    Checkpoint,
    CheckpointConfig,
    DataConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    TrainRunContext,
    UserCallback,
)
from dualray.train.checkpoint import packed
from dualray.train.session import Session

TWO = ScalingConfig(num_workers=2)


@pytest.fixture(scope="module", params=["sim", "real"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    ray.init(mode=request.param, num_cpus=2, num_gpus=2, memory="4GiB")
    yield request.param
    ray.shutdown()


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(name="run", storage_path=tmp_path, verbose=0)


def reported(**values: Any) -> None:
    """A report with a checkpoint that has the values in a file."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "values.json").write_text(json.dumps(values))
        train.report(values, checkpoint=Checkpoint.from_directory(directory))


def values_of(checkpoint: Checkpoint | None) -> dict[str, Any]:
    assert checkpoint is not None
    with checkpoint.as_directory() as directory:
        values: dict[str, Any] = json.loads((Path(directory) / "values.json").read_text())
        return values


def counting(config: dict[str, Any]) -> None:
    """Five epochs, from where the checkpoint says; one of the workers dies, or raises, at the fourth, once."""
    checkpoint = train.get_checkpoint()
    first = values_of(checkpoint)["epoch"] + 1 if checkpoint else 0
    for epoch in range(first, config.get("epochs", 5)):
        if epoch == 3 and train.get_context().get_world_rank() == 1 and not Path(config["marker"]).exists():
            Path(config["marker"]).touch()
            if config["raises"]:
                raise ValueError("a bad batch")
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch % 2 == 0:
            reported(epoch=epoch, first=first)
        else:
            train.report({"epoch": epoch, "first": first})


def test_ranks_shares_and_metrics(config):
    def loop(config):
        context = train.get_context()
        rows = [row["id"] for row in train.get_dataset_shard("numbers").iter_rows()]
        assert rows == [row["id"] for row in context.get_dataset_shard("numbers").iter_rows()]
        whole = train.get_dataset_shard("whole")
        assert context.get_metadata() == {"of": "the run"}
        with tempfile.TemporaryDirectory() as directory:
            own = {
                "rows": rows,
                "whole": whole.count(),
                "ranks": [context.get_world_size(), context.get_world_rank(), context.get_local_rank()],
                "local": context.get_local_world_size(),
                "scale": config["scale"],
            }
            (Path(directory) / f"{context.get_world_rank()}.json").write_text(json.dumps(own))
            train.report({"name": context.get_experiment_name()}, checkpoint=Checkpoint.from_directory(directory))

    result = DataParallelTrainer(
        loop,
        train_loop_config={"scale": 3},
        scaling_config=TWO,
        run_config=config,
        datasets={"numbers": ray.data.range(10), "whole": ray.data.range(4)},
        dataset_config=DataConfig(datasets_to_split=["numbers"]),
        metadata={"of": "the run"},
    ).fit()
    assert result.metrics == {"name": "run"}
    assert result.error is None
    with result.checkpoint.as_directory() as directory:  # the files of all workers
        one, other = (json.loads((Path(directory) / f"{rank}.json").read_text()) for rank in range(2))
    assert (one["ranks"], other["ranks"]) == ([2, 0, 0], [2, 1, 1])
    assert (one["rows"], other["rows"]) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert one["whole"] == other["whole"] == 4
    assert one["local"] == 2
    assert one["scale"] == 3


@pytest.mark.parametrize("raises", [False, True], ids=["killed", "raises"])
def test_a_failure_costs_at_most_the_work_since_the_last_checkpoint(config, tmp_path, raises):
    run = RunConfig(**{**fields_of(config), "failure_config": FailureConfig(max_failures=1)})
    result = DataParallelTrainer(
        counting,
        train_loop_config={"marker": str(tmp_path / "marker"), "raises": raises},
        scaling_config=TWO,
        run_config=run,
    ).fit()
    assert result.metrics == {"epoch": 4, "first": 3}  # the second attempt began after the checkpoint of epoch 2
    [failure] = result.failures
    assert ("a bad batch" if raises else "killed by SIGKILL") in failure.error
    assert (failure.iteration, failure.resumed_from, failure.lost_reports) == (3, 3, 0)
    table = result.metrics_dataframe
    assert list(table["epoch"]) == [0, 1, 2, 3, 4]
    assert list(table["attempt"]) == [0, 0, 0, 1, 1]
    assert list(table["training_iteration"]) == [1, 2, 3, 4, 5]
    assert [values_of(checkpoint)["epoch"] for checkpoint, _ in result.best_checkpoints] == [0, 2, 4]
    assert values_of(result.checkpoint)["epoch"] == 4


def fields_of(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in RunConfig.__dataclass_fields__}


def test_too_many_failures_and_going_on_with_the_run(config, tmp_path):
    trainer = DataParallelTrainer(
        counting,
        train_loop_config={"marker": str(tmp_path / "marker"), "raises": True},
        scaling_config=TWO,
        run_config=config,
    )
    with pytest.raises(TrainingFailedError, match=r"max_failures=0.*ValueError: a bad batch") as caught:
        trainer.fit()
    result = caught.value.result
    assert isinstance(result.error, ValueError)
    assert result.metrics == {"epoch": 2, "first": 0}
    assert len(result.failures) == 1

    assert DataParallelTrainer.can_restore(result.path)
    restored = DataParallelTrainer.restore(result.path).fit()
    assert restored.metrics == {"epoch": 4, "first": 3}
    assert list(restored.metrics_dataframe["epoch"]) == [0, 1, 2, 3, 4]
    assert restored.path == result.path
    assert DataParallelTrainer.restore(result.path).fit().metrics == restored.metrics  # it has ended: only read
    with pytest.raises(FileExistsError, match="already has a run"):
        trainer.fit()
    with pytest.raises(ValueError, match="has no run of this trainer"):
        DataParallelTrainer.restore(tmp_path)


def test_resume_from_checkpoint(config, tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "values.json").write_text('{"epoch": 3}')
    result = DataParallelTrainer(
        counting, run_config=config, resume_from_checkpoint=Checkpoint.from_directory(tmp_path / "start")
    ).fit()
    assert result.metrics == {"epoch": 4, "first": 4}


def test_which_checkpoints_are_kept(config):
    def loop():
        for score in (3, 9, 1, 7, 2):
            reported(score=score)

    kept = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score")
    result = DataParallelTrainer(loop, run_config=RunConfig(**{**fields_of(config), "checkpoint_config": kept})).fit()
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [9, 7, 2]  # and the latest
    assert values_of(result.checkpoint) == {"score": 2}
    assert values_of(result.get_best_checkpoint("score", "min")) == {"score": 2}
    folders = sorted(path.name for path in Path(result.path).glob("checkpoint_*"))
    assert folders == ["checkpoint_000001", "checkpoint_000003", "checkpoint_000004"]


def test_workers_that_do_not_report_together(config):
    def loop():
        if train.get_context().get_world_rank() == 0:
            train.report({"loss": 1})

    with pytest.raises(TrainingFailedError, match=r"after 0 reports, workers \[0\] wait .* workers \[1\] have ended"):
        DataParallelTrainer(loop, scaling_config=TWO, run_config=config).fit()


def test_gpus_and_threads(config, mode, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def loop():
        train.report({"gpus": ray.get_gpu_ids(), "threads": os.environ.get("OMP_NUM_THREADS")})

    scaling = ScalingConfig(num_workers=1, use_gpu=True, resources_per_worker={"CPU": 2})
    result = DataParallelTrainer(loop, scaling_config=scaling, run_config=config).fit()
    assert len(result.metrics["gpus"]) == 1
    if mode == "real":  # virtual workers have the environment of their simulation
        assert result.metrics["threads"] == "2"


def test_memory_of_workers(config):
    def loop():
        train.report({"held": ray.get_runtime_context().get_assigned_resources()})

    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1, "memory": "1.5GiB"})
    assert scaling.total_resources == {"CPU": 2, "memory": 3 * 2**30}
    result = DataParallelTrainer(loop, scaling_config=scaling, run_config=config).fit()
    assert result.metrics["held"] == {"CPU": 1.0, "memory": 1.5 * 2**30}


def test_what_is_refused(config, tmp_path):
    with pytest.raises(ray.exceptions.PlacementGroupUnschedulableError):
        DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=3), run_config=config).fit()
    with pytest.raises(TypeError, match="must be a function"):
        DataParallelTrainer(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must take no argument, or one"):
        DataParallelTrainer(lambda one, two: None)
    with pytest.raises(TypeError, match="scaling_config=2 must be a ScalingConfig"):
        DataParallelTrainer(lambda: None, scaling_config=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_workers=-1 must be at least 0"):
        ScalingConfig(num_workers=-1)
    with pytest.raises(ValueError, match="Set use_gpu=True"):
        ScalingConfig(resources_per_worker={"GPU": 1})
    with pytest.raises(RuntimeError, match="outside a training function"):
        train.report({})
    with pytest.raises(NotADirectoryError):
        Checkpoint.from_directory(tmp_path / "nothing")


def test_checkpoints_are_directories(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "weights").write_bytes(b"123")
    checkpoint = Checkpoint.from_directory(tmp_path / "a")
    checkpoint.set_metadata({"epoch": 1})
    checkpoint.update_metadata({"by": "me"})
    assert checkpoint.get_metadata() == {"epoch": 1, "by": "me"}
    copy = Path(checkpoint.to_directory(tmp_path / "b"))
    assert (copy / "weights").read_bytes() == b"123"
    with checkpoint.as_directory() as directory:
        assert directory == str(tmp_path / "a")
    assert checkpoint == Checkpoint(tmp_path / "a")


def test_a_checkpoint_of_another_machine_comes_through_the_store(tmp_path):
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "weights").write_bytes(b"123")
    (tmp_path / "a" / "empty").touch()
    session = Session(
        context=None,
        ledger=None,
        shards={},
        checkpoint=Checkpoint(tmp_path / "there"),
        checkpoint_files=packed(tmp_path / "a"),
    )
    checkpoint = session.start_checkpoint()
    with checkpoint.as_directory() as directory:
        assert (Path(directory) / "deep" / "weights").read_bytes() == b"123"
        assert (Path(directory) / "empty").read_bytes() == b""
    assert session.start_checkpoint() == checkpoint
    session.close()
    assert not Path(checkpoint.path).exists()

    session.checkpoint, session._temporary = Checkpoint(tmp_path / "a"), ""
    assert session.start_checkpoint().path == str(tmp_path / "a")  # it is this machine's: nothing is copied


def test_time_is_that_of_the_mode(config, mode):
    def loop():
        for _ in range(2):
            time.sleep(0.05 if mode == "real" else 3600)
            train.report({"done": True})

    table = DataParallelTrainer(loop, run_config=config).fit().metrics_dataframe
    if mode == "sim":
        assert 7200 <= table["time_total_s"].iloc[-1] < 7201
    else:
        assert table["time_total_s"].is_monotonic_increasing


class Noting(UserCallback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        self.seen.append((run_context.run_id, metrics, checkpoint and values_of(checkpoint)))

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, Exception]) -> None:
        self.seen.append({rank: repr(error) for rank, error in worker_exceptions.items()})


def test_callbacks_are_told_of_reports_and_errors(config: RunConfig):
    def loop() -> None:
        rank = train.get_context().get_world_rank()
        train.report({"rank": rank})
        if train.get_checkpoint() is not None:
            return
        reported(a=rank)
        if rank == 1:
            raise ValueError("of rank 1")
        time.sleep(60)

    noting = Noting()
    again = {"callbacks": [noting], "failure_config": FailureConfig(max_failures=1)}
    run = RunConfig(**{**fields_of(config), **again})
    DataParallelTrainer(loop, scaling_config=TWO, run_config=run).fit()
    first = ("run", [{"rank": 0}, {"rank": 1}], None)
    assert noting.seen == [
        first,
        ("run", [{"a": 0}, {"a": 1}], {"a": 0}),
        {1: "ValueError('of rank 1')"},
        first,
    ]


def test_an_error_of_a_callback_ends_the_training(config: RunConfig):
    class Failing(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            raise KeyError("no such metric")

    run = RunConfig(**{**fields_of(config), "callbacks": [Failing()]})
    with pytest.raises(KeyError, match="no such metric"):
        DataParallelTrainer(lambda: train.report({"a": 1}), run_config=run).fit()


def test_a_callback_is_a_subclass_of_user_callback():
    with pytest.raises(TypeError, match="callbacks contains 3, which must be an instance of a subclass"):
        RunConfig(callbacks=[3])


def test_workers_wait_for_one_another_and_share_a_value_of_rank_0(config):
    def loop():
        rank = train.get_context().get_world_rank()
        if rank == 1:
            time.sleep(0.3)
        began = time.monotonic()
        train.collective.barrier()
        waited = time.monotonic() - began
        shared = train.collective.broadcast_from_rank_zero({"key": rank})
        again = train.collective.broadcast_from_rank_zero([rank, "again"])
        train.report({"waited": waited, "shared": shared["key"], "again": again[0]})

    metrics = DataParallelTrainer(loop, scaling_config=TWO, run_config=config).fit().metrics
    assert metrics is not None
    assert metrics["waited"] > 0.1
    assert (metrics["shared"], metrics["again"]) == (0, 0)


def test_a_barrier_that_a_worker_does_not_reach_ends_the_training(config):
    def loop():
        if train.get_context().get_world_rank() == 0:
            train.collective.barrier()

    with pytest.raises(TrainingFailedError, match=r"workers \[0\] wait in train.report\(\) or in a collective"):
        DataParallelTrainer(loop, scaling_config=TWO, run_config=config).fit()


def test_outside_a_training_function_there_is_no_barrier():
    with pytest.raises(RuntimeError, match=r"train.collective.barrier\(\) was called outside a training function"):
        train.collective.barrier()


def test_a_checkpoint_can_have_a_name_and_is_deleted_in_its_worker(config, tmp_path):
    def loop():
        directory = tempfile.mkdtemp()
        (Path(directory) / "values.json").write_text("{}")
        checkpoint = Checkpoint.from_directory(directory)
        train.report({"n": 1}, checkpoint=checkpoint, checkpoint_dir_name="first")
        train.report({"n": 2}, checkpoint, checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC)
        train.report({"is_deleted": not Path(directory).exists()})

    result = DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
    assert result.metrics is not None and result.metrics["is_deleted"]
    assert [row["checkpoint_dir_name"] for row in result.history] == ["first", "checkpoint_000001", None]
    assert (tmp_path / "run" / "first" / "values.json").exists()


@pytest.mark.parametrize("name", ["first", "a/b"])
def test_a_name_of_a_checkpoint_that_cannot_be_is_refused(config, name):
    def loop():
        for _ in range(2):
            with tempfile.TemporaryDirectory() as directory:
                train.report({}, Checkpoint.from_directory(directory), checkpoint_dir_name=name)

    with pytest.raises((TrainingFailedError, FileExistsError), match=f"checkpoint_dir_name='{name}'"):
        DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()


def test_the_failures_of_workers_are_told_by_rank(config):
    def loop():
        if train.get_context().get_world_rank() == 1:
            raise ValueError("a bad batch")

    with pytest.raises(train.WorkerGroupError) as failed:
        DataParallelTrainer(loop, scaling_config=TWO, run_config=config).fit()
    assert {rank: str(error) for rank, error in failed.value.worker_failures.items()} == {1: "a bad batch"}


def test_a_result_is_read_again_from_its_folder(config):
    def loop():
        for number, loss in enumerate((3.0, 1.0, 2.0)):
            reported(loss=loss, at={"epoch": number})
        return {"rank": train.get_context().get_world_rank()}

    result = DataParallelTrainer(loop, scaling_config=TWO, run_config=config).fit()
    again = train.Result.from_path(result.path)
    assert again.metrics == result.metrics
    assert again.best_checkpoints == result.best_checkpoints
    assert result.return_value == {"rank": 0}
    first = again.get_best_checkpoint("at/epoch", "min")
    assert first is not None and values_of(first)["loss"] == 3.0
    assert again.filesystem.get_file_info(again.path).is_file is False
    with pytest.raises(ValueError, match=r"Result.from_path: the directory '.*/none' has no run of a trainer"):
        train.Result.from_path(str(Path(result.path).parent / "none"))


def test_a_returned_value_that_cannot_be_pickled_is_none(config):
    def loop():
        return (number for number in range(3))

    result = DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
    assert result.return_value is None


def test_a_share_becomes_a_dataset(config):
    def loop():
        share = train.get_dataset_shard("rows").materialize()
        train.report({"count": share.count(), "columns": share.columns(), "sum": share.sum("id")})

    trainer = DataParallelTrainer(
        loop, scaling_config=ScalingConfig(num_workers=1), run_config=config, datasets={"rows": ray.data.range(10)}
    )
    assert trainer.fit().metrics == {"count": 10, "columns": ["id"], "sum": 45}


def test_without_workers_the_function_runs_in_this_process(config):
    seen = []

    def loop(config):
        context = train.get_context()
        share = train.get_dataset_shard("rows")
        assert train.collective.broadcast_from_rank_zero(5) == 5
        train.collective.barrier()
        seen.append((os.getpid(), context.get_world_size(), context.get_world_rank(), share.count()))
        reported(loss=config["loss"])
        reported(loss=config["loss"] / 2)
        return "done"

    trainer = DataParallelTrainer(
        loop,
        train_loop_config={"loss": 1.0},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=config,
        datasets={"rows": ray.data.range(7)},
    )
    result = trainer.fit()
    assert seen == [(os.getpid(), 1, 0, 7)]
    assert result.metrics == {"loss": 0.5}
    assert values_of(result.checkpoint) == {"loss": 0.5}
    assert result.return_value == "done"
    with pytest.raises(RuntimeError, match="outside a training function"):
        train.get_context()


def test_without_workers_fit_raises_the_error_of_the_function(config):
    def loop():
        raise ValueError("a bad batch")

    with pytest.raises(ValueError, match="a bad batch"):
        DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=0), run_config=config).fit()
