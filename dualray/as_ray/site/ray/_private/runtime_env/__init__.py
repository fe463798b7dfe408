"""Of Ray's plugins of runtime environments there are the classes, which programs derive from."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray._private.runtime_env")
