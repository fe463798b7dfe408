"""DataType: the types of values, with the words and answers of Ray 2.60."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dualray as ray
from dualray.data.datatype import DataType, TypeCategory
from dualray.data.expressions import col


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (DataType.int64(), "arrow:int64"),
        (DataType.bool(), "arrow:bool"),
        (DataType.timestamp("s"), "arrow:timestamp[s]"),
        (DataType.from_arrow(pa.timestamp("s")), "arrow:timestamp[s]"),
        (DataType.from_numpy(np.dtype("int32")), "numpy:int32"),
        (DataType.from_numpy("float64"), "numpy:float64"),
        (DataType(int), "python:int"),
        (DataType.infer_dtype(5), "arrow:int64"),
        (DataType.infer_dtype("hello"), "arrow:string"),
        (DataType.infer_dtype(np.int32(42)), "numpy:int32"),
        (DataType.infer_dtype(np.zeros(2)), "numpy:float64"),
        (DataType.infer_dtype(object()), "python:object"),
        (DataType.list(DataType.int64()), "arrow:list<item: int64>"),
        (DataType.list(DataType.from_numpy("int32")), "arrow:list<item: int32>"),
        (DataType.large_list(DataType.int64()), "arrow:large_list<item: int64>"),
        (DataType.fixed_size_list(DataType.float32(), 3), "arrow:fixed_size_list<item: float>[3]"),
        (
            DataType.struct([("x", DataType.int64()), ("y", DataType.list(DataType.float64()))]),
            "arrow:struct<x: int64, y: list<item: double>>",
        ),
        (DataType.map(DataType.string(), DataType.int64()), "arrow:map<string, int64>"),
        (DataType.temporal("timestamp", unit="us", tz="UTC"), "arrow:timestamp[us, tz=UTC]"),
        (DataType.temporal("timestamp"), "arrow:timestamp[us]"),
        (DataType.temporal("date32"), "arrow:date32[day]"),
        (DataType.temporal("time32"), "arrow:time32[s]"),
        (DataType.temporal("time64", unit="ns"), "arrow:time64[ns]"),
        (DataType.temporal("duration", unit="ms"), "arrow:duration[ms]"),
        (DataType.from_dtype("int8"), "numpy:int8"),
        (DataType.from_dtype(np.float32), "numpy:float32"),
        (DataType.from_dtype(pd.Int64Dtype()), "numpy:int64"),
        (DataType.from_dtype(pd.ArrowDtype(pa.int16())), "arrow:int16"),
        (DataType.from_dtype(str), "python:str"),
    ],
)
def test_types_in_words(made, words):
    assert repr(made) == f"DataType({words})"


def test_types_become_those_of_other_libraries():
    assert DataType.from_numpy(np.dtype("float32")).to_numpy_dtype() == np.dtype("float32")
    assert DataType.int16().to_numpy_dtype() == np.dtype("int16")
    assert DataType.string().to_numpy_dtype() == np.dtype(object)
    assert DataType(int).to_numpy_dtype() == np.dtype(object)
    assert DataType.from_numpy("int8").to_arrow_dtype() == pa.int8()
    assert DataType(int).to_arrow_dtype([1, 2]) == pa.int64()
    assert DataType(int).to_python_type() is int
    with pytest.raises(ValueError, match="is not a Python type"):
        DataType.int64().to_python_type()
    with pytest.raises(ValueError, match="needs values="):
        DataType(int).to_arrow_dtype()
    with pytest.raises(TypeError, match=r"a type of pyarrow, numpy or Python, not 5 \(type int\)"):
        DataType(5)
    with pytest.raises(ValueError, match=r"unit='ns' of time32 must be one of 's', 'ms'"):
        DataType.temporal("time32", unit="ns")
    with pytest.raises(ValueError, match=r"temporal_type='day' must be one of 'timestamp'"):
        DataType.temporal("day")


def test_equal_types_come_from_the_same_library():
    assert DataType.int64() == DataType.from_arrow(pa.int64())
    assert DataType.from_numpy("int64") != DataType.int64()
    assert DataType(int) != DataType.from_numpy("int64")
    assert len({DataType.int64(), DataType.from_arrow(pa.int64()), DataType(int)}) == 2


KINDS = {
    "list": [DataType.list(DataType.int8()), DataType.fixed_size_list(DataType.int8(), 2)],
    "tensor": [DataType.tensor(shape=(3, 4), dtype=DataType.float32())],
    "struct": [DataType.struct([("x", DataType.int64())])],
    "map": [DataType.map(DataType.string(), DataType.int64())],
    "boolean": [DataType.bool(), DataType(bool), DataType.from_numpy("bool")],
    "integer": [DataType.uint8(), DataType(int), DataType.from_numpy("int32")],
    "floating": [DataType.float32(), DataType(float), DataType.from_numpy("float16")],
    "string": [DataType.string(), DataType(str), DataType.dictionary(pa.int8(), pa.string())],
    "binary": [DataType.binary(), DataType(bytes)],
    "temporal": [DataType.date32(), DataType.from_numpy("datetime64[s]"), DataType.duration("s")],
    "null": [DataType.null()],
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_told_from_the_others(kind):
    for other, types in KINDS.items():
        assert [getattr(each, f"is_{kind}_type")() for each in types] == [other == kind] * len(types), other


def test_kinds_that_hold_others():
    assert [each.is_numerical_type() for each in (DataType.int8(), DataType.decimal128(5), DataType(complex))] == [
        True
    ] * 3
    assert not DataType.bool().is_numerical_type()
    assert not DataType.string().is_numerical_type()
    assert all(each.is_nested_type() for kind in ("list", "struct", "map") for each in KINDS[kind])
    assert not DataType.int64().is_nested_type()
    assert DataType.list(DataType.int8()).is_of(TypeCategory.LIST)
    assert DataType.large_list(DataType.int8()).is_of("large_list")
    assert not DataType.list(DataType.int8()).is_of("large_list")
    assert not DataType.int8().is_of("no such kind")


def types_of(data):
    schema = data.schema()
    assert schema is not None
    return schema.types


def test_types_cast_columns(numbers):
    data = numbers.limit(2).with_column("x", col("id").cast(DataType.from_numpy("float32")))
    assert data.schema().types == [pa.int64(), pa.float32()]
    tensors = ray.data.from_numpy(np.zeros((4, 3, 2), np.float32))
    assert DataType.from_arrow(types_of(tensors)[0]) == DataType.tensor((3, 2), DataType.float32())
    ragged = ray.data.from_items([{"x": np.zeros(size)} for size in (1, 2)])
    assert DataType.from_arrow(types_of(ragged)[0]) == DataType.variable_shaped_tensor(DataType.float64(), 1)
