"""DataType: the type of values, as Arrow, numpy or Python names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from dualray.data import blocks
from dualray.data.python_objects import ObjectType

_UNITS = {
    "timestamp": ("us", "s", "ms", "ns"),
    "time32": ("s", "ms"),
    "time64": ("us", "ns"),
    "duration": ("us", "s", "ms", "ns"),
    "date32": (),
    "date64": (),
}
"""The kinds of times, with their units; the first one is the default."""


class TypeCategory(StrEnum):
    """Kinds of types, for `DataType.is_of`."""

    LIST = "list"
    LARGE_LIST = "large_list"
    STRUCT = "struct"
    MAP = "map"
    TENSOR = "tensor"
    TEMPORAL = "temporal"


class _Types(type):
    def __getattr__(cls, name: str) -> Any:
        make = None if name.startswith("_") else getattr(pa, f"{name}_" if name == "bool" else name, None)
        if make is None:
            raise AttributeError(f"DataType has no type {name!r}; DataType has only the types of pyarrow")
        return lambda *args, **kwargs: DataType(make(*args, **kwargs))


@dataclass(frozen=True, repr=False)
class DataType(metaclass=_Types):
    """A type of values: `DataType.int64()` and others of pyarrow, `DataType.from_numpy("int32")`, or `DataType(int)`.

    Attributes:
        native: the type, as Arrow, numpy or Python has it.
    """

    native: Any

    def __post_init__(self) -> None:
        if not isinstance(self.native, pa.DataType | np.dtype | type):
            kind = type(self.native).__name__
            raise TypeError(f"a DataType is a type of pyarrow, numpy or Python, not {self.native!r} (type {kind})")

    def __repr__(self) -> str:
        if isinstance(self.native, type):
            return f"DataType(python:{self.native.__name__})"
        return f"DataType({'arrow' if self.is_arrow_type() else 'numpy'}:{self.native})"

    def __eq__(self, other: object) -> bool:
        # Arrow and numpy compare their types with names and with each other's, so the sources must be equal first.
        return (
            isinstance(other, DataType)
            and type(self.native) is type(other.native)
            and bool(self.native == other.native)
        )

    def __hash__(self) -> int:
        return hash((type(self.native), self.native))

    # ---- Make ----

    @classmethod
    def from_arrow(cls, arrow_type: pa.DataType) -> DataType:
        """Return the type of an Arrow type."""
        return cls(arrow_type)

    @classmethod
    def from_numpy(cls, numpy_dtype: Any) -> DataType:
        """Return the type of a numpy type, or of its name."""
        return cls(np.dtype(numpy_dtype))

    @classmethod
    def infer_dtype(cls, value: Any) -> DataType:
        """Return the type of a value: numpy's for a value of numpy; for others Arrow's, or their class."""
        if isinstance(value, np.ndarray | np.generic):
            return cls(value.dtype)
        found = blocks.column_of([value]).type
        return cls(type(value) if isinstance(found, ObjectType) else found)

    @classmethod
    def from_dtype(cls, dtype: Any) -> DataType | None:
        """Return the type that a type of Arrow, numpy, pandas or Python names; None if it names none."""
        if dtype is None or isinstance(dtype, DataType):
            return dtype
        if isinstance(dtype, pa.DataType) or (isinstance(dtype, type) and not issubclass(dtype, np.generic)):
            return cls(dtype)
        of_pandas = getattr(dtype, "pyarrow_dtype", None) or getattr(dtype, "numpy_dtype", None)
        if of_pandas is not None:
            return cls(of_pandas)
        try:
            return cls(np.dtype(dtype))
        except TypeError:
            return cls(pa.string()) if str(dtype).startswith("str") else None

    @classmethod
    def list(cls, value_type: DataType) -> DataType:
        """Return the type of lists of such values."""
        return cls(pa.list_(_arrow(value_type)))

    @classmethod
    def large_list(cls, value_type: DataType) -> DataType:
        """Return the type of lists with 64-bit offsets."""
        return cls(pa.large_list(_arrow(value_type)))

    @classmethod
    def fixed_size_list(cls, value_type: DataType, list_size: int) -> DataType:
        """Return the type of lists with this number of values."""
        return cls(pa.list_(_arrow(value_type), list_size))

    @classmethod
    def struct(cls, fields: Sequence[tuple[str, DataType]] | Mapping[str, DataType]) -> DataType:
        """Return the type of structs with these fields: pairs of a name and a type."""
        pairs = fields.items() if isinstance(fields, Mapping) else fields
        return cls(pa.struct([(name, _arrow(of_field)) for name, of_field in pairs]))

    @classmethod
    def map(cls, key_type: DataType, value_type: DataType) -> DataType:
        """Return the type of maps."""
        return cls(pa.map_(_arrow(key_type), _arrow(value_type)))

    @classmethod
    def tensor(cls, shape: Sequence[int], dtype: DataType) -> DataType:
        """Return the type of arrays of this shape: Arrow's fixed-shape tensor."""
        return cls(pa.fixed_shape_tensor(_arrow(dtype), tuple(shape)))

    @classmethod
    def variable_shaped_tensor(cls, dtype: DataType, ndim: int = 2) -> DataType:
        """Return the type of arrays of different shapes. dualray pickles them, so it does not keep the arguments."""
        return cls(ObjectType())

    @classmethod
    def temporal(cls, temporal_type: str, unit: str | None = None, tz: str | None = None) -> DataType:
        """Return a type of times.

        Args:
            temporal_type: "timestamp", "date32", "date64", "time32", "time64" or "duration".
            unit: "s", "ms", "us" or "ns". Default: "us", and for "time32" "s".
            tz: the time zone of a "timestamp".

        Raises:
            ValueError: there is no such type, or it has no such unit.
        """
        kind = temporal_type.lower()
        if kind not in _UNITS:
            raise ValueError(f"temporal_type={temporal_type!r} must be one of {', '.join(map(repr, _UNITS))}")
        units = _UNITS[kind]
        if not units:
            return cls(getattr(pa, kind)())
        chosen = unit or units[0]
        if chosen not in units:
            raise ValueError(f"unit={unit!r} of {kind} must be one of {', '.join(map(repr, units))}")
        return cls(pa.timestamp(chosen, tz=tz) if kind == "timestamp" else getattr(pa, kind)(chosen))

    # ---- Convert ----

    def to_arrow_dtype(self, values: Sequence[Any] | None = None) -> Any:
        """Return the Arrow type.

        Args:
            values: values of the type. A Python type needs them.

        Raises:
            ValueError: it is a Python type, and there are no values.
        """
        if self.is_arrow_type():
            return self.native
        if self.is_numpy_type():
            return pa.from_numpy_dtype(self.native)
        if values is None or not len(values):
            raise ValueError(f"{self} needs values=, from which dualray infers the Arrow type")
        return blocks.column_of(values).type

    def to_numpy_dtype(self) -> np.dtype[Any]:
        """Return the numpy type, or `object` if numpy has none."""
        if self.is_numpy_type():
            kept: np.dtype[Any] = self.native
            return kept
        if self.is_arrow_type():
            try:
                made: np.dtype[Any] = np.dtype(self.native.to_pandas_dtype())
                return made
            except (NotImplementedError, TypeError, ValueError):
                return np.dtype(object)
        return np.dtype(object)

    def to_python_type(self) -> type:
        """Return the Python type.

        Raises:
            ValueError: it is a type of Arrow or numpy.
        """
        if isinstance(self.native, type):
            return self.native
        raise ValueError(f"{self} is not a Python type; use to_arrow_dtype() or to_numpy_dtype()")

    # ---- Tell ----

    def is_of(self, category: TypeCategory | str) -> bool:
        """Whether it is a type of this category, such as "list"."""
        if category == TypeCategory.LARGE_LIST:
            return self._is_arrow(pa.types.is_large_list, pa.types.is_large_list_view)
        known = category in list(TypeCategory)
        return known and bool(getattr(self, f"is_{TypeCategory(category)}_type")())

    def is_arrow_type(self) -> bool:
        """Whether it is a type of Arrow."""
        return isinstance(self.native, pa.DataType)

    def is_numpy_type(self) -> bool:
        """Whether it is a type of numpy."""
        return isinstance(self.native, np.dtype)

    def is_python_type(self) -> bool:
        """Whether it is a class of Python."""
        return isinstance(self.native, type)

    def is_list_type(self) -> bool:
        """Whether it is a type of lists, of any size."""
        of = pa.types
        return self._is_arrow(
            of.is_list, of.is_large_list, of.is_fixed_size_list, of.is_list_view, of.is_large_list_view
        )

    def is_tensor_type(self) -> bool:
        """Whether it is a type of arrays of one shape."""
        return isinstance(self.native, pa.FixedShapeTensorType)

    def is_struct_type(self) -> bool:
        """Whether it is a type of structs."""
        return self._is_arrow(pa.types.is_struct)

    def is_map_type(self) -> bool:
        """Whether it is a type of maps."""
        return self._is_arrow(pa.types.is_map)

    def is_nested_type(self) -> bool:
        """Whether it is a type of lists, structs, maps or unions."""
        return self._is_arrow(pa.types.is_nested)

    def is_null_type(self) -> bool:
        """Whether it is the type of nulls."""
        return self._is_arrow(pa.types.is_null)

    def is_boolean_type(self) -> bool:
        """Whether it is a type of truth values."""
        return self._is(pa.types.is_boolean, numpy="b", python=(bool,))

    def is_integer_type(self) -> bool:
        """Whether it is a type of integers; truth values are none."""
        return self._is(pa.types.is_integer, numpy="iu", python=(int,))

    def is_floating_type(self) -> bool:
        """Whether it is a type of floating-point numbers."""
        return self._is(pa.types.is_floating, numpy="f", python=(float,))

    def is_numerical_type(self) -> bool:
        """Whether it is a type of integers, floating-point numbers, decimals or complex numbers."""
        of = pa.types
        return self._is(of.is_integer, of.is_floating, of.is_decimal, numpy="iufc", python=(int, float, complex))

    def is_string_type(self) -> bool:
        """Whether it is a type of text."""
        of = pa.types
        return self._is(of.is_string, of.is_large_string, of.is_string_view, numpy="US", python=(str,))

    def is_binary_type(self) -> bool:
        """Whether it is a type of bytes."""
        of = pa.types
        return self._is(
            *(of.is_binary, of.is_large_binary, of.is_binary_view, of.is_fixed_size_binary),
            numpy="V",
            python=(bytes, bytearray),
        )

    def is_temporal_type(self) -> bool:
        """Whether it is a type of times."""
        return self._is(pa.types.is_temporal, numpy="Mm")

    def _is_arrow(self, *tests: Callable[[Any], bool]) -> bool:
        return self.is_arrow_type() and any(test(self.native) for test in tests)

    def _is(self, *tests: Callable[[Any], bool], numpy: str, python: Sequence[type] = ()) -> bool:
        """Whether one of the tests of Arrow types is true, or it is one of the other types.

        Args:
            tests: functions of an Arrow type; of an encoded one, they take the type of its values.
            numpy: kinds of numpy types, a letter each.
            python: classes.
        """
        if self.is_numpy_type():
            return self.native.kind in numpy
        if isinstance(self.native, type):
            return self.native in python
        encoded = pa.types.is_dictionary(self.native) or pa.types.is_run_end_encoded(self.native)
        plain = self.native.value_type if encoded else self.native
        return any(test(plain) for test in tests)


def _arrow(kind: Any) -> Any:
    """The Arrow type of a DataType, or of a type that names one."""
    found = DataType.from_dtype(kind)
    if found is None:
        raise TypeError(f"{kind!r} is not a DataType (type {type(kind).__name__})")
    return found.to_arrow_dtype()
