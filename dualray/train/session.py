"""The training function's session: its rank, its share of the data, its first checkpoint, and `report`.

A worker process, real or virtual, has one session while the function runs. It is found by the process that asks, so
that threads of the function have it, too, and virtual workers, which share an interpreter, each have their own.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualray import api, runtime
from dualray.shared.handles import ProcessKey
from dualray.train.checkpoint import Checkpoint, Files, is_here, packed, unpacked
from dualray.train.ledger import Part, Report

if TYPE_CHECKING:
    from dualray.data import DataIterator


class CheckpointUploadMode(Enum):
    """The values of `report(checkpoint_upload_mode=)`, as in Ray."""

    ASYNC = "ASYNC"
    SYNC = "SYNC"
    NO_UPLOAD = "NO_UPLOAD"

    def default_delete_local_checkpoint_after_upload(self) -> bool:
        """Return whether `report` deletes the checkpoint's directory if nothing else is asked for."""
        return self is CheckpointUploadMode.ASYNC


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainContext:
    """The place of a worker in the training; see `get_context`."""

    world_size: int
    world_rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    experiment_name: str
    storage_path: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    """Of all workers, by rank."""

    def get_world_size(self) -> int:
        """Return the number of workers."""
        return self.world_size

    def get_world_rank(self) -> int:
        """Return the number of this worker, from 0."""
        return self.world_rank

    def get_local_rank(self) -> int:
        """Return the number of this worker among the workers of its node, from 0."""
        return self.local_rank

    def get_local_world_size(self) -> int:
        """Return the number of workers on this worker's node."""
        return self.local_world_size

    def get_node_rank(self) -> int:
        """Return the number of this worker's node among the nodes with workers, from 0."""
        return self.node_rank

    def get_experiment_name(self) -> str:
        """Return the name of the run."""
        return self.experiment_name

    def get_trial_name(self) -> str:
        """Return the name of the run. Each run is one trial."""
        return self.experiment_name

    def get_trial_dir(self) -> str:
        """Return the run's folder on the driver's machine."""
        return self.storage_path

    def get_metadata(self) -> dict[str, Any]:
        """Return the `metadata` of the trainer."""
        return dict(self.metadata)

    def get_dataset_shard(self, dataset_name: str | None = None) -> DataIterator:
        """Return this worker's share of a dataset: see `dualray.train.get_dataset_shard`."""
        return get_dataset_shard(dataset_name)


@dataclass(slots=True, kw_only=True)
class Session:
    """One run of the training function in one worker."""

    context: TrainContext
    ledger: Any
    """The handle of a Ledger; None with ScalingConfig(num_workers=0)."""
    shards: Mapping[str, Any]
    checkpoint: Checkpoint | None
    checkpoint_files: Files | None
    """Of `checkpoint`, which may be a directory of another machine."""
    modelled: dict[str, Any] = field(default_factory=dict)
    """What a simulation has counted instead of measured: columns of the next report."""
    virtual: Any = None
    """A framework's collectives, in sim mode."""
    _temporary: str = ""
    _opened: dict[str, Any] = field(default_factory=dict)

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, name: str | None = None) -> None:
        """See `dualray.train.report`."""
        [done] = api.get(self.ledger.report.remote(self.context.world_rank, self._part(metrics, checkpoint, name)))
        api.get(done)

    def _part(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, name: str | None) -> Part:
        """What this worker says in a report."""
        files = None
        if checkpoint is not None:
            with checkpoint.as_directory() as directory:
                files = packed(directory)
        return Part(
            metrics={metric: _plain(value) for metric, value in metrics.items()},
            checkpoint=files,
            checkpoint_name=name,
            modelled=dict(self.modelled),
        )

    def start_checkpoint(self) -> Checkpoint | None:
        """See `dualray.train.get_checkpoint`."""
        files = self.checkpoint_files
        if self.checkpoint is None or files is None or self._temporary:
            return self.checkpoint
        if not is_here(files, self.checkpoint.path):
            self._temporary = tempfile.mkdtemp(prefix="dualray-checkpoint-")
            unpacked(files, Path(self._temporary))
            self.checkpoint = Checkpoint(self._temporary)
        return self.checkpoint

    def shard(self, name: str) -> DataIterator:
        """See `dualray.train.get_dataset_shard`. TensorFlow's threads may iterate over it, in sim mode too."""
        if name not in self._opened:
            self._opened[name] = self.shards[name].for_other_threads()
        found: DataIterator = self._opened[name]
        return found

    def close(self) -> None:
        """Remove what it has made."""
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class LocalSession(Session):
    """The training function runs in the process that calls `fit`; `add` keeps a report."""

    add: Callable[[Report], None]
    _number: int = 0

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, name: str | None = None) -> None:
        """See `dualray.train.report`."""
        number, self._number = self._number, self._number + 1
        self.add(Report(number=number, parts=(self._part(metrics, checkpoint, name),)))


_sessions: weakref.WeakKeyDictionary[ProcessKey, Session] = weakref.WeakKeyDictionary()


def begin(session: Session) -> None:
    """This process trains."""
    _sessions[runtime.current("a training worker").verbs.key] = session


def end() -> None:
    """It trains no more."""
    _sessions.pop(runtime.current("a training worker").verbs.key).close()


def current_or_none() -> Session | None:
    """The session of this process, if it trains."""
    running = runtime.current_or_none()
    return None if running is None else _sessions.get(running.verbs.key)


def _current(what: str) -> Session:
    session = current_or_none()
    if session is None:
        raise RuntimeError(
            f"train.{what} was called outside a training function; call train.{what} only in the function that you "
            "give to a trainer"
        )
    return session


def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
) -> None:
    """Report metrics, and optionally a checkpoint, and wait until every worker has reported.

    The metrics of rank 0 count. dualray stores the checkpoint's files in the run's folder on the driver's machine. If
    several workers have files of the same name, the file of the lowest rank is kept. After the call you can delete the
    directory.

    Args:
        metrics: values by name.
        checkpoint: a checkpoint from `Checkpoint.from_directory`.
        checkpoint_dir_name: name of the checkpoint's folder in the run's folder. Default: "checkpoint_000000" and so
            on.
        checkpoint_upload_mode: accepted as in Ray. In each mode, `report` returns when the checkpoint is stored.
        delete_local_checkpoint_after_upload: whether to delete the checkpoint's directory in this worker then. Default:
            only with CheckpointUploadMode.ASYNC, as in Ray.

    Raises:
        TypeError: `metrics` is not a dict, or `checkpoint` is not a Checkpoint.
        ValueError: `checkpoint_dir_name` is not the name of a folder.
        RuntimeError: called outside a training function.
    """
    session = _current("report()")
    if checkpoint_dir_name is not None and Path(checkpoint_dir_name).name != checkpoint_dir_name:
        raise ValueError(f"train.report: checkpoint_dir_name={checkpoint_dir_name!r} must be the name of a folder")
    if not isinstance(metrics, Mapping):
        raise TypeError(f"train.report: metrics={metrics!r} must be a dict")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise TypeError(
            f"train.report: checkpoint={checkpoint!r} must be a Checkpoint: Checkpoint.from_directory(path)"
        )
    session.report(metrics, checkpoint, checkpoint_dir_name)
    deletes = delete_local_checkpoint_after_upload
    if deletes is None:
        deletes = checkpoint_upload_mode.default_delete_local_checkpoint_after_upload()
    if deletes and checkpoint is not None:
        shutil.rmtree(checkpoint.path, ignore_errors=True)


def get_context() -> TrainContext:
    """Return the place of this worker in the training: world size, ranks, name of the run.

    Raises:
        RuntimeError: called outside a training function.
    """
    return _current("get_context()").context


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint to continue from; None if there is none.

    It is the latest one after a failure, and at first the one that the trainer was given.

    Raises:
        RuntimeError: called outside a training function.
    """
    return _current("get_checkpoint()").start_checkpoint()


def get_dataset_shard(dataset_name: str | None = None) -> DataIterator:
    """Return this worker's share of a dataset of the trainer. All shares have the same number of rows.

    Args:
        dataset_name: name of the dataset in the trainer's `datasets=`. You can leave it out if there is only one.

    Raises:
        KeyError: the trainer has no such dataset.
        RuntimeError: called outside a training function.
    """
    session = _current("get_dataset_shard()")
    shards = session.shards
    if dataset_name is None and len(shards) == 1:
        [dataset_name] = shards
    if dataset_name is None or dataset_name not in shards:
        known = ", ".join(map(repr, shards)) or "none"
        raise KeyError(
            f"train.get_dataset_shard: the trainer has no dataset {dataset_name!r}; the datasets are: {known}"
        )
    return session.shard(dataset_name)


def _plain(value: Any) -> Any:
    """Numbers of numpy and TensorFlow as Python's own, so that who reads them needs neither."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    return value
