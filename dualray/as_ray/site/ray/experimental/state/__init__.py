"""`ray.experimental.state`, the older place of `ray.util.state`, of dualray."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.experimental.state")
