"""Actors, and calls of their methods, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dualray.dag.dag_node import DAGNode, Input, in_order
from dualray.options import MethodOptions, unknown_name, with_changes


class ClassNode(DAGNode):
    """An actor that each `execute` creates; `node.method.bind(...)` makes nodes for calls of its methods.

    Raises:
        ValueError: an argument depends on the graph's input.
    """

    def __init__(
        self,
        actor_class: Any,
        cls: type[Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(args, kwargs, options)
        self._actor_class = actor_class
        self._cls = cls
        self._last: ClassMethodNode | None = None
        """The call that was bound last: the next one comes behind it."""
        if any(node.is_input for node, _ in in_order(self)):
            raise ValueError(
                f"{cls.__name__}.bind(): InputNode cannot be an argument, because an actor of a graph is created "
                f"without the graph's input. Pass the input to a method: {cls.__name__}.bind().method.bind(input)"
            )

    def _title(self) -> str:
        return self._cls.__name__

    def __getattr__(self, name: str) -> Any:
        cls = self.__dict__.get("_cls")
        if cls is None or name.startswith("__"):
            raise AttributeError(name)  # not made yet, or Python looking for a protocol
        if not hasattr(cls, name):
            if name in ("bind", "remote"):
                return super().__getattr__(name)
            known = [each for each in dir(cls) if not each.startswith("__") and callable(getattr(cls, each))]
            raise AttributeError(unknown_name("method", name, known, f"type object {cls.__name__!r}"))
        return _UnboundMethod(self, name, {})

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: Input) -> Any:
        return self._actor_class.remote(*args, **kwargs)


class _UnboundMethod:
    """A method of a ClassNode: `.bind(...)` makes the node of a call."""

    def __init__(self, node: ClassNode, name: str, options: Mapping[str, Any]) -> None:
        self._node = node
        self._name = name
        self._options = dict(options)

    def options(self, **options: Any) -> _UnboundMethod:
        """The same method with some options changed; see `MethodOptions`."""
        with_changes(MethodOptions(), options, f"{self._node._title()}.{self._name}.options()")
        return _UnboundMethod(self._node, self._name, self._options | options)

    def bind(self, /, *args: Any, **kwargs: Any) -> ClassMethodNode:
        """A call of the method, behind the calls that were bound before."""
        node = ClassMethodNode(self._node, self._name, args, kwargs, self._options, previous=self._node._last)
        self._node._last = node
        return node

    def __getattr__(self, name: str) -> NoReturn:
        if name == "remote":
            raise AttributeError(
                f".remote() cannot be used on a method of a graph's actor: write .{self._name}.bind(...)"
            )
        raise AttributeError(name)


class ClassMethodNode(DAGNode):
    """A call of an actor's method, or one of the results of such a call.

    Args:
        actor: a ClassNode, or an actor's handle.
        previous: the call of the same ClassNode that comes before it.
        output_of, output_idx: of a result: the call, and the result's number.
    """

    def __init__(
        self,
        actor: Any,
        method_name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        previous: ClassMethodNode | None = None,
        output_of: ClassMethodNode | None = None,
        output_idx: int | None = None,
    ) -> None:
        super().__init__(args, kwargs, options)
        self._actor = actor
        self._method_name = method_name
        self._previous = previous
        self._output_of = output_of
        self._output_idx = output_idx

    def get_method_name(self) -> str:
        """Return the name of the method."""
        return self._method_name

    @property
    def is_class_method_call(self) -> bool:
        """Whether this node is the call. If not, it is one of its results."""
        return self._output_of is None

    @property
    def is_class_method_output(self) -> bool:
        """Whether this node is one of the results of a call."""
        return self._output_of is not None

    @property
    def class_method_call(self) -> ClassMethodNode | None:
        """The call whose result this node is."""
        return self._output_of

    @property
    def output_idx(self) -> int | None:
        """The number of the result that this node is."""
        return self._output_idx

    def _before(self) -> Sequence[DAGNode]:
        if self._output_of is not None:
            return (self._output_of,)
        first = [self._actor] if isinstance(self._actor, DAGNode) else []
        return first if self._previous is None else [*first, self._previous]

    def _title(self) -> str:
        actor = self._actor._title() if isinstance(self._actor, DAGNode) else repr(self._actor)
        return f"{actor}.{self._method_name}{'' if self._output_idx is None else f'[{self._output_idx}]'}"

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: Input) -> Any:
        if self._output_of is not None:
            return results[self._output_of._uuid][self._output_idx]
        actor = results[self._actor._uuid] if isinstance(self._actor, DAGNode) else self._actor
        return getattr(actor, self._method_name).options(**self._options).remote(*args, **kwargs)


def calls_of(
    actor: Any, method_name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> ClassMethodNode | tuple[ClassMethodNode, ...]:
    """`handle.method.bind(...)`: a node; of a method with several results a tuple with a node for each, as in Ray."""
    call = ClassMethodNode(actor, method_name, args, kwargs, options)
    number = call._options.get("num_returns")
    if not isinstance(number, int) or number <= 1:
        return call
    return tuple(ClassMethodNode(actor, method_name, output_of=call, output_idx=i) for i in range(number))
