"""The input of a graph, and parts of it, as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from dualray.dag.dag_node import DAGNode, Input


class DAGInputData:
    """The input of an `execute` with several arguments: `data[0]` by position, `data["x"]` by name."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._args = list(args)
        self._kwargs = dict(kwargs)

    def __getitem__(self, key: int | str) -> Any:
        return self._args[key] if isinstance(key, int) else self._kwargs[key]

    def __repr__(self) -> str:
        given = [*map(repr, self._args), *(f"{name}={value!r}" for name, value in self._kwargs.items())]
        return f"DAGInputData({', '.join(given)})"


class InputNode(DAGNode):
    """The input of a graph. A graph has one, opened with `with InputNode() as inp:`.

    `inp` is the whole input; `inp[0]`, `inp.x` and `inp["x"]` are parts of it. For `execute(1, x=2)` the parts are the
    arguments. For `execute(value)` they are `value[0]`, `value.x` and `value["x"]`.

    Args:
        input_type: a note for readers; ignored.
    """

    is_input = True

    def __init__(self, *args: Any, input_type: Any = None, **kwargs: Any) -> None:
        if args or kwargs:
            raise ValueError(
                "InputNode should not take any args or kwargs: the input comes with node.execute(...), and "
                f"InputNode() was given {args or kwargs!r}"
            )
        super().__init__()
        self._is_open = False
        self._parts: dict[int | str, InputAttributeNode] = {}

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_parts" not in self.__dict__:
            raise AttributeError(name)  # not made yet, or Python looking for a protocol
        return self._part(name, is_item=False)

    def __getitem__(self, key: int | str) -> InputAttributeNode:
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise AssertionError(  # as in Ray
                f"InputNode[{key!r}]: Please only use int index or str as first-level key to access fields of dag input"
            )
        return self._part(key, is_item=True)

    def _part(self, key: int | str, *, is_item: bool) -> InputAttributeNode:
        if key not in self._parts:
            self._parts[key] = InputAttributeNode(self, key, is_item=is_item)
        return self._parts[key]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_parts": {}}  # each part knows its input

    def __repr__(self) -> str:
        return "InputNode()"

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: Input) -> Any:
        if not self._is_open:
            raise AssertionError(  # as in Ray
                "InputNode is a singleton instance that should be only used in context manager for dag building and "
                "execution: write `with InputNode() as inp:`, and bind `inp` in its block"
            )
        args_given, kwargs_given = given
        if len(args_given) == 1 and not kwargs_given:
            return args_given[0]
        return DAGInputData(args_given, kwargs_given)


class InputAttributeNode(DAGNode):
    """A part of a graph's input: `inp[0]`, `inp.x` or `inp["x"]`."""

    def __init__(self, whole: InputNode, key: int | str, *, is_item: bool) -> None:
        super().__init__()
        self._whole = whole
        self._key = key
        self._is_item = is_item

    @property
    def key(self) -> int | str:
        """The index or the name of the part."""
        return self._key

    def _before(self) -> Sequence[DAGNode]:
        return (self._whole,)

    def __repr__(self) -> str:
        return f"InputNode()[{self._key!r}]" if self._is_item else f"InputNode().{self._key}"

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: Input) -> Any:
        value = results[self._whole._uuid]
        try:
            if self._is_item or isinstance(value, DAGInputData):
                return value[self._key]
            return getattr(value, str(self._key))
        except Exception as error:
            error.add_note(
                f"The graph needs {self!r}, but execute() was called with {DAGInputData(*given)!r}: pass it to "
                "execute()."
            )
            raise
