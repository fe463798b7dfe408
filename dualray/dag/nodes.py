"""Graphs of tasks and actors: written with `bind`, run with `execute`; the names are those of `ray.dag`.

`f.bind(...)`, `Cls.bind(...)` and `.method.bind(...)` make nodes, and run nothing. Nodes stand among the arguments of
other nodes, also inside lists, dicts and objects. `node.execute(...)` runs what the node needs, each node once, and
returns what `.remote(...)` would have. Every `execute` makes the graph's actors anew; a graph over a
handle uses the actor that there is.

Calls of one actor of a graph run in the order in which they were bound: a call brings those before it along. A node
can be pickled, and executed anywhere.
"""

from __future__ import annotations

import io
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any, ClassVar, NoReturn, Self

import cloudpickle
import numpy as np

from dualray.object_ref import CountedReference
from dualray.options import MethodOptions, unknown_name, with_changes

__all__ = [
    "ClassMethodNode",
    "ClassNode",
    "DAGInputData",
    "DAGNode",
    "FunctionNode",
    "InputAttributeNode",
    "InputNode",
    "MultiOutputNode",
]


class DAGNode:
    """One step of a graph.

    Args:
        args, kwargs: what it was bound with; nodes among them, at any depth, are replaced by their results.
        options: what was said with `.options()` or in the decorator.
    """

    _kind: ClassVar[str] = "node"

    def __init__(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})
        self._options = dict(options or {})
        self._uuid = uuid.uuid4().hex

    # ---- What it is ------------------------------------------------------------------------------------------

    def get_args(self) -> tuple[Any, ...]:
        """The positional arguments that it was bound with."""
        return self._args

    def get_kwargs(self) -> dict[str, Any]:
        """The keyword arguments that it was bound with."""
        return dict(self._kwargs)

    def get_options(self) -> dict[str, Any]:
        """The options of its call that differ from their defaults."""
        return dict(self._options)

    def get_stable_uuid(self) -> str:
        """32 hex digits, the same for all pickled copies of this node."""
        return self._uuid

    def _before(self) -> Sequence[DAGNode]:
        """Nodes that come first though they are no arguments."""
        return ()

    def __repr__(self) -> str:
        given = [*map(repr, self._args), *(f"{name}={value!r}" for name, value in self._kwargs.items())]
        return f"{self._title()}.bind({', '.join(given)})"

    def _title(self) -> str:
        return type(self).__name__

    def __getattr__(self, name: str) -> Any:
        if name == "bind":
            raise AttributeError(f".bind() cannot be used again on {type(self)}: {self!r} is bound")
        if name == "remote":
            raise AttributeError(f".remote() cannot be used on {type(self)}: run {self!r} with .execute()")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- Running it ------------------------------------------------------------------------------------------

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph that ends in this node: submit each of its tasks, actors and calls once.

        Args:
            args, kwargs: the graph's input, for its InputNode; a single positional argument is the input itself.

        Returns:
            At once, what `.remote()` returns: a reference, a list of them, an actor's handle; of an InputNode or a part
            of one, the input; of a MultiOutputNode a list with one entry for each output.

        Raises:
            AssertionError: an InputNode that was not opened with `with`, or two of them in one graph; as in Ray.
            ValueError: a node is among its own arguments.
            TypeError, KeyError, IndexError, AttributeError: the input lacks a part that the graph asks for.
        """
        results: dict[str, Any] = {}
        for node, parts in _in_order(self):
            found = parts.with_results(results)
            results[node._uuid] = node._run(found[0], found[1], results, DAGInputData(args, kwargs))
        return results[self._uuid]

    def _run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: DAGInputData
    ) -> Any:
        """Submit this node's own call. `args` and `kwargs` hold results in place of nodes."""
        raise NotImplementedError

    def experimental_compile(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Compiled graphs, which hold channels of their own between actors, are not part of dualray.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{self!r}.experimental_compile(): dualray has no compiled graphs. node.execute(...) runs the same graph "
            f"with ordinary calls: replace `graph = node.experimental_compile()` by `graph = node`, and leave out "
            f"graph.teardown()"
        )

    def with_tensor_transport(self, *args: Any, **kwargs: Any) -> NoReturn:
        """A matter of compiled graphs.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{self!r}.with_tensor_transport() is for compiled graphs, and dualray has none: leave it out, and tensors "
            f"travel through the object store"
        )


class FunctionNode(DAGNode):
    """A call of a remote function; `function` is that function, with its options."""

    def __init__(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        super().__init__(args, kwargs, options)
        self._function = function

    def _title(self) -> str:
        return str(getattr(self._function, "__name__", "function"))

    def _run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: DAGInputData
    ) -> Any:
        return self._function.remote(*args, **kwargs)


class ClassNode(DAGNode):
    """An actor that each `execute` makes: `node.method.bind(...)` are calls of it.

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
        if any(isinstance(node, InputNode) for node, _ in _in_order(self)):
            raise ValueError(
                f"{cls.__name__}.bind(): InputNode is among the arguments, and an actor of a graph is made without the "
                f"graph's input. Give the input to a method: {cls.__name__}.bind().method.bind(input)"
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

    def _run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: DAGInputData
    ) -> Any:
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

    def bind(self, *args: Any, **kwargs: Any) -> ClassMethodNode:
        """A call of the method, behind the calls that were bound before."""
        node = ClassMethodNode(self._node, self._name, args, kwargs, self._options, previous=self._node._last)
        self._node._last = node
        return node

    def __getattr__(self, name: str) -> NoReturn:
        if name == "remote":
            raise AttributeError(f".remote() cannot be used on a graph's actor: write .{self._name}.bind(...)")
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
        """The name of the method."""
        return self._method_name

    @property
    def is_class_method_call(self) -> bool:
        """Whether this is the call; else it is one of its results."""
        return self._output_of is None

    @property
    def is_class_method_output(self) -> bool:
        """Whether this is one of the results of a call."""
        return self._output_of is not None

    @property
    def class_method_call(self) -> ClassMethodNode | None:
        """Of a result, the call."""
        return self._output_of

    @property
    def output_idx(self) -> int | None:
        """Of a result, its number."""
        return self._output_idx

    def _before(self) -> Sequence[DAGNode]:
        if self._output_of is not None:
            return (self._output_of,)
        first = [self._actor] if isinstance(self._actor, DAGNode) else []
        return first if self._previous is None else [*first, self._previous]

    def _title(self) -> str:
        actor = self._actor._title() if isinstance(self._actor, DAGNode) else repr(self._actor)
        return f"{actor}.{self._method_name}{'' if self._output_idx is None else f'[{self._output_idx}]'}"

    def _run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: DAGInputData
    ) -> Any:
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


# ---- The graph's input and outputs -----------------------------------------------------------------------------------


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

    def _value(self) -> Any:
        """What an InputNode stands for."""
        return self._args[0] if len(self._args) == 1 and not self._kwargs else self


class InputNode(DAGNode):
    """What a graph is executed with; one for each graph, opened with `with InputNode() as inp:`.

    `inp` is the whole input; `inp[0]`, `inp.x` and `inp["x"]` are parts of it. Of `execute(1, x=2)` these are the
    arguments. Of `execute(value)` they are `value[0]`, `value.x` and `value["x"]`.

    Args:
        input_type: for people; ignored.
    """

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

    def _run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: DAGInputData
    ) -> Any:
        if not self._is_open:
            raise AssertionError(  # as in Ray
                "InputNode is a singleton instance that should be only used in context manager for dag building and "
                "execution: write `with InputNode() as inp:`, and bind `inp` in its block"
            )
        return given._value()


class InputAttributeNode(DAGNode):
    """A part of a graph's input: `inp[0]`, `inp.x` or `inp["x"]`."""

    def __init__(self, whole: InputNode, key: int | str, *, is_item: bool) -> None:
        super().__init__()
        self._whole = whole
        self._key = key
        self._is_item = is_item

    @property
    def key(self) -> int | str:
        """The index or name."""
        return self._key

    def _before(self) -> Sequence[DAGNode]:
        return (self._whole,)

    def __repr__(self) -> str:
        return f"InputNode()[{self._key!r}]" if self._is_item else f"InputNode().{self._key}"

    def _run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: DAGInputData
    ) -> Any:
        value = results[self._whole._uuid]
        try:
            if self._is_item or isinstance(value, DAGInputData):
                return value[self._key]
            return getattr(value, str(self._key))
        except Exception as error:
            error.add_note(f"The graph asks for {self!r}, and was executed with {given!r}: give it to execute().")
            raise


class MultiOutputNode(DAGNode):
    """The end of a graph with several outputs: `execute` returns the list of them.

    Args:
        args: a list or tuple of nodes.

    Raises:
        ValueError: something else.
    """

    def __init__(self, args: list[Any] | tuple[Any, ...]) -> None:
        if not isinstance(args, list | tuple):
            raise ValueError(f"Invalid input type for `args`: MultiOutputNode takes a list of nodes, not {args!r}")
        super().__init__(args)

    def __repr__(self) -> str:
        return f"MultiOutputNode({list(self._args)!r})"

    def _run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: DAGInputData
    ) -> Any:
        return list(args)


# ---- Nodes among arguments -------------------------------------------------------------------------------------------

_PLAIN = (int, float, str, bytes, bool, complex, type(None))
_KEPT = (CountedReference, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
"""What holds no nodes, and stays the very same object."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Takes an argument apart, down to the nodes in it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.found: list[Any] = []

    def persistent_id(self, each: Any) -> int | None:
        if type(each) in _PLAIN or not (isinstance(each, DAGNode) or _is_kept(each)):
            return None
        self.found.append(each)
        return len(self.found) - 1


def _is_kept(each: Any) -> bool:
    if isinstance(each, np.ndarray):
        return not each.dtype.hasobject
    return isinstance(each, _KEPT) or (hasattr(type(each), "bind") and hasattr(type(each), "remote"))


class _Unpickler(pickle.Unpickler):
    """Puts an argument together again, with results in place of nodes."""

    def __init__(self, data: bytes, place: Callable[[int], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._place = place

    def persistent_load(self, pid: Any) -> Any:
        return self._place(pid)


class _Parts:
    """The arguments of a node, and the nodes in them."""

    def __init__(self, node: DAGNode) -> None:
        self._value = node._args, node._kwargs
        self._data = b""
        self._found: list[Any] = []
        if all(type(each) in _PLAIN for each in (*node._args, *node._kwargs.values())):
            return
        file = io.BytesIO()
        pickler = _Pickler(file)
        try:
            pickler.dump(self._value)
        except Exception:  # noqa: BLE001 - what cannot be pickled is refused, by its path, when the call is made
            self._found = [each for each in (*node._args, *node._kwargs.values()) if isinstance(each, DAGNode)]
            return
        self._data, self._found = file.getvalue(), pickler.found

    @property
    def nodes(self) -> list[DAGNode]:
        return [each for each in self._found if isinstance(each, DAGNode)]

    def with_results(self, results: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments with the results of nodes in their places."""
        if not self.nodes:
            return self._value

        def result_of(each: Any) -> Any:
            return results[each._uuid] if isinstance(each, DAGNode) else each

        if self._data:
            found = self._found
            value: tuple[Sequence[Any], Mapping[str, Any]] = _Unpickler(
                self._data, lambda i: result_of(found[i])
            ).load()
            return value
        args, kwargs = self._value
        return [result_of(each) for each in args], {name: result_of(each) for name, each in kwargs.items()}


def _in_order(last: DAGNode) -> Iterator[tuple[DAGNode, _Parts]]:
    """The nodes that a node needs, and itself, each once and behind what it needs itself.

    Raises:
        AssertionError: two InputNodes; as in Ray.
        ValueError: a circle.
    """
    open_nodes: dict[str, None] = {}
    done: set[str] = set()
    inputs: set[str] = set()
    stack: list[tuple[DAGNode, _Parts, Iterator[DAGNode]]] = []

    def enter(node: DAGNode) -> None:
        parts = _Parts(node)
        open_nodes[node._uuid] = None
        stack.append((node, parts, iter([*parts.nodes, *node._before()])))

    enter(last)
    while stack:
        node, parts, needed = stack[-1]
        following = next((each for each in needed if each._uuid not in done), None)
        if following is not None:
            if following._uuid in open_nodes:
                raise ValueError(f"{type(following).__name__} {following.get_stable_uuid()} is among its own arguments")
            enter(following)
            continue
        stack.pop()
        del open_nodes[node._uuid]
        done.add(node._uuid)
        if isinstance(node, InputNode):
            inputs.add(node._uuid)
            if len(inputs) > 1:
                raise AssertionError("Each DAG should only have one unique InputNode: bind the same `inp` everywhere")
        yield node, parts
