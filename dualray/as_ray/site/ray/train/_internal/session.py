"""xgboost_ray and lightgbm_ray ask this module for the session of Ray Train. There is none."""

from dualray.as_ray.private_helpers import get_session
from dualray.as_ray.refusals import refusing

__all__ = ["get_session"]

__getattr__ = refusing("ray.train._internal.session")
