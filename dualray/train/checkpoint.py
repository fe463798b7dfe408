"""Checkpoint: a directory of files, and the way of its files from a worker to the driver and back.

A worker's files travel through the object store, one object a file, so that driver and workers need no file system in
common. The driver writes a checkpoint under a temporary name and renames it: a checkpoint is there whole, or not.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dualray import api

_METADATA = ".metadata.json"
_PREFIX = "dualray-checkpoint-"


class Checkpoint:
    """A directory with the state of a training run.

    Args:
        path: the directory.
        filesystem: accepted as in Ray, and must be None: the directory is on this machine.

    Raises:
        ValueError: another file system is given.
    """

    def __init__(self, path: str | Path, filesystem: Any = None) -> None:
        if filesystem is not None:
            raise ValueError(f"Checkpoint: filesystem={filesystem!r} must be None: checkpoints are local directories")
        self.path = str(Path(path).absolute())

    @classmethod
    def from_directory(cls, path: str | Path) -> Checkpoint:
        """Return the checkpoint in a directory, which is not copied.

        Raises:
            NotADirectoryError: the directory does not exist.
        """
        if not Path(path).is_dir():
            raise NotADirectoryError(f"Checkpoint.from_directory: {str(path)!r} is not a directory")
        return cls(path)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Return a context manager whose value is the path of the directory."""
        if not Path(self.path).is_dir():
            raise FileNotFoundError(
                f"{self!r} does not exist: somebody has removed this directory, or the directory is on another machine"
            )
        yield self.path

    def to_directory(self, path: str | Path | None = None) -> str:
        """Copy the files into a directory, by default a new temporary one, and return its path."""
        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix=_PREFIX))
        with self.as_directory() as source:
            shutil.copytree(source, target, dirs_exist_ok=True)
        return str(target)

    def get_metadata(self) -> dict[str, Any]:
        """Return what `set_metadata` stored; {} if nothing was stored."""
        file = Path(self.path) / _METADATA
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Store a dict with the checkpoint, as JSON, and replace the one before."""
        (Path(self.path) / _METADATA).write_text(json.dumps(dict(metadata)))

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Change some entries of the metadata."""
        self.set_metadata(self.get_metadata() | dict(metadata))

    def __repr__(self) -> str:
        return f"Checkpoint(filesystem=local, path={self.path})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)


Files = dict[str, tuple[int, Any]]
"""A directory on its way: by relative name, the bytes of each file and a reference to them."""


def packed(directory: str | Path) -> Files:
    """Put the files of a directory into the object store."""
    root = Path(directory)
    found: Files = {}
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        content = np.fromfile(file, np.uint8)
        found[str(file.relative_to(root))] = content.nbytes, api.put(content)
    return found


def unpacked(files: Files, directory: Path) -> None:
    """Write the files into a directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, (_, ref) in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        api.get(ref).tofile(target)


def is_here(files: Files, directory: str | Path) -> bool:
    """Whether a directory of this machine has files of the same names and sizes."""
    root = Path(directory)
    return root.is_dir() and all(
        (root / name).is_file() and (root / name).stat().st_size == size for name, (size, _) in files.items()
    )
