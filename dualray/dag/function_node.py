"""Calls of remote functions as nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dualray.dag.dag_node import DAGNode, Input


class FunctionNode(DAGNode):
    """A call of a remote function as a node; `function` is that function with its options."""

    def __init__(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        super().__init__(args, kwargs, options)
        self._function = function

    def _title(self) -> str:
        return str(getattr(self._function, "__name__", "function"))

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: Input) -> Any:
        return self._function.remote(*args, **kwargs)
