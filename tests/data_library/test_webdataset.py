"""Files of WebDataset: which files are a row, and how they are decoded."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import dualray as ray


def write(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def array_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_files_of_one_name_are_a_row(tmp_path: Path):
    write(tmp_path / "a.tar", {"d/1.txt": b"one", "d/1.b.cls": b"7", "d/2.txt": "grün".encode(), "d/2.b.cls": b"8"})
    write(tmp_path / "b.tar", {"3.txt": b"three", "3.b.cls": b"9"})
    read = ray.data.read_webdataset(tmp_path)
    rows = read.take_all()
    assert [(row["__key__"], row["txt"], row["b.cls"]) for row in rows] == [
        ("d/1", "one", 7),
        ("d/2", "grün", 8),
        ("3", "three", 9),
    ]
    assert [Path(row["__url__"]).name for row in rows] == ["a.tar", "a.tar", "b.tar"]
    assert read.num_blocks() == 2


def test_what_is_decoded(tmp_path: Path):
    pytest.importorskip("PIL")
    from PIL import Image

    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    image = io.BytesIO()
    Image.fromarray(pixels).save(image, "png")
    files = {
        "1.json": json.dumps({"a": 1, "b": "x"}).encode(),
        "1.npy": array_bytes(np.arange(3)),
        "1.mp": msgpack.packb([1, 2]),
        "1.pickle": pickle.dumps("kept"),
        "1.png": image.getvalue(),
        "1.other": b"\0\1",
    }
    write(tmp_path / "a.tar", files)
    [row] = ray.data.read_webdataset(tmp_path).take_all()
    assert row["json"] == {"a": 1, "b": "x"} and row["npy"].tolist() == [0, 1, 2] and list(row["mp"]) == [1, 2]
    assert row["pickle"] == "kept" and np.array_equal(row["png"], pixels) and row["other"] == b"\0\1"
    [row] = ray.data.read_webdataset(tmp_path, decoder=None, suffixes=["json", ".pi*"]).take_all()
    assert set(row) == {"__key__", "__url__", "json", "pickle"} and row["json"] == files["1.json"]
    [row] = ray.data.read_webdataset(tmp_path, fileselect=["*.json"], expand_json=True).take_all()
    assert (row["a"], row["b"]) == (1, "x")


def test_decoders_and_names_of_the_program(tmp_path: Path):
    write(tmp_path / "a.tar", {"1.txt": b"one", "1.raw": b"\2"})
    decoders: list[Any] = [True, lambda row: {**row, "raw": row["raw"][0]}]
    read = ray.data.read_webdataset(tmp_path, decoder=decoders, filerename=lambda name: name.replace("1.", "first."))
    [row] = read.take_all()
    assert (row["__key__"], row["txt"], row["raw"]) == ("first", "one", 2)


def test_wrong_files_are_named(tmp_path: Path):
    write(tmp_path / "a.tar", {"1.txt": b"one"})
    with pytest.raises(ValueError, match=r"the row 1 of .*a\.tar has no file \.json"):
        ray.data.read_webdataset(tmp_path, expand_json=True).take_all()
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("1.txt"), io.BytesIO())
    with pytest.raises(ValueError, match=r"b\.tar has the file 1\.txt twice"):
        ray.data.read_webdataset(tmp_path / "b.tar").take_all()
    with pytest.raises(TypeError, match="read_webdataset has no argument 'colour'"):
        ray.data.read_webdataset(tmp_path, colour="red")
