"""Preprocessors that fill and join columns, and one of several others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np

from dualray.data.aggregate import Mean
from dualray.data.dataset import Dataset
from dualray.data.preprocessors.preprocessor import OfColumns, Preprocessor, learned

_log: Final = logging.getLogger(__name__)
_STRATEGIES: Final = ("mean", "most_frequent", "constant")


class SimpleImputer(OfColumns):
    """Fill the nulls of columns.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        strategy: "mean", "most_frequent" or "constant".
        fill_value: the value, with "constant".

    Raises:
        ValueError: the strategy is another, or "constant" has no `fill_value`.
    """

    def __init__(
        self,
        columns: Sequence[str],
        strategy: str = "mean",
        fill_value: Any = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if strategy not in _STRATEGIES:
            raise ValueError(f"Strategy {strategy} is not supported. Supported values are: {', '.join(_STRATEGIES)}")
        if strategy == "constant":
            self._is_fittable = False
            if fill_value is None:
                raise ValueError('`fill_value` must be set when using "constant" strategy.')
        self.strategy = strategy
        self.fill_value = fill_value

    def _fit(self, ds: Dataset) -> None:
        if self.strategy == "mean":
            self.stats_ = learned(ds, [*map(Mean, self.columns)])
            return
        counts: dict[str, Counter[Any]] = {column: Counter() for column in self.columns}
        for batch in ds.select_columns(self.columns).iter_batches(batch_format="pandas", batch_size=None):
            for column, count in counts.items():
                count.update(batch[column].dropna().tolist())
        self.stats_ = {
            f"most_frequent({column})": count.most_common(1)[0][0] if count else None
            for column, count in counts.items()
        }

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            is_constant = self.strategy == "constant"
            value = self.fill_value if is_constant else self.stats_[f"{self.strategy}({column})"]
            if value is None:
                raise ValueError(f"Column {column} has no fill value. Check the data used to fit the SimpleImputer.")
            if column not in df.columns:
                df[output] = value
            elif df[column].dtype.name == "category":
                is_known = value in df[column].cat.categories
                df[output] = (df[column] if is_known else df[column].cat.add_categories([value])).fillna(value)
            else:
                df[output] = df[column].fillna(value)
        return df


class Concatenator(Preprocessor):
    """Join columns of numbers into one column of arrays, and leave out the columns themselves.

    Args:
        columns: the columns, in the order of the array.
        output_column_name: the name of the new column.
        dtype: the type of the arrays. Default: that of the columns.
        raise_if_missing: raise an error if a column is missing; else a warning is logged.
        flatten: the columns have arrays, which are joined end to end.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        output_column_name: str = "concat_out",
        dtype: Any = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
    ) -> None:
        super().__init__()
        self.columns = list(columns)
        self.output_column_name = output_column_name
        self.dtype = dtype
        self.raise_if_missing = raise_if_missing
        self.flatten = flatten

    def get_output_columns(self) -> list[str]:
        """Return the name of the column that it writes."""
        return [self.output_column_name]

    def _transform_pandas(self, df: Any) -> Any:
        missing = sorted(set(self.columns) - set(df.columns))
        if missing:
            message = f"Missing columns specified in '{self.columns}': {missing}"
            if self.raise_if_missing:
                raise ValueError(message)
            _log.warning(message)
        chosen = df[[column for column in self.columns if column not in missing]]
        if self.flatten:
            rows = ([np.atleast_1d(each) for each in row] for row in chosen.to_numpy())
            joined = [np.concatenate(row, dtype=self.dtype) for row in rows]
        else:
            joined = list(chosen.to_numpy(dtype=self.dtype))
        df = df.drop(columns=chosen.columns)
        df[self.output_column_name] = joined
        return df

    def __repr__(self) -> str:
        return f"Concatenator(columns={self.columns!r}, output_column_name={self.output_column_name!r})"


class Chain(Preprocessor):
    """Several preprocessors, one after the other.

    Args:
        preprocessors: in the order in which they transform the data.
    """

    def __init__(self, *preprocessors: Preprocessor) -> None:
        super().__init__()
        self.preprocessors = preprocessors

    def fit_status(self) -> Preprocessor.FitStatus:
        """Return whether `fit` is needed, and was called, for all, some or none of the preprocessors."""
        found = {each.fit_status() for each in self.preprocessors} - {Preprocessor.FitStatus.NOT_FITTABLE}
        if not found:
            return Preprocessor.FitStatus.NOT_FITTABLE
        return found.pop() if len(found) == 1 else Preprocessor.FitStatus.PARTIALLY_FITTED

    def fit_transform(self, ds: Dataset, **options: Any) -> Dataset:
        """Fit and call each preprocessor; return the transformed dataset."""
        return reduce(lambda transformed, each: each.fit_transform(transformed, **options), self.preprocessors, ds)

    def _fit(self, ds: Dataset) -> None:
        for each in self.preprocessors[:-1]:
            ds = each.fit_transform(ds)
        self.preprocessors[-1].fit(ds)

    def _transform(self, ds: Dataset, options: Mapping[str, Any]) -> Dataset:
        return reduce(lambda transformed, each: each.transform(transformed, **options), self.preprocessors, ds)

    def _transform_batch(self, data: Any) -> Any:
        return reduce(lambda transformed, each: each.transform_batch(transformed), self.preprocessors, data)

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.preprocessors))})"
