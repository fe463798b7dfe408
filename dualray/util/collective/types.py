"""Backends, and what a reduction computes."""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["Backend", "ReduceOp"]


class Backend:
    """The names of backends. `Backend("gloo")` gives the name as it is written here.

    Raises:
        ValueError: there is no backend of this name.
    """

    NCCL: Final = "NCCL"
    GLOO: Final = "GLOO"
    UNRECOGNIZED: Final = "unrecognized"

    def __new__(cls, name: str) -> str:  # type: ignore[misc]  # as in Ray: the names are str
        if name.upper() in ("GLOO", "TORCH_GLOO"):
            return cls.GLOO
        if name.upper() == "NCCL":
            return cls.NCCL
        raise ValueError(f"there is no backend {name!r}: use 'gloo'")


class ReduceOp(Enum):
    """How a reduction combines the tensors of all ranks, element by element."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
