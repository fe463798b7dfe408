"""`ray.util.joblib.ray_backend`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.util.joblib import RayBackend

__all__ = ["RayBackend"]

__getattr__ = refusing("ray.util.joblib.ray_backend")
