"""Functions of columns of one kind: `col("name").str.upper()`, with the names of Ray and the work of Arrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

_Applied = Callable[[str, Callable[[Any], Any]], Any]
"""Of a name and a function of a column: the expression that computes it."""


class _Functions:
    """Functions of Arrow under other names; a call makes an expression."""

    NAMES: ClassVar[dict[str, str]] = {}

    def __init__(self, applied: _Applied) -> None:
        self._applied = applied

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.NAMES:
            raise AttributeError(
                f"{type(self).__name__} has no function {name!r}; the functions are {', '.join(self.NAMES)}"
            )
        function = getattr(pc, self.NAMES[name])
        return lambda *args, **kwargs: self._applied(name, lambda column: function(column, *args, **kwargs))


class StringFunctions(_Functions):
    """Functions of text. Arguments are those of the Arrow function."""

    NAMES: ClassVar[dict[str, str]] = {
        "len": "utf8_length",
        "byte_len": "binary_length",
        "starts_with": "starts_with",
        "ends_with": "ends_with",
        "contains": "match_substring",
        "match": "match_like",
        "find": "find_substring",
        "count": "count_substring",
        "find_regex": "find_substring_regex",
        "count_regex": "count_substring_regex",
        "match_regex": "match_substring_regex",
        "is_ascii": "string_is_ascii",
        "slice": "utf8_slice_codeunits",
        "replace": "replace_substring",
        "replace_regex": "replace_substring_regex",
        "replace_slice": "binary_replace_slice",
        "split": "split_pattern",
        "split_regex": "split_pattern_regex",
        "split_whitespace": "utf8_split_whitespace",
        "extract": "extract_regex",
        "repeat": "binary_repeat",
        "lpad": "utf8_lpad",
        "rpad": "utf8_rpad",
        "center": "utf8_center",
    } | {
        name: f"utf8_{name}"
        for name in (
            *("upper", "lower", "capitalize", "title", "swapcase", "reverse", "is_alpha", "is_alnum", "is_digit"),
            *("is_decimal", "is_numeric", "is_space", "is_lower", "is_upper", "is_title", "is_printable"),
        )
    }

    def strip(self, characters: str | None = None) -> Any:
        """Remove these characters, or white space, at both ends."""
        return self._trimmed("", characters)

    def lstrip(self, characters: str | None = None) -> Any:
        """Remove these characters, or white space, at the start."""
        return self._trimmed("l", characters)

    def rstrip(self, characters: str | None = None) -> Any:
        """Remove these characters, or white space, at the end."""
        return self._trimmed("r", characters)

    def pad(self, width: int, fillchar: str = " ", side: str = "right") -> Any:
        """Fill the text up to this width: at the "right", the "left" or "both" sides."""
        function = {"right": pc.utf8_rpad, "left": pc.utf8_lpad, "both": pc.utf8_center}.get(side)
        if function is None:
            raise ValueError(f"side={side!r} must be 'left', 'right' or 'both'")
        return self._applied("pad", lambda column: function(column, width, fillchar))

    def _trimmed(self, side: str, characters: str | None) -> Any:
        name = f"{side}strip"
        if characters is None:
            return self._applied(name, getattr(pc, f"utf8_{side}trim_whitespace"))
        function = getattr(pc, f"utf8_{side}trim")
        return self._applied(name, lambda column: function(column, characters))


class ListFunctions(_Functions):
    """Functions of lists."""

    NAMES: ClassVar[dict[str, str]] = {"len": "list_value_length", "slice": "list_slice"}

    def get(self, index: int) -> Any:
        """The element with this number; a negative number counts from the end."""
        return self._each("get", lambda row: row[index] if -len(row) <= index < len(row) else None, is_element=True)

    def sort(self, order: str = "ascending", null_placement: str = "at_end") -> Any:
        """The elements in order."""
        if order not in ("ascending", "descending") or null_placement not in ("at_end", "at_start"):
            raise ValueError(
                f"sort: order={order!r} must be 'ascending' or 'descending', and "
                f"null_placement={null_placement!r} must "
                "be 'at_start' or 'at_end'"
            )

        def in_order(row: list[Any]) -> list[Any]:
            nulls = [value for value in row if value is None]
            values = sorted((value for value in row if value is not None), reverse=order == "descending")
            return nulls + values if null_placement == "at_start" else values + nulls

        return self._each("sort", in_order)

    def flatten(self) -> Any:
        """The elements of the lists in the list, one after another."""

        def flat(row: list[Any]) -> list[Any]:
            return [value for inner in row if inner is not None for value in inner]

        return self._each("flatten", flat, flattens=True)

    def __getitem__(self, which: int | slice) -> Any:
        if not isinstance(which, slice):
            return self.get(which)
        start, stop, step = which.start or 0, which.stop, which.step or 1
        if stop is None or min(start, stop, step - 1) < 0:  # Arrow counts from the start, and needs an end
            return self._each("slice", lambda row: row[which])
        return self.slice(start, stop, step)

    def _each(
        self, name: str, function: Callable[[list[Any]], Any], *, is_element: bool = False, flattens: bool = False
    ) -> Any:
        def apply(column: Any) -> Any:
            made = [None if row is None else function(row) for row in column.to_pylist()]
            inner = column.type.value_type
            return pa.array(made, inner if is_element or flattens else pa.list_(inner))

        return self._applied(name, apply)


class MapFunctions(_Functions):
    """Keys and values of maps."""

    def keys(self) -> Any:
        """The keys, as lists."""
        return self._side("keys", 0)

    def values(self) -> Any:
        """The values, as lists."""
        return self._side("values", 1)

    def _side(self, name: str, side: int) -> Any:
        def apply(column: Any) -> Any:
            inner = column.type.key_type if side == 0 else column.type.item_type
            made = [None if row is None else [pair[side] for pair in row] for row in column.to_pylist()]
            return pa.array(made, pa.list_(inner))

        return self._applied(name, apply)


class StructFunctions(_Functions):
    """Fields of structs."""

    def field(self, field_name: str) -> Any:
        """The field of this name."""
        return self._applied("field", lambda column: pc.struct_field(column, field_name))

    def field_by_index(self, index: int) -> Any:
        """The field with this number."""
        return self._applied("field_by_index", lambda column: pc.struct_field(column, [index]))

    __getitem__ = field


class ArrayFunctions(_Functions):
    """Functions of arrays of a fixed size."""

    def to_list(self) -> Any:
        """The arrays as lists."""

        def apply(column: Any) -> Any:
            storage = column.cast(column.type.storage_type) if hasattr(column.type, "storage_type") else column
            return storage.cast(pa.list_(storage.type.value_type))

        return self._applied("to_list", apply)


class TimeFunctions(_Functions):
    """Parts of times."""

    NAMES: ClassVar[dict[str, str]] = {name: name for name in ("year", "month", "day", "hour", "minute", "second")}

    def strftime(self, fmt: str) -> Any:
        """The time as text in this format."""
        return self._applied("strftime", lambda column: pc.strftime(column, format=fmt))

    def ceil(self, unit: str) -> Any:
        """The time, rounded up to this unit."""
        return self._applied("ceil", lambda column: pc.ceil_temporal(column, unit=unit))

    def floor(self, unit: str) -> Any:
        """The time, rounded down to this unit."""
        return self._applied("floor", lambda column: pc.floor_temporal(column, unit=unit))

    def round(self, unit: str) -> Any:
        """The time, rounded to this unit."""
        return self._applied("round", lambda column: pc.round_temporal(column, unit=unit))
