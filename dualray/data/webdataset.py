"""WebDataset files: tar files in which files of one name and several endings are one row."""

from __future__ import annotations

import io
import json
import pickle
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa

from dualray.data import blocks
from dualray.data.dataset import Dataset
from dualray.data.files import Paths, whole_files

__all__ = ["read_webdataset"]

Chosen = Sequence[str] | Callable[[str], bool] | None
Decoder = Callable[[dict[str, Any]], dict[str, Any]] | bool | str
_NAME: Final = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")
_IMAGES: Final = frozenset({"jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm"})


def read_webdataset(
    paths: Paths,
    *,
    decoder: Decoder | Sequence[Decoder] | None = True,
    fileselect: Chosen = None,
    filerename: Callable[[str], str] | Sequence[Callable[[str], str]] | None = None,
    suffixes: Chosen = None,
    expand_json: bool = False,
    verbose_open: bool = False,
    **options: Any,
) -> Dataset:
    """Return a dataset of WebDataset files (https://github.com/webdataset/webdataset), a block for each tar file.

    Files that follow one another in a tar file, and whose names are equal up to the first dot, are one row. The rest of
    a name is the column: `0001.jpg` and `0001.cls` give the columns `jpg` and `cls`. A column `__key__` has the name,
    and a column `__url__` has the path of the tar file.

    Args:
        paths: as for `read_parquet`.
        decoder: True decodes `txt`, `cls`, `json`, `npy`, `mp`, `pickle`, `pt` and images, by the last ending of a
            name. "PIL" does the same, and leaves images as those of Pillow. A function takes and returns a row. A list
            of decoders is called in turn. None leaves the bytes. Only read pickled files that you trust.
        fileselect: patterns of names of files in the tar file, or a function of a name; others are left out.
        filerename: a function, or a list of functions, that returns the new name of a file.
        suffixes: patterns of columns, or a function of a column's name; others are left out.
        expand_json: add a column for each key of the column `json`.
        verbose_open: accepted as in Ray, and without effect.
        options: those of `read_parquet`.

    Raises:
        ValueError: a row has two files with one ending.
    """
    decoders = [] if decoder is None else list(decoder) if isinstance(decoder, list | tuple) else [decoder]

    def read(path: str, _more: Mapping[str, Any]) -> pa.Table:
        rows = []
        for row in _rows(_files_of(path, fileselect, filerename), path, suffixes):
            for each in decoders:
                row = each(row) if callable(each) else _decoded(row, each)
            rows.append(_expanded(row) if expand_json else row)
        return blocks.table_of_rows(rows)

    return whole_files(paths, (".tar",), options, read, "read_webdataset", takes_no_more=True)


def _files_of(path: str, selected: Chosen, renamed: Any) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the files in a tar file."""
    functions = [] if renamed is None else list(renamed) if isinstance(renamed, list | tuple) else [renamed]
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            name = member.name
            for function in functions:
                name = function(name)
            if _is_chosen(name, selected):
                yield name, content.read()


def _is_chosen(name: str, chosen: Chosen) -> bool:
    if chosen is None:
        return True
    if callable(chosen):
        return bool(chosen(name))
    return any(
        fnmatch(f".{name}", pattern) if "*" in pattern or "?" in pattern else pattern in (name, f".{name}")
        for pattern in chosen
    )


def _rows(files: Iterator[tuple[str, bytes]], path: str, suffixes: Chosen) -> Iterator[dict[str, Any]]:
    row: dict[str, Any] = {}
    for name, content in files:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        key, suffix = match.groups()
        if row.get("__key__") != key:
            if row:
                yield row
            row = {"__key__": key, "__url__": path}
        if suffix in row:
            raise ValueError(f"{path} has the file {name} twice")
        if _is_chosen(suffix, suffixes):
            row[suffix] = content
    if row:
        yield row


def _decoded(row: dict[str, Any], how: Any) -> dict[str, Any]:
    """The row with its files decoded by their endings."""
    return {
        name: value if name.startswith("__") else _value_of(name.rpartition(".")[2], value, how)
        for name, value in row.items()
    }


def _value_of(ending: str, content: bytes, how: Any) -> Any:
    match ending:
        case "txt" | "text":
            return content.decode()
        case "cls" | "cls2":
            return int(content)
        case "json":
            return json.loads(content)
        case "npy":
            return np.load(io.BytesIO(content))
        case "mp":
            return msgpack.unpackb(content, raw=False)
        case "pickle" | "pkl":
            return pickle.loads(content)
        case "pt" | "pth":
            import torch  # noqa: PLC0415 - only programs with its files pay for it

            return torch.load(io.BytesIO(content), weights_only=False)
        case _ if ending in _IMAGES:
            from PIL import Image  # noqa: PLC0415 - as above

            image = Image.open(io.BytesIO(content))
            return image if how == "PIL" else np.asarray(image)
    return content


def _expanded(row: dict[str, Any]) -> dict[str, Any]:
    if "json" not in row:
        raise ValueError(f"expand_json=True, but the row {row['__key__']} of {row['__url__']} has no file .json")
    found = row["json"] if isinstance(row["json"], dict) else json.loads(row["json"])
    return {**found, **row}
