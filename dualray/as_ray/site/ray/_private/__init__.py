"""Private to Ray; of it there is what Ray's own public tests import: `test_utils`."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray._private")
