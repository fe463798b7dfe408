"""The errors of Ray's state functions: here all of them raise DualrayError."""

from dualray.exceptions import DualrayError as RayStateApiException
from dualray.exceptions import DualrayError as ServerUnavailable

__all__ = ["RayStateApiException", "ServerUnavailable"]
