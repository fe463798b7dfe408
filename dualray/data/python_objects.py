"""Columns of Python objects that Arrow has no type for: pickled values in an Arrow extension type.

`column_of` makes one where Arrow cannot convert the values: objects of a user's class, lists of mixed types, arrays of
different shapes.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualray import cloudpickle


class ObjectScalar(pa.ExtensionScalar):  # type: ignore[misc]  # pyarrow has no types
    """A value; `as_py` unpickles it."""

    def as_py(self, **_options: Any) -> Any:
        """The Python object."""
        return None if self.value is None else pickle.loads(self.value.as_py())


class ObjectType(pa.ExtensionType):  # type: ignore[misc]  # as above
    """The type of such a column."""

    def __init__(self) -> None:
        super().__init__(pa.binary(), "dualray.object")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> ObjectType:
        return cls()

    def __arrow_ext_scalar_class__(self) -> type:
        return ObjectScalar


pa.register_extension_type(ObjectType())


def object_column(values: Sequence[Any]) -> pa.Array:
    """A column of any Python objects; None is null."""
    pickled = [None if value is None else cloudpickle.dumps(value) for value in values]
    return pa.ExtensionArray.from_storage(ObjectType(), pa.array(pickled, pa.binary()))


def objects_of(column: Any) -> NDArray[Any]:
    """The objects of a column, in an array."""
    values = column.to_pylist()
    array = np.empty(len(values), object)
    array[:] = values
    return array
