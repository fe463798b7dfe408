"""`ray.autoscaler.sdk`, of dualray."""

from dualray.as_ray.refusals import refusing
from dualray.autoscaler.sdk import request_resources  # noqa: F401 - Ray's name; status is dualray's own

__getattr__ = refusing("ray.autoscaler.sdk")
