"""Two functions that other projects import for their sources and targets."""

from dualray.as_ray.data_helpers import _check_import, call_with_retry
from dualray.as_ray.refusals import refusing

__all__ = ["_check_import", "call_with_retry"]

__getattr__ = refusing("ray.data._internal.util")
