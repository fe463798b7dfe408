"""Graphs of tasks and actors: written with `bind`, run with `execute`; the names are those of `ray.dag`.

`f.bind(...)`, `Cls.bind(...)` and `.method.bind(...)` make nodes, and run nothing. Nodes stand among the arguments of
other nodes, also inside lists, dicts and objects. `node.execute(...)` runs what the node needs, each node once, and
returns what `.remote(...)` would have. Every `execute` makes the graph's actors anew; a graph over a
handle uses the actor that there is.

Calls of one actor of a graph run in the order in which they were bound: a call brings those before it along. A node
can be pickled, and executed anywhere.
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
