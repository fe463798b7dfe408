"""What may change with any release: helpers for libraries. TensorFlow is loaded when it is used, not by this import."""

from dualray.experimental.tf_variables import TensorFlowVariables

__all__ = ["TensorFlowVariables"]
