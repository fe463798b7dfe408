"""Of Ray's own logging there is the class that says how a program logs."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray._private.ray_logging")
