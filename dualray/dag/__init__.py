"""Graphs of tasks and actors, written with `bind` and run with `execute`; the names are those of `ray.dag`.

What a node runs is the business of remote functions and actors.
"""

from dualray.dag.nodes import (
    ClassMethodNode,
    ClassNode,
    DAGInputData,
    DAGNode,
    FunctionNode,
    InputAttributeNode,
    InputNode,
    MultiOutputNode,
    calls_of,
)

__all__ = [
    "ClassMethodNode",
    "ClassNode",
    "DAGInputData",
    "DAGNode",
    "FunctionNode",
    "InputAttributeNode",
    "InputNode",
    "MultiOutputNode",
    "calls_of",
]
