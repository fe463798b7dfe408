"""Preprocessors that make words and numbers of texts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dualray.data.dataset import Dataset
from dualray.data.preprocessors.preprocessor import OfColumns, Preprocessor

Split = Callable[[str], list[str]]


class Tokenizer(OfColumns):
    """Split texts into lists of words.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        tokenization_fn: a function of a text that returns a list. Default: it splits at spaces.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        tokenization_fn: Split | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.tokenization_fn = tokenization_fn or _split_at_spaces

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            df[output] = df[column].map(self.tokenization_fn)
        return df


def _split_at_spaces(text: str) -> list[str]:
    return text.split(" ")


class CountVectorizer(OfColumns):
    """Replace each text of a column by a list with the number of times that it has each word, the commonest word first.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        tokenization_fn: a function of a text that returns a list of words. Default: it splits at spaces.
        max_features: how many words of each column to count: the commonest ones. Default: all.
    """

    def __init__(
        self,
        columns: Sequence[str],
        tokenization_fn: Split | None = None,
        max_features: int | None = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.tokenization_fn = tokenization_fn or _split_at_spaces
        self.max_features = max_features

    def _fit(self, ds: Dataset) -> None:
        counts: dict[str, Counter[str]] = {column: Counter() for column in self.columns}
        for batch in ds.select_columns(self.columns).iter_batches(batch_format="pandas", batch_size=None):
            for column, count in counts.items():
                for text in batch[column]:
                    count.update(self.tokenization_fn(text))
        self.stats_ = {
            f"token_counts({column})": Counter(dict(count.most_common(self.max_features)))
            for column, count in counts.items()
        }

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            words = [word for word, _ in self.stats_[f"token_counts({column})"].most_common()]
            counts = [Counter(self.tokenization_fn(text)) for text in df[column]]
            df[output] = [[count[word] for word in words] for count in counts]
        return df


class HashingVectorizer(OfColumns):
    """Replace each text of a column by a list of `num_features` counts: that of a word is at the place of its hash.

    Args:
        columns, output_columns: the columns that it reads and writes; by default the same.
        num_features: the length of the lists.
        tokenization_fn: a function of a text that returns a list of words. Default: it splits at spaces.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        num_features: int,
        tokenization_fn: Split | None = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.num_features = num_features
        self.tokenization_fn = tokenization_fn or _split_at_spaces

    def _transform_pandas(self, df: Any) -> Any:
        for column, output in self._pairs():
            words = [self.tokenization_fn(text) for text in df[column]]
            counts = [Counter(_place(word, self.num_features) for word in each) for each in words]
            df[output] = [[count[place] for place in range(self.num_features)] for count in counts]
        return df


class FeatureHasher(Preprocessor):
    """Add a column of arrays of `num_features` numbers: that of a column is added at the place of the hash of its name.

    Args:
        columns: columns of numbers, such as the counts of words.
        num_features: the length of the arrays.
        output_column: the name of the new column.
    """

    _is_fittable = False

    def __init__(self, columns: Sequence[str], num_features: int, output_column: str) -> None:
        super().__init__()
        self.columns = list(columns)
        self.num_features = num_features
        self.output_column = output_column

    def get_output_columns(self) -> list[str]:
        """Return the name of the column that it writes."""
        return [self.output_column]

    def _transform_pandas(self, df: Any) -> Any:
        values = df[self.columns].to_numpy()
        sums = np.zeros((len(df), self.num_features), dtype=values.dtype)
        for number, column in enumerate(self.columns):
            sums[:, _place(column, self.num_features)] += values[:, number]
        df[self.output_column] = list(sums)
        return df

    def __repr__(self) -> str:
        return f"FeatureHasher(columns={self.columns!r}, output_column={self.output_column!r})"


def _place(value: object, count: int) -> int:
    """The hash of a text, from 0 to `count` - 1, which is the same in all processes and in Ray."""
    return int(hashlib.sha256(str(value).encode()).hexdigest(), 16) % count
