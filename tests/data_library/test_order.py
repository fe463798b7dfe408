"""The order of rows and blocks: sorts with boundaries, and mixes. The blocks are those of Ray 2.60."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

import dualray as ray
from dualray.data import MixStoppingCondition
from dualray.data.expressions import col, random, udf


def blocks(data: ray.data.Dataset, name: str) -> list[list[int]]:
    return [table.to_pydict().get(name, []) for table in ray.get(data.to_arrow_refs())]


@pytest.mark.parametrize(
    ("boundaries", "descending", "expected"),
    [
        ([3, 5], False, [[0, 1, 2], [3, 4], [5, 6, 7]]),
        ([3, 5], True, [[7, 6, 5], [4, 3], [2, 1, 0]]),
        ([5, 3], False, [[0, 1, 2], [3, 4], [5, 6, 7]]),
        ([2.5], False, [[0, 1, 2], [3, 4, 5, 6, 7]]),
        ([100], False, [[*range(8)], []]),
    ],
)
def test_boundaries_cut_the_blocks_of_a_sort(boundaries, descending, expected):
    data = ray.data.range(8).random_shuffle().sort("id", descending=descending, boundaries=boundaries)
    assert data.num_blocks() == len(expected)
    assert blocks(data, "id") == expected


def test_boundaries_are_values_of_the_first_key():
    rows = [{"a": a, "b": b} for a, b in ((5, 1), (1, 2), (None, 0), (3, 0), (1, 1))]
    data = ray.data.from_items(rows).sort(["a", "b"], boundaries=[3])
    assert blocks(data, "a") == [[1, 1], [3, 5, None]]
    assert blocks(data, "b") == [[1, 2], [0, 1, 0]]


@pytest.fixture
def pair() -> tuple[ray.data.Dataset, ray.data.Dataset]:
    low = ray.data.from_items([{"x": number} for number in range(8)]).repartition(4)
    high = ray.data.from_items([{"x": 100 + number} for number in range(4)]).repartition(4)
    return low, high


ALL = MixStoppingCondition.STOP_ON_LONGEST_DROP
FIRST = MixStoppingCondition.STOP_ON_SHORTEST


@pytest.mark.parametrize(
    ("weights", "ends", "expected"),
    [
        (None, ALL, [[0, 1], [100], [101], [2, 3], [102], [103], [4, 5], [6, 7]]),
        (None, FIRST, [[0, 1], [100], [101], [2, 3], [102], [103], [4, 5]]),
        ([3, 1], ALL, [[0, 1], [100], [2, 3], [101], [4, 5], [6, 7], [102], [103]]),
        ([0.5, 0.5], "stop_on_shortest", [[0, 1], [100], [101], [2, 3], [102], [103], [4, 5]]),
    ],
)
def test_a_mix_takes_blocks_by_weight(pair, weights, ends, expected):
    mixed = pair[0].mix(pair[1], weights=weights, stopping_condition=ends)
    assert blocks(mixed, "x") == expected
    assert mixed.count() == sum(map(len, expected))


def test_a_mix_of_three(pair):
    third = ray.data.from_items([{"x": -1}])
    mixed = pair[0].map(lambda row: row).mix(pair[1], third, weights=[4, 1, 1])
    assert sorted(row["x"] for row in mixed.take_all()) == [-1, *range(8), *range(100, 104)]
    assert "│ x     │" in repr(pair[0].mix(third))


def test_weights_that_cannot_be(pair):
    for weights in ([1], [1, 0], [1, -1]):
        with pytest.raises(ValueError, match="mix: 2 datasets need 2 weights above 0"):
            pair[0].mix(pair[1], weights=weights)
    with pytest.raises(TypeError, match="mix takes datasets"):
        pair[0].mix([1])
    with pytest.raises(ValueError, match="never"):
        pair[0].mix(pair[1], stopping_condition="never")


GROUPS = [{"g": number % 2, "v": number} for number in range(6)]


def test_a_column_of_each_group():
    @udf()
    def share(column):
        return pc.divide(pc.cast(column, "double"), pc.sum(column))

    data = ray.data.from_items(GROUPS).groupby("g").with_column("share", share(col("v")) * 6)
    assert data.take_all() == [
        *({"g": 0, "v": value, "share": value} for value in (0, 2, 4)),
        *({"g": 1, "v": value, "share": pytest.approx(value / 9 * 6)} for value in (1, 3, 5)),
    ]
    twice = ray.data.from_items(GROUPS[:2]).groupby("g").with_column("v", col("v") * 2)
    assert twice.take_all() == [{"g": 0, "v": 0}, {"g": 1, "v": 2}]
    with pytest.raises(TypeError, match="cannot be computed in groups"):
        data.groupby("g").with_column("r", random())
    with pytest.raises(TypeError, match="must be an expression"):
        data.groupby("g").with_column("r", 5)  # type: ignore[arg-type]  # refused


@pytest.mark.parametrize("key", ["id", ["id"], None])
def test_groups_in_words(numbers, key):
    assert repr(numbers.groupby(key)) == f"GroupedData(dataset={numbers!r}, key={key!r})"


def test_bundles_of_references(numbers):
    bundles = list(numbers.limit(20).iter_internal_ref_bundles())
    tables = [ray.get(entry.ref) for bundle in bundles for entry in bundle.blocks]
    assert [value for table in tables for value in table["id"].to_pylist()] == list(range(20))
    assert [bundle.num_rows() for bundle in bundles] == [table.num_rows for table in tables]
    assert sum(bundle.size_bytes() for bundle in bundles) == 160
    assert ray.get(bundles[0].block_refs) == tables[:1]


def test_references_to_the_first_rows_of_a_block(numbers):
    whole = numbers.materialize()
    for data in (whole.limit(20), numbers.limit(20), whole.split_at_indices([3])[0]):
        rows = [value for block in blocks(data, "id") for value in block]
        assert rows == list(range(data.count()))
