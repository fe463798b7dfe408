"""The end of a graph with several outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dualray.dag.dag_node import DAGNode, Input


class MultiOutputNode(DAGNode):
    """The end of a graph with several outputs: `execute` returns a list of them.

    Args:
        args: a list or tuple of nodes.

    Raises:
        ValueError: `args` is neither.
    """

    def __init__(self, args: list[Any] | tuple[Any, ...]) -> None:
        if not isinstance(args, list | tuple):
            raise ValueError(f"Invalid input type for `args`: MultiOutputNode takes a list of nodes, not {args!r}")
        super().__init__(args)

    def __repr__(self) -> str:
        return f"MultiOutputNode({list(self._args)!r})"

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: Input) -> Any:
        return list(args)
