"""The outputs of graphs, at the place where Ray has them."""

from dualray.dag.nodes import MultiOutputNode

__all__ = ["MultiOutputNode"]
