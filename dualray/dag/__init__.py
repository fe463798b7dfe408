"""Graphs of tasks and actors: `bind` makes them, and `execute` runs them. The names are those of `ray.dag`.

`f.bind(...)`, `Cls.bind(...)` and `.method.bind(...)` make nodes and run nothing. Nodes can be arguments of other
nodes, also inside lists, dicts and objects. `node.execute(...)` runs each node that the node needs once, and returns
what `.remote(...)` would return. Each `execute` creates the actors of the graph anew; a graph over a handle uses the
existing actor.

Calls of an actor of a graph run in the order in which they were bound, and a call runs the calls before it, too. A node
can be pickled, and executed in any process.
"""

from dualray.dag.class_node import ClassMethodNode, ClassNode
from dualray.dag.dag_node import DAGNode
from dualray.dag.function_node import FunctionNode
from dualray.dag.input_node import DAGInputData, InputAttributeNode, InputNode
from dualray.dag.output_node import MultiOutputNode

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
