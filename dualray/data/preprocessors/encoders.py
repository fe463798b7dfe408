"""Preprocessors that encode categories as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dualray.data.dataset import Dataset
from dualray.data.preprocessors.preprocessor import OfColumns, Preprocessor


class OrdinalEncoder(OfColumns):
    """Replace each value of a column by its position among the column's sorted values. Unknown values become null.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        encode_lists: encode the elements of lists; else each whole list is a value.
    """

    def __init__(
        self, columns: Sequence[str], *, encode_lists: bool = True, output_columns: Sequence[str] | None = None
    ) -> None:
        super().__init__(columns, output_columns)
        self.encode_lists = encode_lists

    def _fit(self, ds: Dataset) -> None:
        self.stats_ = _positions(ds, self.columns, splits_lists=self.encode_lists)

    def _transform_pandas(self, df: Any) -> Any:
        _check_no_nulls(df, self.columns)
        for column, output in self._pairs():
            positions = self.stats_[_key(column)]
            if self.encode_lists and _has_lists(df[column]):
                df[output] = df[column].map(lambda each, known=positions: [known.get(value) for value in each])
            else:
                df[output] = df[column].map(lambda each, known=positions: known.get(_hashable(each)))
        return df


class _OfCategories(OfColumns):
    """Base of those that give each value of a column a position in an array.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        max_categories: for some columns, how many values have a position: the most frequent ones.
    """

    _splits_lists = False

    def __init__(
        self,
        columns: Sequence[str],
        *,
        max_categories: Mapping[str, int] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.max_categories = dict(max_categories or {})

    def _fit(self, ds: Dataset) -> None:
        self.stats_ = _positions(ds, self.columns, splits_lists=self._splits_lists, most=self.max_categories)


class OneHotEncoder(_OfCategories):
    """Replace each value of a column by an array with a 1 at the position of the value, and 0 elsewhere.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        max_categories: for some columns, how many values have a position: the most frequent ones.
    """

    def _transform_pandas(self, df: Any) -> Any:
        _check_no_nulls(df, self.columns)
        for column, output in self._pairs():
            positions = self.stats_[_key(column)]
            codes = np.array([positions.get(_hashable(value), -1) for value in df[column]], dtype=np.int64)
            rows = np.zeros((len(df), len(positions)), dtype=np.uint8)
            is_known = codes >= 0
            rows[is_known.nonzero()[0], codes[is_known]] = 1
            df[output] = list(rows)
        return df


class MultiHotEncoder(_OfCategories):
    """Replace each list of a column by an array with the number of times that the list has each value.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        max_categories: for some columns, how many values have a position: the most frequent ones.
    """

    _splits_lists = True

    def _transform_pandas(self, df: Any) -> Any:
        _check_no_nulls(df, self.columns)
        for column, output in self._pairs():
            counts = [Counter(each if _is_list(each) else [each]) for each in df[column]]
            df[output] = [[count[value] for value in self.stats_[_key(column)]] for count in counts]
        return df


class LabelEncoder(Preprocessor):
    """Replace each value of one column by its position among the column's sorted values.

    Args:
        label_column: the column that it reads.
        output_column: the column that it writes. Default: the same.
    """

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        super().__init__()
        self.label_column = label_column
        self.output_column = output_column or label_column

    def get_input_columns(self) -> list[str]:
        """Return the name of the column that it reads."""
        return [self.label_column]

    def get_output_columns(self) -> list[str]:
        """Return the name of the column that it writes."""
        return [self.output_column]

    def inverse_transform(self, ds: Dataset) -> Dataset:
        """Return the dataset with the values in the place of their positions."""
        self._check_is_fitted("inverse_transform")
        return ds.map_batches(self._restored, batch_format="pandas")

    def _fit(self, ds: Dataset) -> None:
        self.stats_ = _positions(ds, [self.label_column])

    def _transform_pandas(self, df: Any) -> Any:
        _check_no_nulls(df, [self.label_column])
        df[self.output_column] = df[self.label_column].map(self.stats_[_key(self.label_column)])
        return df

    def _restored(self, df: Any) -> Any:
        values = {position: value for value, position in self.stats_[_key(self.label_column)].items()}
        df[self.label_column] = df[self.output_column].map(values)
        return df

    def __repr__(self) -> str:
        return f"LabelEncoder(label_column={self.label_column!r}, output_column={self.output_column!r})"


class Categorizer(OfColumns):
    """Give columns a categorical type of pandas.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        dtypes: for some columns, the type (`pandas.CategoricalDtype`). `fit` finds the categories of the others.
    """

    def __init__(
        self,
        columns: Sequence[str],
        dtypes: Mapping[str, Any] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.dtypes = dict(dtypes or {})

    def _fit(self, ds: Dataset) -> None:
        import pandas as pd  # noqa: PLC0415 - only programs with preprocessors pay for it

        others = [column for column in self.columns if column not in self.dtypes]
        found = _positions(ds, others, takes_nulls=True) if others else {}
        self.stats_ = self.dtypes | {column: pd.CategoricalDtype(list(found[_key(column)])) for column in others}

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            df[output] = df[column].astype(self.stats_[column])
        return df


def _key(column: str) -> str:
    return f"unique_values({column})"


def _positions(
    ds: Dataset,
    columns: Sequence[str],
    *,
    splits_lists: bool = True,
    most: Mapping[str, int] | None = None,
    takes_nulls: bool = False,
) -> dict[str, dict[Any, int]]:
    """For each column, the position of each value among the sorted values.

    Args:
        ds: the dataset.
        columns: the columns.
        splits_lists: the values are those in the lists of the column.
        most: for some columns, how many values to keep: the most frequent ones.
        takes_nulls: leave nulls out.

    Raises:
        ValueError: a column has nulls, or `most` names another column.
    """
    most = most or {}
    unknown = next((column for column in most if column not in columns), None)
    if unknown is not None:
        raise ValueError(f"You set `max_categories` for {unknown}, which is not present in {list(columns)}.")
    counts: dict[str, Counter[Any]] = {column: Counter() for column in columns}
    for batch in ds.select_columns(list(columns)).iter_batches(batch_format="pandas", batch_size=None):
        for column in columns:
            values = batch[column]
            if splits_lists and _has_lists(values):
                counts[column].update(value for each in values for value in _hashable(each))
            else:
                counts[column].update(map(_hashable, values))
    positions = {}
    for column, count in counts.items():
        kept = dict(count.most_common(most[column])) if column in most else count
        values = [value for value in kept if not _is_null(value)]
        if len(values) < len(kept) and not takes_nulls:
            raise ValueError(
                "Unable to fit column because it contains null values. Consider imputing missing values first. The "
                f"column is {column!r}."
            )
        positions[_key(column)] = {value: position for position, value in enumerate(sorted(values))}
    return positions


def _check_no_nulls(df: Any, columns: Iterable[str]) -> None:
    found = [column for column in columns if df[column].isnull().to_numpy().any()]
    if found:
        raise ValueError(
            f"Unable to transform columns {found} because they contain null values. Consider imputing missing values "
            "first."
        )


def _is_null(value: Any) -> bool:
    return value is None or value != value


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _has_lists(values: Iterable[Any]) -> bool:
    return _is_list(next((value for value in values if value is not None), None))


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    if isinstance(value, list):
        return tuple(value)
    return value.item() if isinstance(value, np.generic) else value
