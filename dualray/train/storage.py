"""The folder of a run, on the driver's machine: its log, its checkpoints, and what `restore` needs.

    NAME/
        result.json           a line for each report, of all attempts
        state.json            the reports that stand, and which checkpoint was stored with which; replaced as a whole
        trainer.pkl           the trainer: function, config, scaling
        checkpoint_000000/    the first checkpoint, as the training function wrote it

State and checkpoints are written under another name and renamed, in this order: checkpoint, state. So what `state.json`
names is there, and a folder can be restored after its driver was killed at any moment.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from dualray.train.checkpoint import Checkpoint, Files, unpacked
from dualray.train.config import CheckpointConfig

_LOG = "result.json"
_STATE = "state.json"
_TRAINER = "trainer.pkl"

Row = dict[str, Any]


class RunFolder:
    """See the module. `history` has the rows of the reports that stand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history: list[Row] = []
        self.is_finished = False
        self.kept: list[int] = []
        """The iterations of the checkpoints that are there, in order."""
        self._stored = 0

    @classmethod
    def make(cls, storage: Path, name: str, *, is_given: bool) -> RunFolder:
        """A new folder. A name that nobody has given gets a number when it is taken.

        Raises:
            FileExistsError: the name was given, and its folder is there.
        """
        storage.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = storage / (name if number == 1 else f"{name}_{number}")
            try:
                path.mkdir()
                return cls(path)
            except FileExistsError:
                if is_given:
                    raise FileExistsError(
                        f"the directory {path} already has a run. Choose another RunConfig(name=...), or continue "
                        f"that run with Trainer.restore({str(path)!r})"
                    ) from None
            number += 1

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder as its last state says."""
        folder = cls(path)
        state = json.loads((path / _STATE).read_text())
        folder.history, folder.kept = state["history"], state["checkpoints"]
        folder.is_finished, folder._stored = state["is_finished"], state["stored"]
        return folder

    @classmethod
    def is_one(cls, path: str | Path) -> bool:
        """Whether a run can be restored from here."""
        return all((Path(path) / name).is_file() for name in (_STATE, _TRAINER))

    def keep_trainer(self, arguments: Mapping[str, Any]) -> None:
        """For `restore`."""
        _replace(self.path / _TRAINER, cloudpickle.dumps(dict(arguments)))
        self._save()

    def read_trainer(self) -> dict[str, Any]:
        """What `keep_trainer` has kept."""
        arguments: dict[str, Any] = cloudpickle.loads((self.path / _TRAINER).read_bytes())
        return arguments

    # ---- Reports ----

    def add(self, row: Row, files: Files | None, config: CheckpointConfig, given: str | None = None) -> None:
        """A report: its metrics and its own columns, and the files of its checkpoint, whose folder may have a name.

        Raises:
            FileExistsError: the name is that of another checkpoint of the run.
        """
        row["checkpoint_dir_name"] = None
        if files is not None:
            name = given or f"checkpoint_{self._stored:06d}"
            if (self.path / name).exists():
                raise FileExistsError(
                    f"train.report: checkpoint_dir_name={name!r} is the name of an earlier checkpoint in {self.path}; "
                    "give each checkpoint of a run another name"
                )
            pending = self.path / f".{name}"
            unpacked(files, pending)
            pending.rename(self.path / name)
            self._stored += 1
            self.kept.append(row["training_iteration"])
            row["checkpoint_dir_name"] = name
        self.history.append(row)
        with (self.path / _LOG).open("a") as log:
            log.write(json.dumps(flat(row), default=str) + "\n")
        superfluous = self._superfluous(config)
        self.kept = [each for each in self.kept if each not in superfluous]
        self._save()
        for iteration in superfluous:
            shutil.rmtree(self._directory(iteration))

    def go_back(self) -> int:
        """Forget the reports after the last checkpoint; how many stand."""
        standing = self.kept[-1] if self.kept else 0
        del self.history[standing:]
        return standing

    def remove(self) -> None:
        """It was never used."""
        shutil.rmtree(self.path)

    def finish(self) -> None:
        """The run has come to its end."""
        self.is_finished = True
        self._save()

    # ---- Checkpoints ----

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint."""
        return Checkpoint(self._directory(self.kept[-1])) if self.kept else None

    def best(self, config: CheckpointConfig) -> list[int]:
        """The iterations of the checkpoints that are kept, best first where there is a score, else in order."""
        attribute = config.checkpoint_score_attribute
        if attribute is None:
            return list(self.kept)
        for iteration in self.kept:
            if attribute not in self._row(iteration)["metrics"]:
                raise KeyError(
                    f"CheckpointConfig: checkpoint_score_attribute={attribute!r} is not among the metrics of report "
                    f"{iteration}: {', '.join(map(repr, self._row(iteration)['metrics']))}"
                )
        sign = -1 if config.checkpoint_score_order == "max" else 1
        return sorted(self.kept, key=lambda iteration: (sign * self._row(iteration)["metrics"][attribute], -iteration))

    def checkpoint(self, iteration: int) -> Checkpoint:
        """The one that was reported then."""
        return Checkpoint(self._directory(iteration))

    def _superfluous(self, config: CheckpointConfig) -> list[int]:
        count = config.num_to_keep
        if count is None or len(self.kept) <= count:
            return []
        ranked = self.best(config)
        kept = ranked[:count] if config.checkpoint_score_attribute is not None else ranked[-count:]
        return [iteration for iteration in self.kept[:-1] if iteration not in kept]

    def _row(self, iteration: int) -> Row:
        return self.history[iteration - 1]

    def _directory(self, iteration: int) -> Path:
        name: str = self._row(iteration)["checkpoint_dir_name"]
        return self.path / name

    def _save(self) -> None:
        state = {
            "history": self.history,
            "checkpoints": self.kept,
            "stored": self._stored,
            "is_finished": self.is_finished,
        }
        _replace(self.path / _STATE, json.dumps(state, default=str).encode())


def flat(row: Row) -> Row:
    """The metrics of a report beside its own columns."""
    metrics: Row = row["metrics"]
    return metrics | {name: value for name, value in row.items() if name != "metrics"}


def _replace(file: Path, content: bytes) -> None:
    pending = file.with_name(f".{file.name}.{os.getpid()}")
    pending.write_bytes(content)
    pending.rename(file)
