"""Preprocessors that scale numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dualray.data.aggregate import AbsMax, Max, Mean, Min, Quantile, Std
from dualray.data.dataset import Dataset
from dualray.data.preprocessors.preprocessor import OfColumns, learned

_LEAST: Final = 1e-8
"""A spread below this is that of a constant column, which is not divided by it."""


class StandardScaler(OfColumns):
    """Subtract the mean of each column, and divide by its standard deviation. A constant column becomes 0.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
    """

    def _fit(self, ds: Dataset) -> None:
        self.stats_ = learned(ds, [*map(Mean, self.columns), *(Std(column, ddof=0) for column in self.columns)])

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            mean, std = self.stats_[f"mean({column})"], self.stats_[f"std({column})"]
            has_none = mean is None or std is None
            df[output] = np.nan if has_none else (df[column] - mean) / (std if std >= _LEAST else 1.0)
        return df


class MinMaxScaler(OfColumns):
    """Scale each column so that its values lie from 0 to 1. A constant column becomes 0.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
    """

    def _fit(self, ds: Dataset) -> None:
        self.stats_ = learned(ds, [*map(Min, self.columns), *map(Max, self.columns)])

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            least = self.stats_[f"min({column})"]
            spread = self.stats_[f"max({column})"] - least
            df[output] = (df[column] - least) / (spread if spread >= _LEAST else 1)
        return df


class MaxAbsScaler(OfColumns):
    """Divide each column by its largest absolute value. A column of zeros stays as it is.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
    """

    def _fit(self, ds: Dataset) -> None:
        self.stats_ = learned(ds, [AbsMax(column) for column in self.columns])

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            df[output] = df[column] / (self.stats_[f"abs_max({column})"] or 1)
        return df


class RobustScaler(OfColumns):
    """Subtract the median of each column, and divide by the distance of two quantiles.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        quantile_range: the two quantiles, from 0 to 1.
        quantile_precision: accepted as in Ray, and without effect: the quantiles are exact.
    """

    def __init__(
        self,
        columns: Sequence[str],
        quantile_range: tuple[float, float] = (0.25, 0.75),
        output_columns: Sequence[str] | None = None,
        quantile_precision: int = 800,
    ) -> None:
        super().__init__(columns, output_columns)
        self.quantile_range = quantile_range
        self.quantile_precision = quantile_precision

    def _fit(self, ds: Dataset) -> None:
        low, high = self.quantile_range
        asked = {"low_quantile": low, "median": 0.5, "high_quantile": high}
        self.stats_ = learned(
            ds, [Quantile(on, q, alias_name=f"{word}({on})") for on in self.columns for word, q in asked.items()]
        )

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            low, median, high = (
                self.stats_[f"{word}({column})"] for word in ("low_quantile", "median", "high_quantile")
            )
            df[output] = (df[column] - median) / (high - low) if high != low else np.zeros_like(df[column])
        return df


class Normalizer(OfColumns):
    """Divide the values of several columns by their norm, row by row.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        norm: "l1" (sum of absolute values), "l2" (square root of the sum of squares) or "max" (largest absolute value).

    Raises:
        ValueError: the norm is another.
    """

    _is_fittable = False

    def __init__(
        self, columns: Sequence[str], norm: str = "l2", *, output_columns: Sequence[str] | None = None
    ) -> None:
        super().__init__(columns, output_columns)
        if norm not in _NORMS:
            raise ValueError(f"Norm {norm} is not supported. Supported values are: {', '.join(_NORMS)}")
        self.norm = norm

    def _transform_pandas(self, df: Any) -> Any:
        values = df[self.columns]
        df[self.output_columns] = values.div(_NORMS[self.norm](values), axis=0).to_numpy()
        return df


_NORMS: Final = {
    "l1": lambda values: values.abs().sum(axis=1),
    "l2": lambda values: np.sqrt((values**2).sum(axis=1)),
    "max": lambda values: values.abs().max(axis=1),
}


class PowerTransformer(OfColumns):
    """Make each column more like a normal distribution by a power.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        power: the power.
        method: "yeo-johnson", or "box-cox" for positive numbers alone.

    Raises:
        ValueError: the method is another.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        power: float,
        method: str = "yeo-johnson",
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if method not in ("yeo-johnson", "box-cox"):
            raise ValueError(f"Method {method} is not supported. Supported values are: yeo-johnson, box-cox")
        self.power = power
        self.method = method

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            values = df[column].to_numpy(dtype=np.float64)
            df[output] = _box_cox(values, self.power) if self.method == "box-cox" else _yeo_johnson(values, self.power)
        return df


def _box_cox(values: Any, power: float) -> Any:
    return np.log(values) if power == 0 else (values**power - 1) / power


def _yeo_johnson(values: Any, power: float) -> Any:
    """Box-Cox of `1 + value` for positive values, and its mirror image for negative ones."""
    is_positive = values >= 0
    result = np.empty_like(values)
    result[is_positive] = _box_cox(values[is_positive] + 1, power)
    result[~is_positive] = -_box_cox(1 - values[~is_positive], 2 - power)
    return result
