"""Images of handwritten digits: MNIST from files by path, or the real digits that scikit-learn ships.

Stands in for `tensorflow.examples.tutorials.mnist.input_data`, which TensorFlow 2 has no more, and downloads nothing.
MNIST's four files are in the IDX format (http://yann.lecun.com/exdb/mnist/), as they are or gzipped:

    train-images-idx3-ubyte   train-labels-idx1-ubyte   t10k-images-idx3-ubyte   t10k-labels-idx1-ubyte
"""

from __future__ import annotations

import gzip
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
_UNSIGNED_BYTE = 8  # the type code of IDX files that hold bytes
_VALIDATION_SIZE = 5000
_HELD_OUT = 360


@dataclass(slots=True)
class DataSet:
    """Images and their labels, and batches of them.

    Attributes:
        images: float32 between 0 and 1, of the shape (count, pixels).
        labels: the digits as int64, of the shape (count,); with one_hot float32 of the shape (count, 10).
        seed: of the order in which `next_batch` goes through them.
    """

    images: NDArray[np.float32]
    labels: NDArray[Any]
    seed: int = 0
    epochs_completed: int = 0
    _order: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp), repr=False)
    _position: int = 0

    @property
    def num_examples(self) -> int:
        """How many images there are."""
        return len(self.images)

    def next_batch(self, batch_size: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """The next images and labels; the order is another one in each round.

        Raises:
            ValueError: more than there are.
        """
        if not 1 <= batch_size <= self.num_examples:
            raise ValueError(f"batch_size={batch_size} must be between 1 and the number of images, {self.num_examples}")
        if not len(self._order):
            self._shuffle()
        elif self._position + batch_size > self.num_examples:
            self.epochs_completed += 1
            self._shuffle()
        rows = self._order[self._position : self._position + batch_size]
        self._position += batch_size
        return self.images[rows], self.labels[rows]

    def _shuffle(self) -> None:
        self._order = np.random.default_rng((self.seed, self.epochs_completed)).permutation(self.num_examples)
        self._position = 0


@dataclass(frozen=True, slots=True)
class Datasets:
    """What is for training, for choosing between models, and for judging them."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: str | Path, one_hot: bool = False, validation_size: int = _VALIDATION_SIZE, seed: int = 0
) -> Datasets:
    """MNIST, or other images in files of the same names and format.

    Args:
        train_dir: the directory with the four files.
        one_hot: labels as rows of a 1 among zeros.
        validation_size: how many of the training images are for validation; of few images at most a sixth.
        seed: of the order of batches.

    Raises:
        FileNotFoundError: a file is missing; the message has its name.
        ValueError: a file is not of the IDX format, or images and labels are not of one number.
    """
    directory = Path(train_dir)
    images, labels = (_labelled(directory, part, one_hot=one_hot) for part in ("train", "t10k"))
    count = min(validation_size, len(images[0]) // 6)
    return Datasets(
        train=DataSet(images[0][count:], images[1][count:], seed),
        validation=DataSet(images[0][:count], images[1][:count], seed),
        test=DataSet(*labels, seed),
    )


def digits(*, one_hot: bool = False, seed: int = 0) -> Datasets:
    """scikit-learn's 1,797 images of 8 x 8 pixels: 1,077 for training, 360 for validation, 360 for the test."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - who has MNIST needs no scikit-learn

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.data[order] / 16.0).astype(np.float32)
    labels = _as_labels(data.target[order], one_hot=one_hot)
    ends = (len(order) - 2 * _HELD_OUT, len(order) - _HELD_OUT)
    parts = zip(np.split(images, ends), np.split(labels, ends), strict=True)
    train, validation, test = (DataSet(images, labels, seed) for images, labels in parts)
    return Datasets(train=train, validation=validation, test=test)


def load(data: str | Path | None, *, one_hot: bool = False, seed: int = 0) -> Datasets:
    """`read_data_sets` of a directory, or `digits` where none is given."""
    return digits(one_hot=one_hot, seed=seed) if data is None else read_data_sets(data, one_hot=one_hot, seed=seed)


def _labelled(directory: Path, part: str, *, one_hot: bool) -> tuple[NDArray[np.float32], NDArray[Any]]:
    images = read_idx(_find(directory, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_find(directory, f"{part}-labels-idx1-ubyte"))
    if len(images) != len(labels):
        raise ValueError(f"{directory}: {part} has {len(images)} images and {len(labels)} labels")
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255), _as_labels(labels, one_hot=one_hot)


def _as_labels(numbers: NDArray[Any], *, one_hot: bool) -> NDArray[Any]:
    return np.eye(CLASSES, dtype=np.float32)[numbers] if one_hot else numbers.astype(np.int64)


def _find(directory: Path, name: str) -> Path:
    for path in (directory / name, directory / f"{name}.gz"):
        if path.exists():
            return path
    raise FileNotFoundError(
        f"{directory} has no {name}, nor {name}.gz: name the directory that has MNIST's four files. Nothing is "
        f"downloaded; without a directory, the applications take scikit-learn's digits"
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The bytes of an IDX file, in its shape.

    Raises:
        ValueError: not a whole IDX file of unsigned bytes.
    """
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise ValueError(f"{path} is no IDX file of unsigned bytes: it begins with {content[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * content[3]
    shape = struct.unpack_from(f">{content[3]}I", content, 4) if len(content) >= start else ()
    if not shape or len(content) - start != math.prod(shape):
        raise ValueError(f"{path} is cut off: {len(content)} bytes, and its head promises {shape or 'more'}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Write bytes as an IDX file, gzipped where the name ends with .gz."""
    head = bytes((0, 0, _UNSIGNED_BYTE, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content = head + np.ascontiguousarray(array, np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
