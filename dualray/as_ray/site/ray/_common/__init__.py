"""Private to Ray; of it there is what Ray's own public tests import, a module each."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray._common")
