"""Parts of a dataset: samples, and rows for training and for tests."""

from __future__ import annotations

import pytest

import dualray as ray
from dualray.data import RandomSeedConfig


def ids(data):
    return [row["id"] for row in data.take_all()]


@pytest.mark.parametrize("method", ["random_shuffle", "randomize_block_order", "random_sample"])
def test_each_execution_has_its_own_order(numbers, method):
    def drawn(**options):
        share = (0.5,) if method == "random_sample" else ()
        return getattr(numbers, method)(*share, **options)

    data = drawn()
    first, second, third = ids(data), ids(data), ids(data)
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    fixed = drawn(seed=4)
    assert ids(fixed) == ids(fixed) == ids(drawn(seed=4))
    assert ids(fixed) != ids(drawn(seed=5))
    again = drawn(seed=RandomSeedConfig(seed=4))
    assert ids(again) == ids(fixed)
    assert ids(again) != ids(fixed)
    same = drawn(seed=RandomSeedConfig(seed=4, reseed_after_execution=False))
    assert ids(same) == ids(same) == ids(fixed)


def test_a_sample_with_a_seed_has_the_rows_of_rays():
    """Of python/ray/data/tests/test_map.py: each block draws from numpy's generator of its number and the seed."""
    data = ray.data.range(100, override_num_blocks=10).random_sample(0.1, seed=1234)
    assert ids(data) == ids(data) == [8, 49, 71, 78, 81, 85]


def test_each_epoch_has_its_own_local_shuffle(numbers):
    def epoch(**options):
        batches = numbers.iter_batches(batch_size=10, local_shuffle_buffer_size=50, **options)
        return [int(number) for batch in batches for number in batch["id"]]

    assert sorted(epoch()) == list(range(100))
    assert epoch() != epoch()
    assert epoch(local_shuffle_seed=3) == epoch(local_shuffle_seed=3)
    with pytest.raises(ValueError, match="needs a batch_size"):
        numbers.iter_batches(batch_size=None, local_shuffle_buffer_size=5)


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"split_type": "hash", "hash_column": "id"}])
def test_rows_for_training_and_for_tests(numbers, options):
    train, test = numbers.streaming_train_test_split(0.2, **options)
    assert sorted([*ids(train), *ids(test)]) == list(range(100))
    assert 8 < test.count() < 35


def test_rows_with_equal_values_come_into_the_same_part(numbers):
    data = numbers.map(lambda row: {"id": row["id"], "group": row["id"] % 10})
    train, test = data.streaming_train_test_split(0.3, split_type="hash", hash_column="group")
    assert set(train.unique("group")).isdisjoint(test.unique("group"))


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        (1.5, {}, "must be between 0 and 1"),
        (0.2, {"split_type": "stratified"}, "Invalid split type"),
        (0.2, {"split_type": "hash"}, "hash_column is required"),
        (0.2, {"split_type": "hash", "hash_column": "id", "seed": 3}, "seed is not supported"),
        (0.2, {"hash_column": "id"}, "hash_column is not supported"),
    ],
)
def test_what_a_streaming_split_refuses(numbers, size, options, words):
    with pytest.raises(ValueError, match=words):
        numbers.streaming_train_test_split(size, **options)


def test_a_part_that_would_be_empty_gets_a_row(numbers):
    ten = ray.data.range(10)
    assert [part.count() for part in ten.split_proportionately([0.98, 0.01])] == [8, 1, 1]
    with pytest.raises(ValueError, match="10 rows are too few"):
        ten.split_proportionately([0.01] * 20)
