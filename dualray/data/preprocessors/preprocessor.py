"""The base of all preprocessors."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dualray import cloudpickle
from dualray.data import blocks
from dualray.data.dataset import Dataset

__all__ = ["Preprocessor", "PreprocessorNotFittedException"]


class PreprocessorNotFittedException(RuntimeError):
    """A preprocessor was to transform data before `fit` was called."""


class Preprocessor:
    """Base of preprocessors, also of your own: write `_transform_pandas` or `_transform_numpy`, and perhaps `_fit`.

    Attributes:
        stats_: the numbers that `fit` learned, by name, such as "mean(x)".
    """

    _is_fittable = True

    class FitStatus(StrEnum):
        """Whether `fit` is needed, and was called."""

        NOT_FITTABLE = "NOT_FITTABLE"
        NOT_FITTED = "NOT_FITTED"
        PARTIALLY_FITTED = "PARTIALLY_FITTED"
        FITTED = "FITTED"

    def __init__(self) -> None:
        self.stats_: dict[str, Any] = {}

    def fit_status(self) -> FitStatus:
        """Return whether `fit` is needed, and was called."""
        if not self._is_fittable:
            return Preprocessor.FitStatus.NOT_FITTABLE
        learned = any(name.endswith("_") and value for name, value in vars(self).items())
        is_fitted = learned or getattr(self, "_fitted", False)
        return Preprocessor.FitStatus.FITTED if is_fitted else Preprocessor.FitStatus.NOT_FITTED

    def fit(self, ds: Dataset) -> Self:
        """Learn the numbers of a dataset, and return the preprocessor. A second call forgets those of the first."""
        status = self.fit_status()
        if status == Preprocessor.FitStatus.NOT_FITTABLE:
            return self
        if status != Preprocessor.FitStatus.NOT_FITTED:
            warnings.warn(
                "`fit` has already been called on the preprocessor (or at least one contained preprocessors if this is "
                "a chain). All previously fitted state will be overwritten!",
                stacklevel=2,
            )
        self.stats_ = {}
        self._fit(ds)
        self._fitted = True
        return self

    def fit_transform(
        self,
        ds: Dataset,
        *,
        transform_num_cpus: float | None = None,
        transform_memory: float | None = None,
        transform_batch_size: int | None = None,
        transform_concurrency: int | None = None,
    ) -> Dataset:
        """Learn the numbers of a dataset, and return the transformed dataset; arguments as of `transform`."""
        return self.fit(ds).transform(
            ds,
            num_cpus=transform_num_cpus,
            memory=transform_memory,
            batch_size=transform_batch_size,
            concurrency=transform_concurrency,
        )

    def transform(
        self,
        ds: Dataset,
        *,
        batch_size: int | None = None,
        num_cpus: float | None = None,
        memory: float | None = None,
        concurrency: int | None = None,
    ) -> Dataset:
        """Return the transformed dataset, whose rows are computed when somebody reads them.

        Args:
            ds: the dataset.
            batch_size, num_cpus, memory, concurrency: as of `map_batches`.

        Raises:
            PreprocessorNotFittedException: `fit` was not called before.
        """
        self._check_is_fitted("transform")
        given = {"batch_size": batch_size, "num_cpus": num_cpus, "memory": memory, "concurrency": concurrency}
        return self._transform(ds, {name: value for name, value in given.items() if value is not None})

    def transform_batch(self, data: Any) -> Any:
        """Return a transformed DataFrame, Arrow table, array or dict of arrays, in this process.

        Raises:
            PreprocessorNotFittedException: `fit` was not called before.
            ValueError: `data` has another type.
        """
        self._check_is_fitted("transform_batch")
        return self._transform_batch(data)

    def get_input_columns(self) -> list[str]:
        """Return the names of the columns that it reads."""
        return list(getattr(self, "columns", []))

    def get_output_columns(self) -> list[str]:
        """Return the names of the columns that it writes."""
        return list(getattr(self, "output_columns", []))

    def has_stats(self) -> bool:
        """Return whether `fit` has learned numbers."""
        return bool(getattr(self, "stats_", None))

    def serialize(self) -> bytes:
        """Return the preprocessor as bytes, which `Preprocessor.deserialize` takes."""
        pickled: bytes = cloudpickle.dumps(self)
        return pickled

    @staticmethod
    def deserialize(serialized: bytes) -> Preprocessor:
        """Return the preprocessor of bytes that `serialize` returned. Only take bytes that you trust."""
        loaded: Preprocessor = pickle.loads(serialized)
        return loaded

    # ---- For derived classes ---------------------------------------------------------------------------------------

    def _fit(self, ds: Dataset) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} has no method _fit; set _is_fittable = False if it learns nothing"
        )

    def _transform_pandas(self, df: Any) -> Any:
        raise NotImplementedError

    def _transform_numpy(self, np_data: Any) -> Any:
        raise NotImplementedError

    def _get_transform_config(self) -> dict[str, Any]:
        """Arguments of `map_batches`, such as `batch_size`."""
        return {}

    @classmethod
    def preferred_batch_format(cls) -> str:
        """Return "pandas" or "numpy": which method to call, where there are both."""
        return "pandas"

    # ----------------------------------------------------------------------------------------------------------------

    def _transform(self, ds: Dataset, options: Mapping[str, Any]) -> Dataset:
        function, kind = self._function()
        return ds.map_batches(function, batch_format=kind, **{**self._get_transform_config(), **options})

    def _function(self) -> tuple[Any, str]:
        """The method that transforms a batch, and the format of its batches."""
        of = type(self)
        functions: dict[str, Any] = {}
        if of._transform_pandas is not Preprocessor._transform_pandas:
            functions["pandas"] = self._transform_pandas
        if of._transform_numpy is not Preprocessor._transform_numpy:
            functions["numpy"] = self._transform_numpy
        if not functions:
            raise NotImplementedError(f"{of.__name__} has no method _transform_pandas or _transform_numpy")
        kind = self.preferred_batch_format() if len(functions) > 1 else next(iter(functions))
        return functions[kind], kind

    def _transform_batch(self, data: Any) -> Any:
        import pandas as pd  # noqa: PLC0415 - only programs with preprocessors pay for it

        if not isinstance(data, pd.DataFrame | pa.Table | Mapping | np.ndarray):
            raise ValueError(
                f"transform_batch takes a pandas DataFrame, an Arrow table, an array or a dict of arrays, not "
                f"{type(data).__name__}"
            )
        function, kind = self._function()
        if isinstance(data, np.ndarray):
            data = {"data": data} if kind == "pandas" else data
        if isinstance(data, pd.DataFrame) and kind == "pandas":
            return function(data.copy())
        if isinstance(data, np.ndarray):
            return function(data)
        return function(blocks.batch_of(blocks.table_of_batch(data, "transform_batch"), kind))

    def _check_is_fitted(self, verb: str) -> None:
        if self.fit_status() in (Preprocessor.FitStatus.NOT_FITTED, Preprocessor.FitStatus.PARTIALLY_FITTED):
            raise PreprocessorNotFittedException(
                f"`fit` must be called before `{verb}`, or call fit_transform(), which does both"
            )


def learned(ds: Dataset, functions: Sequence[Any]) -> dict[str, Any]:
    """The results of aggregate functions.

    Raises:
        ValueError: the dataset has no rows.
    """
    found: dict[str, Any] | None = ds.aggregate(*functions)
    if found is None:
        raise ValueError("fit needs a dataset with rows, but this one has none")
    return found


class OfColumns(Preprocessor):
    """One that reads some columns, and writes as many.

    Args:
        columns: the columns that it reads.
        output_columns: the columns that it writes. Default: the same.

    Raises:
        ValueError: there are more columns of one kind than of the other.
    """

    def __init__(self, columns: Sequence[str], output_columns: Sequence[str] | None = None) -> None:
        super().__init__()
        if output_columns and len(columns) != len(output_columns):
            raise ValueError(
                f"Invalid output_columns: The length of columns and output_columns must match, but there are "
                f"{len(columns)} and {len(output_columns)}"
            )
        self.columns = list(columns)
        self.output_columns = list(output_columns or columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(columns={self.columns!r}, output_columns={self.output_columns!r})"

    def _pairs(self) -> zip[tuple[str, str]]:
        return zip(self.columns, self.output_columns, strict=True)
