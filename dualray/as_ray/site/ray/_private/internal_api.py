"""What Ray's guide imports from here."""

from dualray.as_ray.internal_api import *
from dualray.as_ray.internal_api import __all__  # noqa: F401 - as the modules beside it
from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray._private.internal_api")
