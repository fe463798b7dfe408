"""TensorflowTrainer: MultiWorkerMirroredStrategy over real processes, and its stand-in on virtual workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import dualray as ray
from dualray import train
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.network.collectives import all_reduce_ns, broadcast_ns
from dualray.sim.network.topologies import Star
from dualray.train import FailureConfig, RunConfig, ScalingConfig
from dualray.train.tensorflow import TensorflowConfig, TensorflowTrainer

ROWS = 72
EPOCHS = 3

pytestmark = pytest.mark.timeout(300)


@contextmanager
def cluster(mode: str, **options) -> Iterator[None]:
    ray.init(mode=mode, **options)
    try:
        yield
    finally:
        ray.shutdown()


def inputs() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)


def rows() -> ray.data.Dataset:
    return ray.data.from_items([{"x": row, "y": np.float32(row.sum())} for row in inputs()])


def compiled(optimizer: str) -> object:
    """A model with the same weights in each process."""
    import tensorflow as tf

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(4, "tanh", input_shape=(3,), kernel_initializer=tf.keras.initializers.Constant(0.3)),
            tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.Constant(0.2)),
        ]
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def training(config) -> None:
    """By Keras, under the strategy."""
    import tensorflow as tf

    from dualray.train.tensorflow.keras import ReportCheckpointCallback

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = compiled(config["optimizer"])
    dataset = train.get_dataset_shard("train").to_tf("x", "y", batch_size=config["batch_size"])
    model.fit(dataset, epochs=EPOCHS, callbacks=[ReportCheckpointCallback(metrics=["loss", "mae"])], verbose=0)


def fit(tmp_path: Path, loop: Callable[..., None], config: dict[str, object], **scaling) -> train.Result:
    return TensorflowTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(**scaling),
        datasets={"train": rows()},
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()


def final_weights(result: train.Result) -> list[np.ndarray]:
    import tensorflow as tf

    with result.checkpoint.as_directory() as directory:
        return tf.keras.models.load_model(Path(directory) / "model.keras").get_weights()


def alone(optimizer: str, workers: int, batch_size: int) -> tuple[list[float], list[np.ndarray]]:
    """What one process computes on the batches that all workers see together: losses and weights."""
    model = compiled(optimizer)
    whole = inputs()
    share, part = ROWS // workers, batch_size // workers
    losses = []
    for epoch in range(EPOCHS):
        model.reset_metrics()
        for start in range(0, share, part):
            parts = [whole[first + start : first + start + part] for first in range(0, ROWS, share)]
            batch = np.concatenate(parts)
            loss, _ = model.train_on_batch(batch, batch.sum(1), reset_metrics=False)
        losses.append(loss)
        if epoch == 0:  # Keras cannot know yet how many batches there are, and its optimizer counts one too many
            model.optimizer.iterations.assign_add(1)
    return losses, model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_virtual_workers_train_as_one_on_all_their_batches(tmp_path, optimizer):
    with cluster("sim", nodes=2, num_cpus=2):
        result = fit(tmp_path, training, {"optimizer": optimizer, "batch_size": 12}, num_workers=3)
    losses, weights = alone(optimizer, 3, 12)
    assert np.allclose(result.metrics_dataframe["loss"], losses, rtol=1e-5)
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(final_weights(result), weights, strict=True))
    last = result.metrics_dataframe.iloc[-1]
    steps = EPOCHS * ROWS // 12
    assert last["steps"] == steps
    assert last["compute_s"] == pytest.approx(steps * 0.001)
    assert last["all_reduce_bytes"] == steps * ((3 * 4 + 4 + 4 + 1) * 4 + 2 * 8)  # gradients, and two metrics
    assert last["time_total_s"] >= last["compute_s"] + last["all_reduce_s"] > last["compute_s"]


@pytest.mark.slow
def test_real_and_virtual_workers_compute_the_same(tmp_path):
    results = []
    for mode in ("sim", "real"):
        with cluster(mode, num_cpus=2):
            results.append(fit(tmp_path / mode, training, {"optimizer": "adam", "batch_size": 12}, num_workers=2))
    virtual, real = results
    for metric in ("loss", "mae"):
        one, other = (each.metrics_dataframe[metric] for each in (virtual, real))
        assert np.allclose(one, other, rtol=1e-5)
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(final_weights(virtual), final_weights(real), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [16, 64])
def test_many_virtual_gpus(tmp_path, workers):
    def loop(config):
        import tensorflow as tf

        from dualray.train.tensorflow.keras import ReportCheckpointCallback

        assert len(ray.get_gpu_ids()) == 1
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = compiled("sgd")
        data = np.random.default_rng(0).normal(size=(128, 3))
        callbacks = [ReportCheckpointCallback(metrics="loss")]
        model.fit(data, data.sum(1), batch_size=64, epochs=EPOCHS, callbacks=callbacks, verbose=0)

    with cluster("sim", nodes=workers // 8, num_cpus=8, num_gpus=8):
        result = fit(tmp_path, loop, {}, num_workers=workers, use_gpu=True)
    assert result.metrics_dataframe["steps"].iloc[-1] == 2 * EPOCHS
    assert len(result.metrics_dataframe) == EPOCHS
    assert np.isfinite(result.metrics_dataframe["loss"]).all()


@pytest.mark.slow
def test_steps_take_what_they_are_said_to(tmp_path):
    def loop():
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = compiled("sgd")
        model.fit(np.ones((24, 3)), np.ones(24), batch_size=8, verbose=0)
        train.report({})

    with cluster("sim", num_cpus=2):
        result = TensorflowTrainer(
            loop,
            tensorflow_config=TensorflowConfig(step_duration=lambda rows: rows * 10.0),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=tmp_path, verbose=0),
        ).fit()
    [report] = result.metrics_dataframe.to_dict("records")
    assert (report["steps"], report["compute_s"]) == (3, 120)  # three batches of 8, 4 rows in each worker
    assert 120 < report["time_total_s"] < 121


def own_loop(config) -> None:
    """By hand: under a tf.function, with an optimizer, reductions in and around replicas, and metrics."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = train.get_context().get_world_rank()
    with strategy.scope():
        variable = tf.Variable(float(rank))
        model = compiled(config["optimizer"])
    given = inputs()
    dataset = tf.data.Dataset.from_tensor_slices((given, given.sum(1))).batch(12)

    def step(x, y):
        with tf.GradientTape() as tape:
            miss = tf.nn.compute_average_loss(tf.square(model(x, training=True)[:, 0] - y))
        gradients = tape.gradient(miss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return miss

    @tf.function
    def whole_step(x, y):
        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

    def asked():
        replica = tf.distribute.get_replica_context()
        own = tf.cast(replica.replica_id_in_sync_group, tf.float32) + variable + 1
        by_hand = replica.merge_call(lambda it, value: it.extended.reduce_to("SUM", value, value), args=(own,))
        return replica.all_reduce("MEAN", [own, 2 * own]), by_hand, replica.all_gather(own[None], axis=0)

    losses = []
    for _ in range(EPOCHS):
        batches = [whole_step(x, y).numpy() for x, y in strategy.experimental_distribute_dataset(dataset)]
        losses.append(float(np.mean(batches)))
    own = strategy.run(tf.function(lambda: variable + 1))
    means, by_hand, gathered = strategy.run(asked)
    train.report(
        {
            "own": float(strategy.experimental_local_results(own)[0]),
            "sum": float(strategy.reduce("SUM", own, axis=None)),
            "mean": float(strategy.reduce(tf.distribute.ReduceOp.MEAN, own, axis=None)),
            "means": [float(strategy.experimental_local_results(each)[0]) for each in means],
            "by_hand": float(strategy.experimental_local_results(by_hand)[0]),
            "gathered": strategy.experimental_local_results(gathered)[0].numpy().tolist(),
            "replicas": strategy.num_replicas_in_sync,
            "me": strategy.cluster_resolver.task_id,
            "losses": losses,
            "iterations": int(model.optimizer.iterations.numpy()),
            "weights": [weights.tolist() for weights in model.get_weights()],
        }
    )


def run_own_loop(mode: str, path: Path) -> dict[str, object]:
    with cluster(mode, num_cpus=2):
        return (
            TensorflowTrainer(
                own_loop,
                train_loop_config={"optimizer": "adam"},
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=path, verbose=0),
            )
            .fit()
            .metrics
        )


def test_a_loop_of_ones_own_on_virtual_workers(tmp_path):
    found = run_own_loop("sim", tmp_path)
    expected = {"own": 1, "sum": 2, "mean": 1, "means": [1.5, 3], "by_hand": 3, "gathered": [1, 2], "replicas": 2}
    assert {name: found[name] for name in expected} == expected
    assert (found["me"], found["iterations"]) == (0, EPOCHS * ROWS // 12)
    model = compiled("adam")
    whole = inputs()
    losses = [[model.train_on_batch(whole[at : at + 12], whole[at : at + 12].sum(1))[0] for at in range(0, ROWS, 12)]
              for _ in range(EPOCHS)]  # fmt: skip
    assert np.allclose(found["losses"], np.mean(losses, axis=1), rtol=1e-5)
    assert all(np.allclose(*pair, atol=1e-6) for pair in zip(found["weights"], model.get_weights(), strict=True))


@pytest.mark.slow
def test_a_loop_of_ones_own_is_the_same_on_real_workers(tmp_path):
    virtual, real = (run_own_loop(mode, tmp_path / mode) for mode in ("sim", "real"))
    losses = [each.pop("losses") for each in (virtual, real)]
    weights = [each.pop("weights") for each in (virtual, real)]
    assert virtual == real
    assert np.allclose(*losses, rtol=1e-5)
    assert all(np.allclose(*pair, atol=1e-6) for pair in zip(*weights, strict=True))


def test_workers_in_different_exchanges_are_told(tmp_path):
    def loop():
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if train.get_context().get_world_rank():
            strategy.gather(tf.constant([1.0]), axis=0)
        else:
            strategy.reduce("SUM", tf.constant([1.0]))

    with (
        cluster("sim", num_cpus=2),
        pytest.raises(train.TrainingFailedError, match="worker 0 is in an all-reduce and worker 1 in an all-gather"),
    ):
        TensorflowTrainer(
            loop, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=tmp_path, verbose=0)
        ).fit()


def test_a_worker_that_reports_while_others_train_is_told(tmp_path):
    def loop():
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if train.get_context().get_world_rank():
            train.report({})
        strategy.reduce("SUM", tf.constant([1.0]))

    with (
        cluster("sim", num_cpus=2),
        pytest.raises(
            train.TrainingFailedError,
            match=r"workers \[1\] wait in train.report\(\), but workers \[0\] wait in a collective",
        ),
    ):
        TensorflowTrainer(
            loop, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=tmp_path, verbose=0)
        ).fit()


def test_what_a_virtual_strategy_has_not(tmp_path):
    def loop():
        import tensorflow as tf

        tf.distribute.MultiWorkerMirroredStrategy().experimental_distribute_values_from_function(lambda _: 1)

    with (
        cluster("sim", num_cpus=2),
        pytest.raises(
            train.TrainingFailedError,
            match="in sim mode MultiWorkerMirroredStrategy has no 'experimental_distribute_values_from_function'",
        ),
    ):
        TensorflowTrainer(loop, run_config=RunConfig(storage_path=tmp_path, verbose=0)).fit()


def test_the_strategy_is_tensorflows_own_outside(tmp_path):
    import tensorflow as tf

    from dualray.train.tensorflow import virtual

    virtual.install()
    assert isinstance(tf.distribute.MultiWorkerMirroredStrategy(), tf.distribute.Strategy)


@pytest.mark.slow
def test_a_killed_worker_costs_the_work_since_the_last_checkpoint(tmp_path):
    def loop(config):
        import tensorflow as tf

        from dualray.train.tensorflow.keras import ReportCheckpointCallback

        assert json.loads(os.environ["TF_CONFIG"])["task"]["index"] == train.get_context().get_world_rank()
        first = 0
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            checkpoint = train.get_checkpoint()
            if checkpoint:
                first = 2
                with checkpoint.as_directory() as directory:
                    model = tf.keras.models.load_model(f"{directory}/model.keras")
            else:
                model = compiled("sgd")
        for epoch in range(first, 4):
            if epoch == 2 and train.get_context().get_world_rank() == 1 and not Path(config["marker"]).exists():
                Path(config["marker"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)  # the other one waits in a collective, or is about to
            dataset = train.get_dataset_shard("train").to_tf("x", "y", batch_size=12)
            model.fit(dataset, callbacks=[ReportCheckpointCallback()], verbose=0)

    with cluster("real", num_cpus=2):
        result = TensorflowTrainer(
            loop,
            train_loop_config={"marker": str(tmp_path / "marker")},
            scaling_config=ScalingConfig(num_workers=2),
            datasets={"train": rows()},
            run_config=RunConfig(storage_path=tmp_path, verbose=0, failure_config=FailureConfig(max_failures=1)),
        ).fit()
    [failure] = result.failures
    assert "killed by SIGKILL" in failure.error
    assert (failure.iteration, failure.resumed_from) == (2, 2)
    table = result.metrics_dataframe
    assert list(table["attempt"]) == [0, 0, 1, 1]
    assert table["loss"].is_monotonic_decreasing


@pytest.mark.slow
def test_one_real_worker_with_a_strategy_of_one_and_with_none(tmp_path):
    def loop():
        import tensorflow as tf

        with tf.distribute.MirroredStrategy().scope():
            model = compiled("sgd")
        mirrored = model.fit(np.ones((8, 3)), np.ones(8), verbose=0).history["loss"]
        plain = compiled("sgd").fit(np.ones((8, 3)), np.ones(8), verbose=0).history["loss"]
        assert np.allclose(mirrored, plain)
        train.report({"loss": plain[0], "threads": os.environ["OMP_NUM_THREADS"]})

    with cluster("real", num_cpus=2):
        result = TensorflowTrainer(
            loop,
            scaling_config=ScalingConfig(resources_per_worker={"CPU": 2}),
            run_config=RunConfig(storage_path=tmp_path, verbose=0),
        ).fit()
    assert result.metrics["threads"] == os.environ.get("OMP_NUM_THREADS", "2")


def test_what_the_callback_reports():
    from dualray.train.tensorflow.keras import ReportCheckpointCallback

    with pytest.raises(ValueError, match="Did you mean 'epoch_end'"):
        ReportCheckpointCallback(checkpoint_on="epoch_ends")
    callback = ReportCheckpointCallback(metrics={"error": "los"})
    with pytest.raises(KeyError, match="Did you mean 'loss'"):
        callback.on_epoch_end(0, {"loss": 1.0})


def test_the_time_of_a_ring():
    costs = CostModel(
        nic_bytes_per_s=1_000_000,
        nic_latency_ns=1000,
        node_message_ns=0,
        local_message_ns=500,
        memory_bytes_per_s=10_000_000,
    )
    star = Star(costs)
    # Four nodes: 6 rounds of 1 MB / 4 at 1 MB/s, and two NICs' latency in each.
    assert all_reduce_ns(star, costs, ["a", "b", "c", "d"], 1_000_000) == 1_500_000_000 + 6 * 2000
    # Two processes on each of two nodes: a flow in each direction of each NIC.
    assert all_reduce_ns(star, costs, ["a", "a", "b", "b"], 1_000_000) == 1_500_000_000 + 6 * 2000
    # All on one node: four copies at a time share its memory's bandwidth.
    assert all_reduce_ns(star, costs, ["a", "a", "a", "a"], 1_000_000) == 600_000_000 + 6 * 500
    assert all_reduce_ns(star, costs, ["a"], 1_000_000) == 0
    assert broadcast_ns(star, costs, ["a", "b", "c"], 1_000_000) == 1_000_000_000 + 2 * 2000
