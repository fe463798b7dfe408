"""The verbs that PYTHON_MODE refuses: it runs every call in place, and nothing beside it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dualray.exceptions import DualrayError
from dualray.shared.model.ids import Address, FunctionID, NodeID, PlacementGroupID
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import FunctionTemplate, LabelTerm, NamedActor, PlacementGroupSpec, Ref
from dualray.user_verbs import Awaited


def _refuse(what: str) -> NoReturn:
    raise DualrayError(f"PYTHON_MODE has no {what}; use dualray.init(mode='sim') or mode='real'")


class InlineRefusals:
    """The verbs that PYTHON_MODE refuses, each in words."""

    @property
    def actor_instance(self) -> Any:
        _refuse("handle of the actor that runs")

    def is_cancelled(self) -> bool:
        """No call can be cancelled: it has ended when it returns."""
        return False

    def place_of(self, node: NodeID) -> tuple[str, str]:
        """This machine."""
        return "127.0.0.1", socket.gethostname()

    def find_actor(self, name: str, namespace: str) -> NamedActor:
        _refuse("names of actors")

    @property
    def namespace(self) -> str:
        """Nothing is named here."""
        return ""

    def load_class(self, function: FunctionID) -> Any:
        _refuse("names of actors")

    def check_pending_calls(self, handle: Ref, template: FunctionTemplate, limit: int) -> None:
        """Each call has ended when it returns."""

    def get_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited:
        _refuse("event loop, because each call ends before it returns")

    def wait_async(self, ref: Ref, ready: Callable[[], None]) -> Awaited:
        _refuse("event loop, because each call ends before it returns")

    def take_item(self, item: Ref) -> tuple[bool, Ref | None]:
        _refuse("streaming generators")

    def has_ended_before(self, item: Ref) -> bool:
        _refuse("streaming generators")

    def promise(self) -> Ref:
        _refuse("queues, because a wait in one process would never end")

    def keep_promise(self, ref: Ref, value: Any) -> None:
        _refuse("queues")

    def is_held_elsewhere(self, ref: Ref) -> bool:
        """There is no other process."""
        return False

    def find(self, object_id: bytes) -> Ref | None:
        """An id says everything here."""
        return None

    def spawn(self, function: Callable[[], object]) -> None:
        _refuse("background work")

    def explain(self, ref: Ref) -> str:
        """Every call has ended when it returns."""
        return "it is ready"

    def waiting(self) -> list[str]:
        """Nothing ever waits here."""
        return []

    def rows_of(
        self, addresses: Sequence[Address], table: str, timeout_ns: int
    ) -> dict[Address, list[dict[str, Any]] | None]:
        _refuse("state to list, because each call ends before it returns")

    def task_times(self, addresses: Sequence[Address], timeout_ns: int) -> tuple[list[dict[str, Any]], list[str]]:
        _refuse("state to list, because each call ends before it returns")

    def pids(self) -> Mapping[str, int]:
        _refuse("state to list, because each call ends before it returns")

    def head_rows(self, table: str) -> list[dict[str, Any]]:
        _refuse("state to list, because each call ends before it returns")

    def create_placement_group(self, spec: PlacementGroupSpec) -> PlacementGroupID:
        _refuse("placement groups")

    def remove_placement_group(self, group_id: PlacementGroupID) -> None:
        _refuse("placement groups")

    def request_resources(self, demands: Mapping[tuple[Resources, tuple[LabelTerm, ...]], int]) -> None:
        _refuse("nodes to launch")
