"""Helpers for libraries, which can change with any release. The first use loads TensorFlow, and not this import."""

from dualray.experimental.locations import get_local_object_locations, get_object_locations
from dualray.experimental.tf_variables import TensorFlowVariables

__all__ = ["TensorFlowVariables", "get_local_object_locations", "get_object_locations"]
