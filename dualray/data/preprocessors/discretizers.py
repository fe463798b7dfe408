"""Preprocessors that put numbers into bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dualray.data.aggregate import Max, Min
from dualray.data.dataset import Dataset
from dualray.data.preprocessors.preprocessor import OfColumns, learned


class _Bins(OfColumns):
    """Base of those that call `pandas.cut`."""

    def __init__(
        self,
        columns: Sequence[str],
        bins: Any,
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: Mapping[str, Any] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if isinstance(bins, Mapping) and not all(column in bins for column in columns):
            raise ValueError("If `bins` is a dictionary, all elements of `columns` must be present in it.")
        self.bins = bins
        self.right = right
        self.include_lowest = include_lowest
        self.duplicates = duplicates
        self.dtypes = dict(dtypes or {})

    def _given(self, column: str) -> Any:
        return self.bins[column] if isinstance(self.bins, Mapping) else self.bins

    def _edges(self, column: str) -> Any:
        return self._given(column)

    def _transform_pandas(self, df: Any) -> Any:
        import pandas as pd  # noqa: PLC0415 - only programs with preprocessors pay for it

        for column, output in self._pairs():
            type_: Any = self.dtypes.get(column)
            is_categorical = isinstance(type_, pd.CategoricalDtype)
            df[output] = pd.cut(
                df[column],
                self._edges(column),
                right=self.right,
                labels=list(type_.categories) if is_categorical else False,
                ordered=bool(type_.ordered) if is_categorical else True,
                include_lowest=self.include_lowest,
                duplicates=self.duplicates,
            )
        return df


class CustomKBinsDiscretizer(_Bins):
    """Replace each number by the position of its bin, between edges that you give.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        bins: the edges, or a dict of them by column.
        right, include_lowest, duplicates: as of `pandas.cut`.
        dtypes: for some columns, a `pandas.CategoricalDtype` whose categories name the bins.
    """

    _is_fittable = False


class UniformKBinsDiscretizer(_Bins):
    """Replace each number by the position of its bin. All bins of a column have the same width.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        bins: the number of bins, or a dict of such numbers by column.
        right, include_lowest, duplicates: as of `pandas.cut`.
        dtypes: for some columns, a `pandas.CategoricalDtype` whose categories name the bins.
    """

    def _fit(self, ds: Dataset) -> None:
        for column in self.columns:
            if not isinstance(self._given(column), int):
                raise TypeError(f"`bins` must be an integer or a dict of integers, got {self._given(column)!r}")
        found = learned(ds, [*map(Min, self.columns), *map(Max, self.columns)])
        self.stats_ = {
            column: self._uniform(found[f"min({column})"], found[f"max({column})"], self._given(column))
            for column in self.columns
        }

    def _edges(self, column: str) -> Any:
        return self.stats_[column]

    def _uniform(self, least: float, most: float, count: int) -> Any:
        """Edges of bins of one width. The outer one that is not part of its bin is a thousandth farther out."""
        if np.isinf(least) or np.isinf(most):
            raise ValueError("Cannot specify integer `bins` when input data contains infinity.")
        if least == most:
            apart = 0.001 * abs(least) or 0.001
            return np.linspace(least - apart, most + apart, count + 1)
        edges = np.linspace(least, most, count + 1)
        edges[0 if self.right else -1] += (-1 if self.right else 1) * 0.001 * (most - least)
        return edges
