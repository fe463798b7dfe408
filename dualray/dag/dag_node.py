"""A node of a graph, and how a graph is run; the package says what graphs are."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeAlias

from dualray.dag.arguments import Found, Parts

Input: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""What `execute` was given: positional and keyword arguments."""


class DAGNode(Found):
    """One step of a graph.

    Args:
        args, kwargs: arguments of `bind`. Nodes among them, at any depth, are replaced by their results.
        options: options from `.options()` or the decorator.
    """

    is_input: ClassVar[bool] = False
    """Whether it stands for the graph's input as a whole."""

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
        """Return the positional arguments of `bind`."""
        return self._args

    def get_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments of `bind`."""
        return dict(self._kwargs)

    def get_options(self) -> dict[str, Any]:
        """Return the options of the call that differ from their defaults."""
        return dict(self._options)

    def get_stable_uuid(self) -> str:
        """Return 32 hex digits, which are the same for all pickled copies of this node."""
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
            raise AttributeError(f".bind() cannot be used again on {type(self)}: {self!r} is already bound")
        if name == "remote":
            raise AttributeError(f".remote() cannot be used on {type(self)}: run {self!r} with .execute()")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- Running it ------------------------------------------------------------------------------------------

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph that ends in this node: submit each of its tasks, actors and calls once.

        Args:
            args, kwargs: the graph's input, for its InputNode; a single positional argument is the input itself.

        Returns:
            At once, what `.remote()` returns: a reference, a list of references, or an actor's handle. An InputNode or
                a part of one returns the input, and a MultiOutputNode a list with an entry for each output.

        Raises:
            AssertionError: an InputNode was not opened with `with`, or a graph has two of them; as in Ray.
            ValueError: a node is one of its own arguments.
            TypeError, KeyError, IndexError, AttributeError: the input lacks a part that the graph needs.
        """
        results: dict[str, Any] = {}
        given = args, kwargs
        for node, parts in in_order(self):
            found_args, found_kwargs = parts.with_results(results)
            results[node._uuid] = node._run(found_args, found_kwargs, results, given)
        return results[self._uuid]

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any], results: Mapping[str, Any], given: Input) -> Any:
        """Submit this node's own call. `args` and `kwargs` hold results in place of nodes; `given` is the input."""
        raise NotImplementedError

    def experimental_compile(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: dualray has no compiled graphs, which hold channels of their own between actors.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{self!r}.experimental_compile(): dualray has no compiled graphs. node.execute(...) runs the same graph "
            f"with ordinary calls: replace `graph = node.experimental_compile()` by `graph = node`, and leave out "
            f"graph.teardown()"
        )

    def with_tensor_transport(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: it is for compiled graphs, which dualray does not have.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{self!r}.with_tensor_transport() is for compiled graphs, which dualray does not have. Leave out the "
            f"call: without it, the object store transfers tensors"
        )


def in_order(last: DAGNode) -> Iterator[tuple[DAGNode, Parts]]:
    """The nodes that a node needs, and itself, each once and behind what it needs itself.

    Raises:
        AssertionError: two InputNodes; as in Ray.
        ValueError: a circle.
    """
    open_nodes: dict[str, None] = {}
    done: set[str] = set()
    inputs: set[str] = set()
    stack: list[tuple[DAGNode, Parts, Iterator[DAGNode]]] = []

    def enter(node: DAGNode) -> None:
        parts = Parts(node._args, node._kwargs)
        open_nodes[node._uuid] = None
        stack.append((node, parts, iter([*parts.nodes, *node._before()])))

    enter(last)
    while stack:
        node, parts, needed = stack[-1]
        following = next((each for each in needed if each._uuid not in done), None)
        if following is not None:
            if following._uuid in open_nodes:
                raise ValueError(
                    f"{type(following).__name__} {following.get_stable_uuid()} is one of its own arguments, but a "
                    "graph "
                    "must not have cycles"
                )
            enter(following)
            continue
        stack.pop()
        del open_nodes[node._uuid]
        done.add(node._uuid)
        if node.is_input:
            inputs.add(node._uuid)
            if len(inputs) > 1:
                raise AssertionError(
                    "Each DAG should only have one unique InputNode: bind the same InputNode in the whole graph"
                )
        yield node, parts
