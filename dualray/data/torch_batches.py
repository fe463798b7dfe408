"""Batches as tensors of PyTorch. Only programs that use PyTorch import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def tensors_of(batch: Mapping[str, NDArray[Any]], dtypes: Any, device: Any) -> dict[str, Any]:
    """The columns of a batch as tensors.

    Raises:
        TypeError: a column has no numbers.
    """
    import torch  # noqa: PLC0415 - only programs that use PyTorch pay for it

    made = {}
    for name, values in batch.items():
        array = np.ascontiguousarray(values)
        if array.dtype == object and len(array) and isinstance(array[0], np.ndarray | list):
            array = np.stack([np.asarray(row) for row in values])
        if array.dtype.kind not in "biufc":
            raise TypeError(
                f"column {name!r} of type {array.dtype} cannot become a tensor; remove the column with "
                "drop_columns(), or make the tensors in a function with collate_fn="
            )
        if not array.flags.writeable:
            array = array.copy()  # PyTorch warns of arrays that it must not write
        dtype = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
        made[name] = torch.as_tensor(array, dtype=dtype, device=None if device in (None, "auto") else device)
    return made


def torch_dataset(
    batches: Callable[[], Iterator[Any]],
    label_column: str | None,
    feature_columns: Sequence[Any] | Mapping[str, Sequence[str]] | None,
    dtypes: tuple[Any, Any],
    unsqueezes: tuple[bool, bool],
) -> Any:
    """A `torch.utils.data.IterableDataset` of pairs (features, label); see `DataIterator.to_torch`."""
    import torch  # noqa: PLC0415 - as above
    from torch.utils.data import IterableDataset  # noqa: PLC0415 - as above

    label_dtype, feature_dtypes = dtypes
    unsqueezes_label, unsqueezes_features = unsqueezes

    def joined(batch: Mapping[str, Any], columns: Sequence[str], dtype: Any) -> Any:
        found = [batch[name] if dtype is None else batch[name].to(dtype) for name in columns]
        if unsqueezes_features:
            found = [each.unsqueeze(1) if each.dim() == 1 else each for each in found]
        return torch.cat(found, dim=1) if len(found) > 1 else found[0]

    def features(batch: Mapping[str, Any]) -> Any:
        if isinstance(feature_columns, Mapping):
            return {
                key: joined(batch, columns, _dtype_of(feature_dtypes, key)) for key, columns in feature_columns.items()
            }
        if feature_columns and not isinstance(feature_columns[0], str):
            return [
                joined(batch, columns, _dtype_of(feature_dtypes, number))
                for number, columns in enumerate(feature_columns)
            ]
        chosen = list(feature_columns or [name for name in batch if name != label_column])
        return joined(batch, chosen, feature_dtypes)

    class Pairs(IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
        """Pairs of features and labels."""

        def __iter__(self) -> Iterator[Any]:
            for batch in batches():
                label = None
                if label_column is not None:
                    label = batch[label_column] if label_dtype is None else batch[label_column].to(label_dtype)
                    label = label.unsqueeze(1) if unsqueezes_label and label.dim() == 1 else label
                yield features(batch), label

    return Pairs()


def collated(
    batches: Iterator[Any], collate_fn: Callable[[Any], Any] | None, dtypes: Any, device: Any
) -> Iterator[Any]:
    """Batches as a user's function makes them, or as dicts of tensors."""
    for batch in batches:
        if collate_fn is None:
            yield tensors_of(batch, dtypes, device)
        else:
            yield collate_fn(batch)


def _dtype_of(dtypes: Any, key: Any) -> Any:
    if isinstance(dtypes, Mapping):
        return dtypes.get(key)
    return dtypes[key] if isinstance(dtypes, list | tuple) else dtypes
