"""Loaders of PyTorch that read one worker's share, and whose batches lie on its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler

__all__ = ["on_device", "with_share"]


def with_share(loader: Any, rank: int, size: int) -> Any:
    """A loader of the share of a worker; the loader itself if the program has chosen the shares."""
    if isinstance(loader.sampler, DistributedSampler) or isinstance(loader.dataset, IterableDataset):
        return loader
    shuffles = not isinstance(loader.sampler, SequentialSampler)
    return DataLoader(
        dataset=loader.dataset,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        sampler=DistributedSampler(loader.dataset, num_replicas=size, rank=rank, shuffle=shuffles),
    )


def on_device(loader: Any, device: Any, *, is_early: bool) -> _OnDevice:
    """A loader whose batches lie on a device. `is_early`: a copy to a GPU may go on while the model computes."""
    return _OnDevice(loader, device, is_early=is_early and device.type == "cuda")


class _OnDevice(DataLoader):  # type: ignore[misc]  # PyTorch has no types where it is not installed
    """See `on_device`. It has the attributes of the loader: `sampler`, `dataset`, `batch_size`."""

    def __init__(self, loader: Any, device: Any, *, is_early: bool) -> None:
        self.__dict__.update(loader.__dict__, _loader=loader, _device=device, _is_early=is_early)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield self._moved(batch)

    def _moved(self, item: Any) -> Any:
        if isinstance(item, Mapping):
            return {name: self._moved(value) for name, value in item.items()}
        if isinstance(item, tuple):
            moved = map(self._moved, item)
            return type(item)(*moved) if hasattr(item, "_fields") else tuple(moved)
        if isinstance(item, list):
            return [self._moved(value) for value in item]
        return item.to(self._device, non_blocking=self._is_early) if hasattr(item, "to") else item
