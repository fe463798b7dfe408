"""Batches as tensors of PyTorch."""

from __future__ import annotations

import pytest

import dualray as ray
from dualray.data.collate_fn import ArrowBatchCollateFn

torch = pytest.importorskip("torch")


def test_batches_of_tensors(numbers):
    data = numbers.map_batches(lambda batch: {"id": batch["id"], "half": batch["id"] / 2})
    first, *_, last = data.iter_torch_batches(batch_size=30, dtypes={"half": torch.float32})
    assert (first["id"].dtype, first["half"].dtype, len(last["id"])) == (torch.int64, torch.float32, 10)
    assert [len(batch["id"]) for batch in data.iter_torch_batches(batch_size=30, drop_last=True)] == [30, 30, 30]
    stirred = data.iter_torch_batches(batch_size=100, local_shuffle_buffer_size=50, local_shuffle_seed=1)
    ids = next(iter(stirred))["id"].tolist()
    assert sorted(ids) == list(range(100)) != ids
    with pytest.raises(TypeError, match="column 's' of type object cannot become a tensor"):
        next(ray.data.from_items([{"s": "a"}]).iter_torch_batches())


def test_a_users_function_makes_batches(numbers):
    class Rows(ArrowBatchCollateFn):
        def __call__(self, batch):
            return batch.num_rows

    assert list(numbers.iter_torch_batches(batch_size=60, collate_fn=Rows())) == [60, 40]
    sums = numbers.iter_torch_batches(batch_size=50, collate_fn=lambda batch: int(batch["id"].sum()))
    assert list(sums) == [1225, 3725]


def test_pairs_of_features_and_labels(numbers):
    data = numbers.map_batches(lambda batch: {"a": batch["id"], "b": batch["id"] * 2, "y": batch["id"] % 2})
    features, label = next(iter(data.to_torch(label_column="y", batch_size=10, label_column_dtype=torch.float32)))
    assert (features.shape, label.shape, label.dtype) == ((10, 2), (10, 1), torch.float32)
    named, _ = next(iter(data.to_torch(feature_columns={"x": ["a"]}, batch_size=5, unsqueeze_feature_tensors=False)))
    assert named["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_dataset_of_pytorch():
    pairs = torch.utils.data.TensorDataset(torch.arange(20), torch.arange(20) * 2)
    row = ray.data.from_torch(pairs).take_all()[3]["item"]
    assert [int(value) for value in row] == [3, 6]
