"""TorchTrainer: a process group of real workers, and its stand-in on virtual ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dualray as ray
from dualray import train
from dualray.train import RunConfig, ScalingConfig, TrainingFailedError
from dualray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_data_loader, prepare_model

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)

ROWS = 24


@pytest.fixture(params=["real", "sim"])
def mode(request) -> Iterator[str]:
    ray.init(mode=request.param, num_cpus=2)
    yield request.param
    ray.shutdown()


@pytest.fixture
def simulated() -> Iterator[None]:
    ray.init(mode="sim", num_cpus=2)
    yield
    ray.shutdown()


def run(function, workers: int = 2, **options) -> train.Result:
    trainer = TorchTrainer(
        function, scaling_config=ScalingConfig(num_workers=workers), run_config=RunConfig(verbose=0), **options
    )
    return trainer.fit()


def data() -> tuple[object, object]:
    inputs = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))
    return inputs, inputs.sum(1, keepdim=True)


def network(seed: int) -> object:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def weights(model) -> list[float]:
    return [round(value, 5) for each in model.parameters() for value in each.detach().flatten().tolist()]


def fit(config) -> None:
    rank = train.get_context().get_world_rank()
    model = prepare_model(network(seed=rank))  # all take those of rank 0
    loader = prepare_data_loader(
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=config["rows"])
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
        train.report({"weights": weights(model.module), "batches": len(loader)})


def test_workers_train_as_one_would_on_all_rows(mode):
    result = run(fit, train_loop_config={"rows": 4})
    model = network(seed=0)
    inputs, wanted = data()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        for first in range(0, ROWS, 8):  # rank 0 has the even rows, and rank 1 the odd ones
            optimizer.zero_grad()
            rows = slice(first, first + 8)
            torch.nn.functional.mse_loss(model(inputs[rows]), wanted[rows]).backward()
            optimizer.step()
    assert result.metrics["batches"] == ROWS // 2 // 4
    assert result.metrics["weights"] == pytest.approx(weights(model), abs=2e-5)
    if mode == "sim":
        last = result.metrics_dataframe.iloc[-1]
        assert last["steps"] == 9
        assert last["all_reduce_s"] > 0


def accumulate() -> None:
    model = prepare_model(network(seed=1))
    inputs, wanted = data()
    mine = slice(train.get_context().get_world_rank(), None, 2)
    inputs, wanted = inputs[mine], wanted[mine]
    with model.no_sync():
        torch.nn.functional.mse_loss(model(inputs[:6]), wanted[:6]).backward()
    torch.nn.functional.mse_loss(model(inputs[6:]), wanted[6:]).backward()
    gradients = [round(value, 5) for each in model.parameters() for value in each.grad.flatten().tolist()]
    train.report({"gradients": gradients, "device": str(get_device())})


def test_gradients_add_up_without_sync(mode):
    result = run(accumulate)
    model = network(seed=1)
    inputs, wanted = data()
    for rows in (slice(0, 12), slice(12, 24)):
        torch.nn.functional.mse_loss(model(inputs[rows]), wanted[rows]).backward()
    expected = [value for each in model.parameters() for value in each.grad.flatten().tolist()]
    assert result.metrics["gradients"] == pytest.approx(expected, abs=2e-5)
    assert result.metrics["device"] == "cpu"


def train_two_models() -> None:
    maker, judge = prepare_model(network(seed=1)), prepare_model(torch.nn.Linear(1, 1))
    inputs = data()[0][train.get_context().get_world_rank() :: 2]
    made = maker(inputs)
    judge(made.detach()).square().mean().backward()  # it does not reach the first model
    judge(made).square().mean().backward()
    gradients = [round(value, 5) for each in maker.parameters() for value in each.grad.flatten().tolist()]
    train.report({"gradients": gradients, "judge": weights(judge.module)})


def test_a_backward_pass_exchanges_the_models_that_it_reaches(mode):
    metrics = run(train_two_models).metrics
    maker, judge = network(seed=1), torch.nn.Linear(1, 1)
    with torch.no_grad():
        for parameter, value in zip(judge.parameters(), metrics["judge"], strict=True):
            parameter.fill_(value)
    judge(maker(data()[0])).square().mean().backward()
    expected = [value for each in maker.parameters() for value in each.grad.flatten().tolist()]
    assert metrics["gradients"] == pytest.approx(expected, abs=5e-5)


def shares(config) -> None:
    rank = train.get_context().get_world_rank()
    rows = [{"id": number, "pair": (number, [number])} for number in range(6)]
    loader = prepare_data_loader(torch.utils.data.DataLoader(rows, batch_size=2))
    own = torch.utils.data.DataLoader(rows, sampler=torch.utils.data.DistributedSampler(rows, 2, rank, shuffle=False))
    whole = prepare_data_loader(torch.utils.data.DataLoader(rows, batch_size=6), add_dist_sampler=False)
    batches = [batch["id"].tolist() for batch in loader]
    first = next(iter(loader))["pair"]
    train.report(
        {
            "batches": batches,
            "is_loader": isinstance(loader, torch.utils.data.DataLoader),
            "type": f"{type(first).__name__} of {type(first[1]).__name__}",
            "own": len(prepare_data_loader(own)),
            "whole": len(next(iter(whole))["id"]),
        }
    )


def test_loaders_give_each_worker_its_share(mode):
    assert (
        run(shares, train_loop_config={}).metrics.items()
        >= {
            "batches": [[0, 2], [4]],
            "is_loader": True,
            "type": "list of list",  # as PyTorch collates a tuple
            "own": 3,
            "whole": 6,
        }.items()
    )


def one_worker() -> None:
    model = prepare_model(network(seed=0))
    alone = prepare_model(network(seed=0), parallel_strategy=None)
    loader = prepare_data_loader(torch.utils.data.DataLoader(range(4)))
    train.report({"types": [type(model).__name__, type(alone).__name__], "rows": len(loader)})


def test_one_worker_needs_no_exchange(mode):
    assert run(one_worker, workers=1).metrics.items() >= {"types": ["Sequential"] * 2, "rows": 4}.items()


def in_a_group() -> None:
    group = torch.distributed
    total = torch.ones(2)
    group.all_reduce(total)
    train.report({"size": group.get_world_size(), "total": total.tolist(), "backend": group.get_backend()})


@pytest.mark.parametrize("init_method", ["env", "tcp"])
def test_real_workers_are_a_process_group(init_method):
    ray.init(mode="real", num_cpus=2)
    try:
        result = run(in_a_group, torch_config=TorchConfig(init_method=init_method))
    finally:
        ray.shutdown()
    assert result.metrics == {"size": 2, "total": [2.0, 2.0], "backend": "gloo"}


def test_a_step_of_a_simulation_takes_as_long_as_is_said(simulated):
    result = run(fit, train_loop_config={"rows": 4}, torch_config=TorchConfig(step_duration=lambda rows: rows / 10))
    assert result.metrics_dataframe.iloc[-1]["compute_s"] == pytest.approx(9 * 0.4)


def uneven() -> None:
    model = prepare_model(network(seed=0))
    if train.get_context().get_world_rank() == 0:
        train.report({"n": 1})
    model(torch.ones(2, 3)).sum().backward()
    train.report({"n": 2})


def test_workers_in_different_exchanges_are_told_so(simulated):
    with pytest.raises(TrainingFailedError):
        run(uneven)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: prepare_model(None, parallel_strategy="dp"), "'dp' must be 'ddp', 'fsdp' or None"),
        (lambda: prepare_model(torch.nn.Linear(1, 1), parallel_strategy="fsdp"), "works only with GPUs"),
    ],
)
def test_strategies_that_cannot_be_are_refused(simulated, call, words):
    def train_func():
        call()

    with pytest.raises(TrainingFailedError, match=words):
        run(train_func)


def test_outside_of_a_training_function_it_says_so():
    for call in (get_device, lambda: prepare_model(None), lambda: prepare_data_loader(None)):
        with pytest.raises(RuntimeError, match="works only in a training function"):
            call()


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="init_method='file' must be 'env' or 'tcp'"):
        TorchConfig(init_method="file")
    with pytest.raises(ValueError, match="step_duration=-1 must not be negative"):
        TorchConfig(step_duration=-1)
    assert TorchConfig("gloo", "tcp", 60) == TorchConfig(backend="gloo", init_method="tcp", timeout_s=60)


def test_without_workers_the_model_trains_in_this_process(mode):
    seen = []

    def loop():
        model = prepare_model(network(seed=0))
        loader = prepare_data_loader(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=8))
        seen.append((type(model), str(get_device()), len(list(loader))))
        train.report({"done": 1})

    assert run(loop, workers=0).metrics == {"done": 1}
    assert seen == [(torch.nn.Sequential, "cpu", ROWS // 8)]
