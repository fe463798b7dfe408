"""Predictions: a recorded run, replayed on every cluster of a sweep, with repeated seeds.

Seed 0 replays each task with the time that it took. Each further seed draws the times anew, from what the tasks like it
took in the recorded run (durations.py says which those are): a distribution, and not a mean. It also draws the costs
from what the calibration leaves open. The interval of a row is made of that and of the model's own errors
(intervals.py). No prediction is below what no run can beat (bounds.py).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from dualray.recording.calibration import Calibration, load_calibration
from dualray.recording.file import read_record_file
from dualray.recording.graph import Graph, graph_of
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_named
from dualray.shared.model.resources import CPU, GPU
from dualray.shared.scenario.fault_model import Fault
from dualray.shared.units import parse_time_ns
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.network.topologies import Nic
from dualray.sim.processes.node import Hardware
from dualray.sim.replay.replay import ReplayCluster
from dualray.sim.replay.replayed import Replayed
from dualray.whatif.bounds import least_ns
from dualray.whatif.compare import Help, of_configuration, ranked, single_changes
from dualray.whatif.configurations import Configuration, configurations, faults_of, placement_path
from dualray.whatif.durations import Durations, own_durations
from dualray.whatif.intervals import Posterior, interval_of, outside_of, posterior_of
from dualray.whatif.predicted import Predicted, Prices, Row, Trace, own_configuration
from dualray.whatif.spot import is_spot, load_spot

SEEDS = 3
Changes: TypeAlias = Sequence[tuple[str, Configuration]]
_DATA_OF_WIRE = 1448 / 1514
"""Of what a network carries, what is data: TCP over IPv4 in Ethernet frames of 1500 bytes."""
NS_PER_HOUR = 3_600 * 10**9


class Prediction(Predicted):
    """What `predict` returns."""

    __slots__ = ()

    def write_page(self, path: str | Path, *, deadline: str | None = None, probability: float = 0.9) -> None:
        """Write one HTML page, which needs no network."""
        from dualray.whatif.page import write_page  # noqa: PLC0415 - plotly takes half a second to import

        write_page(self, Path(path), deadline=deadline, probability=probability)


def what_would_help(
    prediction: Predicted, base: Configuration, *, jobs: int | None = None, changes: Changes | None = None
) -> list[Help]:
    """Single changes of a cluster, ranked by what they gain: each is replayed with the seeds of the prediction.

    Args:
        base: one of the prediction's clusters.
        jobs: processes at once; default: as many as there are cores.
        changes: what to try, in words and as a cluster each; default: `single_changes`.

    Raises:
        ValueError: the program cannot run on `base`, or the prediction does not have it.
    """
    before = of_configuration(prediction.runs, base)
    if not before:
        raise ValueError(f"{base.words} is not one of the configurations of this prediction")
    lacks = next((replayed.failed for replayed in before if replayed.failed), "")
    if lacks:
        raise ValueError(
            f"the program cannot run on {base.words}, so dualray cannot compare other clusters with {base.words}: "
            f"{lacks}"
        )
    asked = single_changes(base) if changes is None else changes
    pieces: list[_Piece] = [(config, seed) for seed in range(len(before)) for _, config in asked]
    runs = [(base, seed, replayed) for seed, replayed in enumerate(before)]
    runs += [(config, seed, replayed) for config, seed, replayed in _all(prediction.job, pieces, jobs) if config]

    def cost_of(config: Configuration, makespan_s: float) -> float | None:
        return _cost(config, prediction.prices, [makespan_s] * len(before))

    return ranked(base, asked, runs, cost_of)


def _cost(config: Configuration, prices: Prices, times_s: Sequence[float]) -> float | None:
    """Of a run, the median over the seeds, which took so long each; None: nobody knows the prices."""
    if prices.node is None:
        return None
    of_gpus = config.gpus * prices.gpu
    on_spot = is_spot(config.faults)
    first = (prices.node + of_gpus) * median(times_s) / 3600
    trace = load_spot(config.faults) if on_spot and prices.spot is None else None
    if trace is not None and trace.prices:
        others = [trace.cost(config.nodes, seed, round(took_s * 1e9)) for seed, took_s in enumerate(times_s)]
        return first + median(others) + (config.nodes - 1) * of_gpus * median(times_s) / 3600
    spot = prices.spot if prices.spot is not None and on_spot else prices.node
    return first + (config.nodes - 1) * (spot + of_gpus) * median(times_s) / 3600


def load(path: str | Path) -> Trace:
    """Load a recorded run.

    Raises:
        ValueError: the file is no recorded run, of another version, or was cut off.
    """
    with _paused_gc():
        return Trace(Path(path), graph_of(read_record_file(Path(path))))


def predict(
    trace: Trace | str | Path,
    configs: Sequence[Configuration] | None = None,
    *,
    seeds: int = SEEDS,
    jobs: int | None = None,
    price: float | None = None,
    gpu_price: float = 0.0,
    spot_price: float | None = None,
    calibration: Calibration | str | Path | None = None,
    costs: Mapping[str, str | int] | None = None,
    cores: float | None = None,
    host_cores: float | None = None,
    cold_start: str | float | None = None,
    strict: bool = False,
    on_done: Callable[[int, int], object] = lambda done, total: None,
    **asked: Any,
) -> Prediction:
    """Replay a recorded run on clusters.

    Args:
        trace: a recorded run, or its file.
        configs: the clusters; or give lists by name, as `configurations` takes them (`nodes=[1, 2, 4]`); what is not
            given is as it was recorded.
        seeds: how often each is replayed; the first time with the recorded times, then with drawn ones.
        jobs: processes at once; default: as many as there are cores. 1 stays in this process.
        price, gpu_price: of a node for an hour, and of each of its GPUs on top.
        spot_price: of a spot machine for an hour; default: as of any node.
        calibration: what was measured of the machines in question, or its file (recording/calibration.py).
        costs: parameters of the cost model that take precedence.
        cores: physical cores of each node, when these are fewer than its CPUs.
        host_cores: physical cores of the one machine that all nodes share, when they are containers of it.
        cold_start: when the cluster starts with the program: how long its first workers take to be there ("300ms", or
            seconds), or "recorded": as long as in the record; None: the cluster is there already.
        strict: refuse what lies outside of what was calibrated.
        on_done: called with how many replays are done, and how many there are.

    Raises:
        ValueError: something that cannot be; the message names it.
    """
    if not isinstance(trace, Trace):
        trace = load(trace)
    if isinstance(calibration, str | Path):
        calibration = load_calibration(Path(calibration))
    if seeds < 1:
        raise ValueError(f"seeds={seeds} must be at least 1")
    if configs is None:
        own = trace.own
        asked.setdefault("cpus", [own.cpus])
        asked.setdefault("gpus", [own.gpus])
        asked.setdefault("store", [own.store_bytes])
        configs = configurations(**asked)
    elif asked:
        raise TypeError(f"give either configs or {', '.join(asked)}, not both")
    cost_model = CostModel()
    if calibration is not None:
        cost_model = cost_model.with_changes(calibration.costs, "calibration")
    cost_model = cost_model.with_changes(costs or {}, "costs")
    cold_ns = cold_start_ns(cold_start, trace.graph)
    posterior = posterior_of(cost_model, calibration, costs or {})
    outside = _outside(configs, trace.graph, calibration, host_cores)
    if strict:
        _refuse_outside(outside, calibration)
    draws = Durations(trace.graph) if seeds > 1 else None
    job = _Job(trace.graph, posterior, cores, host_cores, cold_ns, draws)
    # Those that are replayed once more come last, so that a sweep which is broken off has seen each cluster.
    pieces: list[_Piece] = [(config, seed) for seed in range(seeds) for config in configs]
    if trace.graph.facts.get("mode") in ("real", "ray") and trace.graph.facts.get("cores"):
        pieces.append((None, 0))
    results: dict[_Piece, Replayed] = {}
    for config, seed, replayed in _all(job, pieces, jobs):
        results[config, seed] = replayed
        on_done(len(results), len(pieces))
    least_s = least_ns(trace.graph) / 1e9
    noise = _noise_of(calibration)
    prices = Prices(price, gpu_price, spot_price)
    terms = _Terms(least_s, noise, prices)
    rows = [
        _row(config, [results[config, seed] for seed in range(seeds)], terms, outside.get(config, ()))
        for config in configs
    ]
    runs = [(config, seed, results[config, seed]) for config, seed in pieces if config is not None]
    check = results.get((None, 0))
    return Prediction(
        trace=trace,
        rows=rows,
        runs=runs,
        calibration=calibration,
        job=job,
        check_s=check.makespan_ns / 1e9 if check is not None and not check.failed else None,
        cold_start_s=cold_ns / 1e9,
        prices=prices,
    )


def _noise_of(calibration: Calibration | None) -> float:
    """By how much intervals are wider for what was calibrated. Ray is modelled by dualray's own machines: what that
    leaves open is the error of what was held out."""
    if calibration is None:
        return 0.0
    return max(calibration.noise, (calibration.error or 0.0) if calibration.engine == "ray" else 0.0)


def cold_start_ns(asked: str | float | None, graph: Graph) -> int:
    """How long the first workers of a node take to be there; `asked` None: that is not counted.

    Raises:
        ValueError: it is no time.
    """
    if asked is None:
        return 0
    if asked == "recorded":
        return graph.cold_start_ns
    ns = parse_time_ns(asked, "cold_start") if isinstance(asked, str) else round(asked * 1e9)
    if ns < 0:
        raise ValueError(f"cold_start={asked!r} must not be negative")
    return ns


def _outside(
    configs: Sequence[Configuration], graph: Graph, calibration: Calibration | None, host_cores: float | None
) -> dict[Configuration, tuple[str, ...]]:
    """Of each configuration, why it lies outside of what was calibrated."""
    if calibration is None:
        return {}
    return {config: outside_of(config, graph, calibration, host_cores) for config in configs}


def _refuse_outside(outside: Mapping[Configuration, tuple[str, ...]], calibration: Calibration | None) -> None:
    if calibration is None:
        raise ValueError(
            "strict=True needs a calibration; measure this machine with `dualray calibrate`, and pass the "
            "calibration file"
        )
    for config, reasons in outside.items():
        if reasons:
            raise ValueError(f"strict: {config.words} is outside the calibrated range: {reasons[0]}")


@dataclass(frozen=True, slots=True)
class _Terms:
    """What all rows of a sweep share."""

    least_s: float
    noise: float
    prices: Prices


def _row(config: Configuration, replays: Sequence[Replayed], terms: _Terms, outside: tuple[str, ...]) -> Row:
    lacks = next((replayed.failed for replayed in replays if replayed.failed), "")
    least_s = 0.0 if lacks else terms.least_s
    times_s = [max(replayed.makespan_ns / 1e9, least_s) for replayed in replays]
    makespan_s = median(times_s)
    low_s, high_s = interval_of(
        makespan_s, times_s, nodes=config.nodes, noise=terms.noise, outside=len(outside), least_s=least_s
    )
    return Row(
        configuration=config,
        makespan_s=makespan_s,
        low_s=low_s,
        high_s=high_s,
        utilisation=median(it.busy_ns / it.cpu_ns if it.cpu_ns else 0.0 for it in replays),
        moved_bytes=int(median(it.moved_bytes for it in replays)),
        spilled_bytes=int(median(it.spilled_bytes for it in replays)),
        evictions=int(median(it.evictions for it in replays)),
        remade_s=median(it.lost_ns for it in replays) / 1e9,
        attempts=int(median(it.attempts for it in replays)),
        store_peak_bytes=int(median(it.store_peak_bytes for it in replays)),
        heap_peak_bytes=int(median(it.heap_peak_bytes for it in replays)),
        killed=tuple(replays[0].killed),
        cost=None if lacks else _cost(config, terms.prices, times_s),
        lacks=lacks,
        outside=outside,
    )


# ---- Replays -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Job:
    """What all replays of a sweep share."""

    graph: Graph
    posterior: Posterior
    cores: float | None
    host_cores: float | None
    cold_start_ns: int
    draws: Durations | None = None
    """None: nothing is drawn."""

    def replay_own(self) -> Replayed:
        """On the cluster on which it was recorded: with its cores, and its cold start."""
        own = replace(self, host_cores=float(self.graph.facts.get("cores", 1)), cold_start_ns=self.graph.cold_start_ns)
        return own.replay(own_configuration(self.graph), 0)

    def replay(self, config: Configuration, seed: int, **more: Any) -> Replayed:
        """One replay."""
        first = next(iter(self.graph.facts["nodes"].values()))
        total = parse_named({**first["resources"], CPU: config.cpus, GPU: config.gpus})
        nic = Nic(
            bytes_per_s=max(1, round(config.network_bytes_per_s * _DATA_OF_WIRE)), latency_ns=config.latency_ns // 2
        )
        limits = Config(
            placement_policy=placement_path(config.policy),
            eviction_policy=config.eviction,
            inline_bytes_max=self.graph.inline_bytes_max,
        )
        cost_model, slowdown = self.posterior.drawn(seed)
        try:
            faults = _faults(config, seed)
        except ValueError as error:  # so many spot machines could never be had
            return Replayed(failed=str(error))
        cluster = ReplayCluster(
            self.graph,
            config=limits,
            cost_model=replace(cost_model, nic_bytes_per_s=nic.bytes_per_s, nic_latency_ns=nic.latency_ns),
            seed=seed,
            hardware=[Hardware(total=total, store_bytes=config.store_bytes, nic=nic, memory_bytes=config.memory_bytes)]
            * config.nodes,
            scale_of=self.draws.scale_of(seed) if self.draws is not None else own_durations,
            cores=self.cores,
            host_cores=self.host_cores,
            slowdown=slowdown,
            cold_start_ns=self.cold_start_ns,
            faults=faults,
            **more,
        )
        try:
            return cluster.run()
        except ValueError as error:  # a fault names a node that this cluster does not have
            return Replayed(failed=str(error))
        except Exception as error:
            own = [name for name in (config.policy, config.eviction) if ":" in name]
            if not own:
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return Replayed(failed=f"with the policy {' and '.join(own)} the replay has failed at {where}: {what}")


def _faults(config: Configuration, seed: int) -> tuple[Fault, ...]:
    if is_spot(config.faults):
        return load_spot(config.faults).faults(config.nodes, seed)
    return faults_of(config.faults) if config.faults else ()


_Piece: TypeAlias = tuple[Configuration | None, int]
"""A configuration, or None for the recorded cluster, and a seed."""


def _all(job: _Job, pieces: Sequence[_Piece], jobs: int | None) -> Iterator[tuple[Configuration | None, int, Replayed]]:
    """Replay all, in whatever order they end."""
    jobs = min(jobs or _cores(), len(pieces))
    if jobs <= 1:
        for config, seed in pieces:
            yield config, seed, _without_gc(job, config, seed)
        return
    # A forked process has the graph already; elsewhere it is sent.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() and sys.platform == "linux" else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(job,)) as pool:
        # The largest first: what runs alone at the end is short.
        nodes = [config.nodes if config is not None else 1 for config, _ in pieces]
        order = sorted(range(len(pieces)), key=lambda index: (pieces[index][1], -nodes[index]))
        waiting: set[Future[tuple[int, Replayed]]] = {pool.submit(_perform, index, *pieces[index]) for index in order}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                index, replayed = future.result()
                yield *pieces[index], replayed


_job: list[_Job] = []
"""Of a process of the pool: what it replays."""


def _begin(job: _Job) -> None:
    _job[:] = [job]
    sys.path[:0] = [""] if "" not in sys.path else []
    gc.freeze()


def _perform(index: int, config: Configuration | None, seed: int) -> tuple[int, Replayed]:
    return index, _without_gc(_job[0], config, seed)


def _without_gc(job: _Job, config: Configuration | None, seed: int) -> Replayed:
    """A replay makes millions of objects that refer to each other little: what is left goes at its end."""
    try:
        with _paused_gc():
            return job.replay_own() if config is None else job.replay(config, seed)
    finally:
        gc.collect()


@contextmanager
def _paused_gc() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_list(values: Iterable[Any]) -> list[Any]:
    """Values of an option, without doubles, in order."""
    return list(dict.fromkeys(values))
