"""Functions that all workers of a training call together: they wait for one another, or share a value."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from dualray import api
from dualray.train import session

__all__ = ["barrier", "broadcast_from_rank_zero"]

_T = TypeVar("_T")


def barrier() -> None:
    """Wait until every worker has called `barrier`.

    Raises:
        RuntimeError: called outside a training function.
        TrainingFailedError: raised by `fit`, if another worker ends, or reports, instead of calling `barrier`.
    """
    _meet("barrier()", None)


def broadcast_from_rank_zero(data: _T) -> _T:
    """Wait until every worker has called this function, and return the `data` of rank 0.

    Args:
        data: any value that can be pickled. The data of other ranks is ignored.

    Raises:
        RuntimeError: called outside a training function.
        TrainingFailedError: raised by `fit`, if another worker ends, or reports, instead of calling this function.
    """
    received: _T = _meet("broadcast_from_rank_zero()", data)
    return received


def _meet(what: str, data: Any) -> Any:
    training = session.current_or_none()
    if training is None:
        raise RuntimeError(
            f"train.collective.{what} was called outside a training function; call it only in the function that you "
            "give to a trainer"
        )
    if training.context.world_size == 1:
        return data
    rank = training.context.world_rank
    [met] = api.get(training.ledger.meet.remote(rank, time.monotonic(), data if rank == 0 else None))
    return api.get(met)[1]
