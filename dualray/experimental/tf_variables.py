"""TensorFlowVariables: the weights of a network, without the network.

A graph is made once in each process; what travels are its weights, as a dict of numpy arrays by the variables' names,
or as one flat array. Names are those of the graph; of a Keras model, position and role, such as `0/kernel`. Everything
that setting and getting needs is put into the graph once, by the constructor: the graph does not grow afterwards, and
may be finalized.

Variables are found from a loss (or a train operation: then with the optimizer's own) by walking the graph backwards
through inputs and control inputs. Both kinds of variables of TensorFlow 1 are understood, those with references
(VariableV2) and those with resources (VarHandleOp). Of a Keras model, all weights are taken.

TensorFlow is imported when the first `TensorFlowVariables` is made.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualray.options import unknown_name

Array = NDArray[Any]
_VARIABLE_OPS = ("VariableV2", "VarHandleOp", "Variable", "AutoReloadVariable")


class _Weights(Protocol):
    """Named variables: how they are read and written."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype[Any]]

    def read(self) -> dict[str, Array]: ...

    def write(self, values: Mapping[str, Array]) -> None: ...


class _GraphWeights:
    """Variables of a TensorFlow 1 graph, through a session."""

    def __init__(self, graph: Any, variables: Sequence[Any], session: Any) -> None:
        from tensorflow.compat import v1 as tf  # noqa: PLC0415 - only programs that use TensorFlow pay for it

        self.session = session
        self.variables = {variable.op.name: variable for variable in variables}
        self.shapes = {name: tuple(variable.shape.as_list()) for name, variable in self.variables.items()}
        self.dtypes = {
            name: np.dtype(variable.dtype.base_dtype.as_numpy_dtype) for name, variable in self.variables.items()
        }
        self._reads: dict[str, Any] = {}
        self._placeholders: dict[str, Any] = {}
        self._assignments: dict[str, Any] = {}
        with graph.as_default(), tf.device(None), tf.name_scope("dualray_variables"):
            for name, variable in self.variables.items():
                self._reads[name] = variable.read_value()
                self._placeholders[name] = tf.placeholder(variable.dtype.base_dtype, shape=variable.shape)
                self._assignments[name] = variable.assign(self._placeholders[name], read_value=False)

    def read(self) -> dict[str, Array]:
        found: dict[str, Array] = self._checked_session().run(self._reads)
        return {name: np.asarray(value) for name, value in found.items()}

    def write(self, values: Mapping[str, Array]) -> None:
        self._checked_session().run(
            [self._assignments[name] for name in values],
            feed_dict={self._placeholders[name]: value for name, value in values.items()},
        )

    def _checked_session(self) -> Any:
        if self.session is None:
            raise RuntimeError(
                "TensorFlowVariables has no session: pass a session to the constructor, or call set_session(sess)"
            )
        return self.session


class _EagerWeights:
    """Variables that have values of their own: those of a Keras model outside of graphs."""

    session = None

    def __init__(self, variables: Sequence[Any]) -> None:
        # By position: Keras numbers layers through a whole process, and equal models would have unequal names.
        self.variables = {
            f"{position}/{variable.name.rpartition('/')[2].removesuffix(':0')}": variable
            for position, variable in enumerate(variables)
        }
        self.shapes = {name: tuple(variable.shape) for name, variable in self.variables.items()}
        self.dtypes = {name: variable.numpy().dtype for name, variable in self.variables.items()}

    def read(self) -> dict[str, Array]:
        return {name: np.array(variable.numpy()) for name, variable in self.variables.items()}

    def write(self, values: Mapping[str, Array]) -> None:
        for name, value in values.items():
            self.variables[name].assign(value)


class TensorFlowVariables:
    """Gets and sets the weights of a network.

    Args:
        loss: a tensor or operation of a TensorFlow 1 graph whose variables are wanted, or a list of them, or a Keras
            model that has been built.
        sess: the session that has the variables. `set_session` can set it later. Not for Keras models in eager mode.
        input_variables: variables to add to those that are found, such as variables made with `collections=[]`.

    Attributes:
        variables: the variables by name, in the order in which they were made.

    Raises:
        TypeError: `loss` is not an object of TensorFlow.
        ValueError: `loss` depends on no variable, or the model has not been built.
    """

    def __init__(self, loss: Any, sess: Any = None, input_variables: Iterable[Any] | None = None) -> None:
        extra = list(input_variables or ())
        if callable(getattr(loss, "get_weights", None)) and hasattr(loss, "weights"):
            self._weights: Any = _of_model(loss, sess, extra)
        else:
            self._weights = _of_graph(loss, sess, extra)
        if not self._weights.variables:
            raise ValueError(
                f"{loss!r} depends on no variable. If {loss!r} is a Keras model, call the model first, or give the "
                "model an input shape. If the variables were created with collections=[], pass them as input_variables="
            )

    @property
    def variables(self) -> dict[str, Any]:
        """The variables by name."""
        found: dict[str, Any] = self._weights.variables
        return found

    @property
    def sess(self) -> Any:
        """The session; None for a Keras model in eager mode."""
        return self._weights.session

    def set_session(self, sess: Any) -> None:
        """Use another session of the same graph from now on.

        Raises:
            TypeError: the variables need no session.
        """
        if isinstance(self._weights, _EagerWeights):
            raise TypeError("a Keras model in eager mode needs no session")
        self._weights.session = sess

    def get_weights(self) -> dict[str, Array]:
        """Return copies of the weights as arrays by name. If you `put` the dict, each process reads it without a copy.

        Raises:
            RuntimeError: the variables have no session.
        """
        return self._by_name().read()

    def set_weights(self, new_weights: Mapping[str, Any]) -> None:
        """Set weights by name. Other weights keep their values.

        Raises:
            KeyError: no variable has the name; the message has the nearest name.
            ValueError: a value has another shape.
            RuntimeError: the variables have no session.
        """
        weights = self._by_name()
        values: dict[str, Array] = {}
        for name, value in new_weights.items():
            if name not in weights.shapes:
                raise KeyError(unknown_name("variable", name, list(weights.shapes), "this network"))
            values[name] = np.asarray(value, dtype=weights.dtypes[name])
            if values[name].shape != weights.shapes[name]:
                raise ValueError(
                    f"variable {name} has the shape {weights.shapes[name]}, but the new value has the shape "
                    f"{values[name].shape}"
                )
        weights.write(values)

    def get_flat_size(self) -> int:
        """Return the number of numbers in all weights."""
        return sum(math.prod(shape) for shape in self._by_name().shapes.values())

    def get_flat(self) -> Array:
        """Return all weights as one flat array, in the order of `variables`."""
        return np.concatenate([value.ravel() for value in self._by_name().read().values()])

    def set_flat(self, new_weights: Any) -> None:
        """Set all weights from one array, as `get_flat` returns it.

        Raises:
            ValueError: it has another number of numbers.
            RuntimeError: there is no session.
        """
        flat = np.asarray(new_weights)
        if flat.shape != (self.get_flat_size(),):
            raise ValueError(
                f"the variables have {self.get_flat_size()} weights in total, but the new weights have the shape "
                f"{flat.shape}"
            )
        weights = self._by_name()
        values, start = {}, 0
        for name, shape in weights.shapes.items():
            end = start + math.prod(shape)
            values[name] = flat[start:end].reshape(shape).astype(weights.dtypes[name], copy=False)
            start = end
        weights.write(values)

    def _by_name(self) -> _Weights:
        weights: _Weights = self._weights
        return weights


def _of_model(model: Any, session: Any, extra: list[Any]) -> Any:
    variables = [*model.weights, *extra]
    graph = getattr(variables[0], "graph", None) if variables and session is not None else None
    return _GraphWeights(graph, variables, session) if graph is not None else _EagerWeights(variables)


def _of_graph(loss: Any, session: Any, extra: list[Any]) -> _GraphWeights:
    from tensorflow.compat import v1 as tf  # noqa: PLC0415 - as above

    roots: list[Any] = [getattr(part, "op", part) for part in (loss if isinstance(loss, list | tuple) else [loss])]
    for root in roots:
        if not isinstance(root, tf.Operation):
            raise TypeError(
                f"TensorFlowVariables was given {loss!r} (type {type(loss).__name__}), but takes a tensor or "
                "operation of a graph (in graph mode: see dualray.experimental.tf1), or a Keras model"
            )
    graph = roots[0].graph
    reached = _variable_ops(roots)
    known = {variable.op: variable for collection in _collections(tf) for variable in graph.get_collection(collection)}
    found = [variable for operation, variable in known.items() if operation in reached]
    return _GraphWeights(graph, list({variable.op: variable for variable in [*found, *extra]}.values()), session)


def _collections(tf: Any) -> tuple[str, ...]:
    return tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES


def _variable_ops(roots: Iterable[Any]) -> set[Any]:
    """The operations that stand for variables, among all on which the roots depend."""
    todo = deque(roots)
    seen = set(todo)
    while todo:
        operation = todo.popleft()
        for before in [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]:
            if before not in seen:
                seen.add(before)
                todo.append(before)
    return {operation for operation in seen if operation.type in _VARIABLE_OPS}
