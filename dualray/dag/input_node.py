"""The inputs of graphs, at the place where Ray has them."""

from dualray.dag.nodes import DAGInputData, InputAttributeNode, InputNode

__all__ = ["DAGInputData", "InputAttributeNode", "InputNode"]
