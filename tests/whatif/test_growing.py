"""Predictions for clusters that grow, held against runs of the same program on the same cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dualray
from dualray import runtime
from dualray.cli.app import app
from dualray.shared.scenario.file import parse_growth, parse_scenario
from dualray.testing.run import load_scenario, run_scenario
from dualray.whatif.growing import parse_prices, predict_growing, with_prices
from dualray.whatif.predict import load
from dualray.whatif.predicted import Trace

CLUSTER = "cluster: {cpus: 1, groups: {cpu: {max: 3, price: 3.6, start_up: 2s, paid_least: 1s%s}}}"
CONFIG = "config: {idle_timeout_ns: 5000000000}"


@dualray.remote
def piece(number: int) -> int:
    time.sleep(2)
    return number


@dualray.remote(num_cpus=1)
class Keeper:
    def add(self, number: int) -> int:
        time.sleep(0.5)
        return number


def bursts() -> None:
    for _ in range(3):
        dualray.get([piece.remote(number) for number in range(12)])
        time.sleep(20)


def actors() -> None:
    keepers: list[Any] = [Keeper.remote() for _ in range(3)]  # type: ignore[attr-defined]
    for _ in range(4):
        dualray.get([keeper.add.remote(1) for keeper in keepers])
    for keeper in keepers:
        dualray.kill(keeper)
    time.sleep(15)
    dualray.get([piece.remote(number) for number in range(4)])


def nested() -> None:
    @dualray.remote(num_cpus=0)
    def several(count: int) -> int:
        return sum(dualray.get([piece.remote(number) for number in range(count)]))

    dualray.get([several.remote(4), several.remote(6)])


PROGRAMS = [bursts, actors, nested]


def record(program: Any, path: Path) -> Trace:
    with dualray.init(mode="sim", num_cpus=4, record=path):
        program()
    return load(path)


def run(program: Any, text: str) -> tuple[float, dict[str, int]]:
    """What the program itself takes on a cluster that grows: seconds, and what the provider counts."""
    with dualray.init(mode="sim", scenario=parse_scenario(text, "grows.yaml")):
        running: Any = runtime.current("test")
        began_s = time.monotonic()
        program()
        return time.monotonic() - began_s, running.cluster.provider.counters()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_prediction_is_what_the_program_takes(program: Any, tmp_path: Path) -> None:
    """The simulation that executes and the replay decide alike: makespan within 10 %, as many launches, and nodes that
    are paid for as long."""
    trace = record(program, tmp_path / "run.parquet")
    growth = parse_growth(CLUSTER % "" + "\n" + CONFIG, "grows.yaml")
    (row,) = predict_growing(trace, growth, fixed=())
    took_s, counters = run(program, "name: a\nworkload: {function: a:b}\n" + CLUSTER % "" + "\n" + CONFIG)
    assert row.lacks == ""
    assert row.makespan_s == pytest.approx(took_s, rel=0.1)
    assert row.launched == counters["nodes_launched"]
    node_s = row.node_hours * 3600 - row.makespan_s  # node-0 is no node of a group
    assert node_s == pytest.approx(counters["node_seconds"], rel=0.1)
    assert row.cost == pytest.approx(node_s * 3.6 / 3600, rel=0.01)


def test_the_first_workers_of_launched_nodes_take_as_long_as_those_of_the_recorded_run(tmp_path: Path) -> None:
    """A node that has just joined loads Python and its libraries first. On a busy machine that takes seconds."""
    text = "name: a\nworkload: {function: a:b}\ncluster: {cpus: 4}\ncosts: {worker_start_ns: 1500000000}"
    with dualray.init(mode="sim", scenario=parse_scenario(text, "one.yaml"), record=tmp_path / "run.parquet"):
        bursts()
    trace = load(tmp_path / "run.parquet")
    growth = parse_growth(CLUSTER % "" + "\n" + CONFIG, "grows.yaml")
    (row,) = predict_growing(trace, growth, fixed=())
    took_s, counters = run(
        bursts, "name: a\nworkload: {function: a:b}\n" + CLUSTER % ", worker_start: 1.5s" + "\n" + CONFIG
    )
    assert row.makespan_s == pytest.approx(took_s, rel=0.02)
    assert row.node_hours * 3600 - row.makespan_s == pytest.approx(counters["node_seconds"], rel=0.02)
    (warm,) = predict_growing(trace, growth, cold_start=None, fixed=())
    assert warm.makespan_s < row.makespan_s - 1
    (said,) = predict_growing(trace, growth, cold_start="1500ms", fixed=())
    assert said.makespan_s == pytest.approx(row.makespan_s, abs=0.01)


def test_a_longer_idle_timeout_launches_less_and_fixed_clusters_stand_beside(tmp_path: Path) -> None:
    trace = record(bursts, tmp_path / "run.parquet")
    growth = parse_growth(CLUSTER % "" + "\n" + CONFIG, "grows.yaml")
    short, long, least, most = predict_growing(trace, growth, idle_timeouts=["5s", "1m"], seeds=2)
    assert (short.launched, long.launched) == (9, 3)
    assert short.waited_s > long.waited_s > 0
    assert most.makespan_s < long.makespan_s < short.makespan_s < least.makespan_s
    assert least.nodes_most == 1
    assert most.nodes_most == long.nodes_most == 4
    assert least.waited_s == most.waited_s == 0
    assert most.cost == pytest.approx(3 * 3.6 * most.makespan_s / 3600)


def test_a_program_that_no_group_can_run_says_why(tmp_path: Path) -> None:
    @dualray.remote(num_gpus=1)
    def on_gpu() -> None:
        """Needs one."""

    def program() -> None:
        dualray.get(on_gpu.remote())

    with dualray.init(mode="sim", num_cpus=1, num_gpus=1, record=tmp_path / "run.parquet"):
        program()
    trace = load(tmp_path / "run.parquet")
    (row,) = predict_growing(trace, parse_growth(CLUSTER % "" + "\n" + CONFIG, "grows.yaml"), fixed=())
    assert "on_gpu can never run" in row.lacks
    growth = parse_growth(CLUSTER % ", gpus: 1" + "\n" + CONFIG, "grows.yaml")
    (row,) = predict_growing(trace, growth, fixed=())
    assert row.lacks == ""
    assert row.launched == 1


def test_a_recorded_run_is_a_workload_of_a_scenario_that_grows(tmp_path: Path) -> None:
    record(bursts, tmp_path / "run.parquet")
    text = "name: a\nworkload: {trace: run.parquet}\nexpect: {counters: {nodes_launched: 9}}\n"
    (tmp_path / "a.yaml").write_text(text + CLUSTER % "" + "\n" + CONFIG)
    outcome = run_scenario(load_scenario(tmp_path / "a.yaml"), directory=tmp_path)
    assert outcome.error == ()
    assert outcome.counters["nodes_launched"] == 9


def test_prices_of_groups() -> None:
    assert parse_prices("cpu=0.40, gpu=2.80") == {"cpu": 0.4, "gpu": 2.8}
    growth = parse_growth(CLUSTER % "", "grows.yaml")
    assert with_prices(growth, {"cpu": 1.5}).cluster.scaling["cpu"].price == 1.5
    with pytest.raises(ValueError, match=r"the cluster has no group 'cpus'. Did you mean 'cpu'?"):
        with_prices(growth, {"cpus": 1.5})
    for wrong in ("0.4", "cpu=", "cpu=-1", "=3", "cpu=many"):
        with pytest.raises(ValueError, match="must be a group and the price of its nodes for an hour"):
            parse_prices(wrong)


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    record(bursts, tmp_path / "run.parquet")
    (tmp_path / "a.yaml").write_text(CLUSTER % "" + "\n" + CONFIG)
    words = ["predict", str(tmp_path / "run.parquet"), "--autoscale", str(tmp_path / "a.yaml"), "--seeds", "1"]
    ended = CliRunner().invoke(app, [*words, "--idle-timeout", "5s,1m", "--price", "cpu=36"], env={"COLUMNS": "120"})
    assert ended.exit_code == 0, ended.output
    assert "grows, 5s idle" in ended.output
    assert "fixed, max: 4" in ended.output
    for more, message in (
        (["--price", "0.4"], "'0.4' must be a group and the price of its nodes"),
        (["--idle-timeout", "soon"], "--idle-timeout: 'soon' is not understood"),
    ):
        refused = CliRunner().invoke(app, [*words, *more])
        assert refused.exit_code == 2
        assert message in refused.output
    refused = CliRunner().invoke(app, [*words[:2], "--idle-timeout", "1m"])
    assert "--idle-timeout needs --autoscale FILE" in refused.output
    refused = CliRunner().invoke(app, [*words[:2], "--price", "cpu=1"])
    assert "Prices of groups of nodes need --autoscale FILE" in refused.output
