"""CIFAR-10 and CIFAR-100 in their binary format (https://www.cs.toronto.edu/~kriz/cifar.html), from files by path.

A file is a row of records. One of CIFAR-10 is a byte for the class and 3,072 for the picture: 32 x 32 of red, then of
green, then of blue, row by row. One of CIFAR-100 has two bytes before the picture: the coarse class, and the fine one
that is learned. Nothing is downloaded. For a try without the files, scikit-learn's handwritten digits, 32 x 32 and each
in a colour, can be written in the same format:

    python examples/resnet/cifar_input.py digits.bin
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

SIDE, CHANNELS = 32, 3
PICTURE_BYTES = CHANNELS * SIDE * SIDE
LABEL_BYTES = {"cifar10": 1, "cifar100": 2}
CLASSES = {"cifar10": 10, "cifar100": 100}
PADDING = 2  # on each side, before a picture is cut out

Pictures = NDArray[np.uint8]
Labels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Data:
    """Pictures and their classes.

    Attributes:
        images: of the shape (count, 32, 32, 3), bytes.
        labels: of the shape (count,), bytes.
    """

    images: Pictures
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)


def read_cifar(pattern: str, dataset: str) -> Data:
    """All records of the files that match a pattern, such as `cifar-10-batches-bin/data_batch*`.

    Args:
        pattern: a path, in which * and ? stand for anything.
        dataset: cifar10 or cifar100.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: a file does not consist of whole records, or has a class that the data set does not have.
    """
    paths = sorted(Path(name) for name in glob(pattern))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not paths:
        raise FileNotFoundError(
            f"no file matches {pattern!r}. Nothing is downloaded: give the binary version of CIFAR by path, or make a "
            f"small file of the same format with `python examples/resnet/cifar_input.py FILE`"
        )
    parts = [_read(path, dataset) for path in paths]
    return Data(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _read(path: Path, dataset: str) -> Data:
    labels = LABEL_BYTES[dataset]
    content = np.frombuffer(path.read_bytes(), np.uint8)
    if not len(content) or len(content) % (labels + PICTURE_BYTES):
        raise ValueError(
            f"{path} is no file of {dataset}: it has {len(content)} bytes, and records have {labels + PICTURE_BYTES}"
        )
    records = content.reshape(-1, labels + PICTURE_BYTES)
    fine = records[:, labels - 1]
    if fine.max() >= CLASSES[dataset]:
        raise ValueError(
            f"{path} is no file of {dataset}: record {int(fine.argmax())} has class {fine.max()}, and there are "
            f"{CLASSES[dataset]}"
        )
    images = records[:, labels:].reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Data(np.ascontiguousarray(images), fine.copy())


def write_cifar(path: Path, data: Data, dataset: str, coarse: Sequence[int] | None = None) -> None:
    """Write pictures in the format. Of CIFAR-100, `coarse` are the coarse classes; default: the fine ones by 5."""
    columns = [data.labels[:, None]]
    if dataset == "cifar100":
        columns.insert(0, np.asarray(data.labels // 5 if coarse is None else coarse, np.uint8)[:, None])
    pixels = data.images.transpose(0, 3, 1, 2).reshape(len(data), PICTURE_BYTES)
    path.write_bytes(np.concatenate([*columns, pixels], axis=1).tobytes())


def coloured_digits(count: int, seed: int) -> Data:
    """Handwritten digits of scikit-learn, four times as high and wide, each in a colour of its own on a dark ground."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - who has CIFAR needs no scikit-learn

    digits, random = load_digits(), np.random.default_rng(seed)
    rows = random.permutation(len(digits.target))[:count]
    large = np.kron(digits.images[rows] / 16, np.ones((4, 4)))[..., None]
    colours = random.uniform(0.5, 1, (len(rows), 1, 1, CHANNELS))
    ground = random.uniform(0, 0.25, (len(rows), 1, 1, CHANNELS))
    images = np.rint(255 * (ground + (colours - ground) * large)).astype(np.uint8)
    return Data(images, digits.target[rows].astype(np.uint8))


def batch(data: Data, rows: NDArray[np.intp], random: np.random.Generator | None) -> NDArray[np.float32]:
    """Pictures of mean 0 and deviation 1 each, as a network sees them.

    Args:
        data: all pictures.
        rows: which ones.
        random: where given, each picture is shifted by up to two pixels, and half of them are mirrored.
    """
    images = data.images[rows]
    if random is not None:
        wide = np.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)))
        places = random.integers(0, 2 * PADDING + 1, (len(rows), 2))
        images = np.stack([picture[y : y + SIDE, x : x + SIDE] for picture, (y, x) in zip(wide, places, strict=True)])
        mirrored = random.random(len(rows)) < 0.5
        images[mirrored] = images[mirrored, :, ::-1]
    pixels = images.astype(np.float32)
    axes: Any = (1, 2, 3)
    deviation = np.maximum(pixels.std(axis=axes, keepdims=True), 1 / np.sqrt(PICTURE_BYTES))
    return np.asarray((pixels - pixels.mean(axis=axes, keepdims=True)) / deviation, np.float32)


def main(
    path: Annotated[Path, typer.Argument(help="The file to write.")],
    count: Annotated[int, typer.Option(min=1, max=1797, help="Pictures.")] = 200,
    dataset: Annotated[str, typer.Option(help="cifar10 or cifar100.")] = "cifar10",
    seed: Annotated[int, typer.Option(help="Of the choice, and of the colours.")] = 0,
) -> None:
    """Write coloured digits in the format of CIFAR."""
    if dataset not in CLASSES:
        print(f"--dataset {dataset}: it is one of {', '.join(CLASSES)}", file=sys.stderr)
        raise typer.Exit(2)
    write_cifar(path, coloured_digits(count, seed), dataset)
    print(f"{count} digits in the format of {dataset}: {path}")


if __name__ == "__main__":
    typer.run(main)
