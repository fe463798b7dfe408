"""The setup that a framework needs before the training function runs: variables and a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualray.train.session import TrainContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker is. `port`: one that is free on its machine."""

    node: str
    ip_address: str
    port: int
    is_virtual: bool = False


class BackendConfig:
    """No framework. A framework's own derives from it; it is sent to the workers."""

    def environment(self, places: Sequence[Place]) -> list[Mapping[str, str]]:
        """Variables for each worker, by rank; called in the driver."""
        return [{} for _ in places]

    def training(self, context: TrainContext) -> AbstractContextManager[None]:
        """What surrounds the training function, in the worker; its variables are set."""
        return nullcontext()
