"""DataParallelTrainer: the same function in many workers, each on its own share of the data.

Theory of operation
-------------------
`fit` runs in the process that calls it. An attempt reserves a bundle for each worker in one placement group, so that
all of them can run or none, starts an actor in each and a ledger (ledger.py) beside them, and waits for two things: the
next complete report, which it writes to the run's folder and then releases, and the end of a worker.

When a worker has died, or its function has raised, the whole attempt is over: the others may wait for it, in a
collective that nobody else can end. Removing the placement group ends them. As long as `max_failures` allows, the next
attempt starts all workers anew with the latest checkpoint; reports after that one are forgotten, and made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from dualray import api
from dualray.exceptions import ActorError, DualrayError, PlacementGroupUnschedulableError, TaskError
from dualray.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from dualray.shared.model.resources import MEMORY
from dualray.train.backend import BackendConfig, Place
from dualray.train.checkpoint import Checkpoint, Files, packed
from dualray.train.config import CPU, GPU, DataConfig, RunConfig, ScalingConfig, TrainRunContext
from dualray.train.console import RunConsole
from dualray.train.ledger import Ledger, Report, Uneven
from dualray.train.result import Failure, Result, TrainingFailedError, WorkerGroupError
from dualray.train.session import LocalSession, TrainContext, begin, end
from dualray.train.storage import RunFolder
from dualray.train.worker import Assignment, TrainWorker, call_with, check_function
from dualray.util.node import get_node_ip_address
from dualray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

STORAGE = "dualray_results"
_OMP = "OMP_NUM_THREADS"
_END_S = 30.0
"""How long workers that were ended may take for it."""


class DataParallelTrainer:
    """Runs a function in `scaling_config.num_workers` workers.

    Args:
        train_loop_per_worker: the function; it takes `train_loop_config`, or nothing.
        train_loop_config: a dict for it.
        backend_config: what its framework needs. Default: nothing.
        scaling_config, run_config: see those.
        datasets: by name, for `train.get_dataset_shard`: what `dualray.data` makes.
        dataset_config: which of them are split. Default: all.
        resume_from_checkpoint: what `train.get_checkpoint` gives at first.
        metadata: a dict for `train.get_context().get_metadata()`.

    Raises:
        TypeError, ValueError: arguments that cannot be.
    """

    _backend_argument = "backend_config"
    """The name of this argument in the constructor."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        check_function(train_loop_per_worker)
        for what, value, wanted in (
            ("train_loop_config", train_loop_config, Mapping),
            ("backend_config", backend_config, BackendConfig),
            ("scaling_config", scaling_config, ScalingConfig),
            ("dataset_config", dataset_config, DataConfig),
            ("run_config", run_config, RunConfig),
            ("datasets", datasets, Mapping),
            ("metadata", metadata, Mapping),
            ("resume_from_checkpoint", resume_from_checkpoint, Checkpoint),
        ):
            if value is not None and not isinstance(value, wanted):
                raise TypeError(f"{type(self).__name__}: {what}={value!r} must be a {wanted.__name__}")
        self._function = train_loop_per_worker
        self._config = train_loop_config
        self._backend = backend_config or BackendConfig()
        self._scaling = scaling_config or ScalingConfig()
        self._run = run_config or RunConfig()
        self._data = dataset_config or DataConfig()
        self._datasets = dict(datasets or {})
        self._metadata = dict(metadata or {})
        self._start = resume_from_checkpoint
        self._folder: RunFolder | None = None

    @classmethod
    def can_restore(cls, path: str | Path) -> bool:
        """Whether there is a run in a folder that `restore` can go on with."""
        return RunFolder.is_one(path)

    @classmethod
    def restore(
        cls,
        path: str | Path,
        *,
        train_loop_per_worker: Callable[..., Any] | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        datasets: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> Self:
        """A trainer that goes on with the run in a folder, from its latest checkpoint; what is given replaces what the
        run was begun with. A run that had come to its end is only read.

        Args:
            path: `Result.path` of the run.
            datasets: to be given again when the run had some.

        Raises:
            ValueError: there is no run, or its datasets are missing.
        """
        if not cls.can_restore(path):
            raise ValueError(f"{cls.__name__}.restore: the directory {str(path)!r} has no run of this trainer")
        folder = RunFolder.open(Path(path).absolute())
        arguments = folder.read_trainer()
        names = arguments.pop("dataset_names")
        if set(names) != set(datasets or {}):
            raise ValueError(
                f"{cls.__name__}.restore: the run had the datasets {names}; give these datasets again with "
                f"datasets={{...}}"
            )
        given = {
            "train_loop_per_worker": train_loop_per_worker,
            "train_loop_config": train_loop_config,
            "scaling_config": scaling_config,
            "run_config": run_config,
            "datasets": datasets,
        }
        trainer = cls._from(arguments | {name: value for name, value in given.items() if value is not None})
        trainer._folder = folder
        return trainer

    @classmethod
    def _from(cls, arguments: Mapping[str, Any]) -> Self:
        given = dict(arguments)
        return cls(**{cls._backend_argument: given.pop("backend_config")}, **given)

    def _arguments(self) -> dict[str, Any]:
        return {
            "train_loop_per_worker": self._function,
            "train_loop_config": self._config,
            "backend_config": self._backend,
            "scaling_config": self._scaling,
            "dataset_config": self._data,
            "run_config": self._run,
            "metadata": self._metadata,
            "resume_from_checkpoint": self._start,
        }

    def fit(self) -> Result:
        """Train, and wait for the end. Without `init`, a cluster is started.

        Raises:
            TrainingFailedError: a worker has died, or the function has raised, more often than `max_failures`.
            PlacementGroupUnschedulableError: the cluster can never hold the workers.
            FileExistsError: there is a run of this name already.
        """
        if not api.is_initialized():
            api.init()
        run = self._new_run()
        if run.folder.is_finished:
            return run.result(None)
        console = run.console
        console.begins(self._scaling.num_workers, self._scaling.bundle, run.folder.path)
        sources = self._sources()
        while True:
            try:
                if self._scaling.num_workers:
                    self._attempt(run, sources)
                else:
                    self._train_here(run, sources)
            except (DualrayError, _UnevenReportsError) as error:
                if isinstance(error, PlacementGroupUnschedulableError) and not run.folder.history:
                    run.folder.remove()
                    raise
                failed = dict(run.worker_exceptions)
                goes_on = run.fail(error, self._run.failure_config.max_failures)
                if not goes_on:
                    result = run.result(error)
                    words = (
                        f"training {run.folder.path.name} failed {len(run.failures)} times, with "
                        f"max_failures={self._run.failure_config.max_failures}, after {len(result.history)} valid "
                        f"reports. Last error: {_text_of(error)}"
                    )
                    if failed:
                        raise WorkerGroupError(words, result, failed) from error
                    raise TrainingFailedError(words, result) from error
            else:
                run.folder.finish()
                result = run.result(None)
                console.ends(result)
                return result

    def _new_run(self) -> _Run:
        folder = self._folder or self._new_folder()
        return _Run(
            folder,
            TrainRunContext(
                run_id=folder.path.name,
                run_config=self._run,
                scaling_config=self._scaling,
                train_loop_config=self._config,
            ),
        )

    def _new_folder(self) -> RunFolder:
        storage = Path(self._run.storage_path or Path.home() / STORAGE).expanduser().absolute()
        name = self._run.name or f"{type(self).__name__}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        folder = RunFolder.make(storage, name, is_given=self._run.name is not None)
        folder.keep_trainer(self._arguments() | {"dataset_names": sorted(self._datasets)})
        return folder

    def _sources(self) -> dict[str, list[Any]]:
        """Of each dataset, what each worker gets. It is made before the workers hold their CPUs."""
        count = self._scaling.num_workers or 1
        return {
            name: dataset.shards(count) if self._data.splits(name) else dataset.shards(1) * count
            for name, dataset in self._datasets.items()
        }

    def _train_here(self, run: _Run, sources: Mapping[str, list[Any]]) -> None:
        """Run the function in this process."""
        here = Place(node=api.get_runtime_context().get_node_id(), ip_address=get_node_ip_address(), port=0)
        [context] = self._contexts(run.folder, [here])
        begin(
            LocalSession(
                context=context,
                ledger=None,
                shards={name: parts[0] for name, parts in sources.items()},
                checkpoint=run.folder.latest() or self._start,
                checkpoint_files=None,
                add=run.add,
            )
        )
        try:
            run.return_value = call_with(self._function, self._config)
        finally:
            end()

    # ---- An attempt ----

    def _attempt(self, run: _Run, sources: Mapping[str, list[Any]]) -> None:
        scaling = self._scaling
        group = placement_group([scaling.bundle] * scaling.num_workers, strategy=scaling.placement_strategy)
        ledger = None
        ends: dict[Any, int] = {}
        try:
            api.get(group.ready())
            here = NodeAffinitySchedulingStrategy(api.get_runtime_context().get_node_id(), soft=True)
            ledger = api.remote(Ledger).options(num_cpus=0, scheduling_strategy=here).remote(scaling.num_workers)
            workers = _workers(scaling, group)
            places = api.get([worker.place.remote() for worker in workers])
            workers, places = _by_node(workers, places)
            start = run.folder.latest() or self._start
            files = _files_for(start, places)
            payload = api.put((self._function, self._config))
            environments = self._environments(places)
            for rank, (worker, context) in enumerate(zip(workers, self._contexts(run.folder, places), strict=True)):
                assignment = Assignment(
                    context=context,
                    ledger=ledger,
                    environment=environments[rank],
                    backend=self._backend,
                    payload=[payload],
                    shards={name: parts[rank] for name, parts in sources.items()},
                    checkpoint=start,
                    checkpoint_files=files,
                )
                ends[worker.run.remote(assignment)] = rank
            _follow(run, ledger, ends)
        finally:
            remove_placement_group(group)
            if ledger is not None:
                api.kill(ledger)
            _see_ends(ends)

    def _environments(self, places: list[Place]) -> list[dict[str, str]]:
        threads = os.environ.get(_OMP) or str(max(1, int(self._scaling.bundle.get(CPU, 1))))
        return [{_OMP: threads, **mine} for mine in self._backend.environment(places)]

    def _contexts(self, folder: RunFolder, places: list[Place]) -> list[TrainContext]:
        nodes = list(dict.fromkeys(place.node for place in places))
        plain = TrainContext(
            world_size=len(places),
            world_rank=0,
            local_rank=0,
            local_world_size=0,
            node_rank=0,
            experiment_name=folder.path.name,
            storage_path=str(folder.path),
            metadata=self._metadata,
            nodes=tuple(place.node for place in places),
        )
        return [
            replace(
                plain,
                world_rank=rank,
                local_rank=sum(before.node == place.node for before in places[:rank]),
                local_world_size=sum(other.node == place.node for other in places),
                node_rank=nodes.index(place.node),
            )
            for rank, place in enumerate(places)
        ]


class _UnevenReportsError(Exception):
    """Workers do not report together."""


class _Run:
    """One run, over all its attempts, of this process."""

    def __init__(self, folder: RunFolder, context: TrainRunContext) -> None:
        self.folder = folder
        self.context = context
        self.config = context.run_config
        self.console = RunConsole(folder.path.name, self.config.verbose)
        self.return_value: Any = None
        self.worker_exceptions: dict[int, Exception] = {}
        """Of the attempt that fails now, by rank."""
        self.failures: list[Failure] = []
        self._began_s = time.monotonic()
        self._before_s = folder.history[-1]["time_total_s"] if folder.history else 0.0
        self._stored_s = self._began_s
        folder.go_back()

    def add(self, report: Report) -> None:
        """Keep a report."""
        metrics = report.parts[0].metrics
        row = {
            "metrics": dict(metrics),
            "training_iteration": len(self.folder.history) + 1,
            "time_total_s": self._before_s + time.monotonic() - self._began_s,
            "attempt": len(self.failures),
            **report.parts[0].modelled,
        }
        files = _merged(report)
        name = next((part.checkpoint_name for part in report.parts if part.checkpoint is not None), None)
        self.folder.add(row, files, self.config.checkpoint_config, name)
        if files is not None:
            self._stored_s = time.monotonic()
        self.console.report(row, metrics)
        checkpoint = None if files is None else self.folder.latest()
        for callback in self.config.callbacks or ():
            callback.after_report(self.context, [dict(part.metrics) for part in report.parts], checkpoint)

    def fail(self, error: Exception, failures_max: int) -> bool:
        """An attempt has failed; whether there is another one."""
        exceptions, self.worker_exceptions = self.worker_exceptions, {}
        if exceptions:
            for callback in self.config.callbacks or ():
                callback.after_exception(self.context, dict(exceptions))
        iteration = len(self.folder.history)
        goes_on = failures_max < 0 or len(self.failures) < failures_max
        failure = Failure(
            error=_text_of(error),
            iteration=iteration,
            resumed_from=self.folder.go_back() if goes_on else (self.folder.kept or [0])[-1],
            lost_s=time.monotonic() - self._stored_s,
        )
        self.failures.append(failure)
        self.console.fails(failure, goes_on)
        if goes_on:
            self._stored_s = time.monotonic()
        return goes_on

    def result(self, error: BaseException | None) -> Result:
        found = Result.of(self.folder, self.config.checkpoint_config)
        return replace(found, error=error, failures=tuple(self.failures), return_value=self.return_value)


def _follow(run: _Run, ledger: Any, ends: dict[Any, int]) -> None:
    """Keep reports until all workers have come to their ends."""
    [coming] = api.get(ledger.next.remote())
    while ends:
        [ready, *_], _ = api.wait([coming, *ends], num_returns=1)
        if ready in ends:
            rank = ends[ready]
            try:
                returned = api.get(ready)
                if rank == 0:
                    run.return_value = returned
            except ActorError as error:
                run.worker_exceptions[rank] = error
                raise
            except TaskError as error:
                cause = error.cause
                run.worker_exceptions[rank] = cause if isinstance(cause, Exception) else error
                _raise_if_one_has_died(ends)
                raise
            del ends[ready]
            if ends:
                api.get(ledger.ended.remote(rank))
            continue
        match api.get(coming):
            case Report() as report:
                run.add(report)
                ledger.release.remote(report.number)
                del report  # with it go the references to the files
                [coming] = api.get(ledger.next.remote())
            case Uneven(exchanging=(_, *_)) as uneven:
                raise _UnevenReportsError(
                    f"after {uneven.number} reports, workers {list(uneven.waiting)} wait in train.report(), but "
                    f"workers {list(uneven.exchanging)} wait in a collective operation. All workers must report "
                    "and train equally often"
                )
            case Uneven() as uneven:
                raise _UnevenReportsError(
                    f"after {uneven.number} reports, workers {list(uneven.waiting)} wait in train.report() or in a "
                    f"collective operation, but workers {list(uneven.ended)} have ended. All workers must report and "
                    "train equally often"
                )


def _raise_if_one_has_died(ends: Mapping[Any, int]) -> None:
    """Where one has died, others fail because of that: its death is the story to tell."""
    ready, _ = api.wait(list(ends), num_returns=len(ends), timeout=0)
    for ref in ready:
        try:
            api.get(ref)
        except ActorError:
            raise
        except TaskError:
            continue


def _see_ends(ends: Mapping[Any, int]) -> None:
    """Those that an attempt's end has ended are gone, and what became of them is nobody's news."""
    api.wait(list(ends), num_returns=len(ends), timeout=_END_S) if ends else None
    for ref in ends:
        with suppress(DualrayError):
            api.get(ref, timeout=0)


def _workers(scaling: ScalingConfig, group: PlacementGroup) -> list[Any]:
    bundle = scaling.bundle
    custom = {name: amount for name, amount in bundle.items() if name not in (CPU, GPU, MEMORY)}
    worker = api.remote(TrainWorker)
    return [
        worker.options(
            num_cpus=bundle.get(CPU, 0),
            num_gpus=bundle.get(GPU, 0),
            memory=bundle.get(MEMORY),
            resources=custom,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
        ).remote()
        for index in range(scaling.num_workers)
    ]


def _by_node(workers: list[Any], places: list[Place]) -> tuple[list[Any], list[Place]]:
    """Neighbours in rank are on one node."""
    nodes = list(dict.fromkeys(place.node for place in places))
    order = sorted(range(len(places)), key=lambda index: nodes.index(places[index].node))
    return [workers[index] for index in order], [places[index] for index in order]


def _files_for(checkpoint: Checkpoint | None, places: list[Place]) -> Files | None:
    """Its files, where a worker is on another machine, which may not see the directory."""
    if checkpoint is None or all(place.is_virtual or place.ip_address == get_node_ip_address() for place in places):
        return None
    with checkpoint.as_directory() as directory:
        return packed(directory)


def _merged(report: Report) -> Files | None:
    """The files of all workers' checkpoints; of one name, that of the lowest rank."""
    found = [part.checkpoint for part in report.parts if part.checkpoint is not None]
    if not found:
        return None
    return {name: entry for files in reversed(found) for name, entry in files.items()}


def _text_of(error: BaseException) -> str:
    """The first line that says what has happened."""
    cause = error.cause if isinstance(error, TaskError) and error.cause is not None else error
    return f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"
