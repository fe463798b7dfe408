"""Helpers for libraries that may change with any release. TensorFlow is loaded when it is used, not by this import."""

from dualray.experimental.locations import get_local_object_locations, get_object_locations
from dualray.experimental.tf_variables import TensorFlowVariables

__all__ = ["TensorFlowVariables", "get_local_object_locations", "get_object_locations"]
