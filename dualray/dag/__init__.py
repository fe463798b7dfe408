"""Graphs of tasks and actors: `bind` creates graphs, and `execute` runs them. The names are the same as in `ray.dag`.

`f.bind(...)`, `Cls.bind(...)` and `.method.bind(...)` create nodes and run nothing. Nodes can be arguments of other
nodes, also inside lists, dicts and objects. `node.execute(...)` runs each node that the node needs once, and returns
the same as `.remote(...)`. Each `execute` creates new actors for `Cls.bind(...)`, and uses the existing actor for
`handle.method.bind(...)`.

The calls of one `Cls.bind(...)` run in the order in which the program bound them. If a graph contains a call, `execute`
also runs the earlier calls of the same actor. You can pickle a node, and execute it in any process.
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
