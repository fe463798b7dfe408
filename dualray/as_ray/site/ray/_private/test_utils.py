"""What Ray's own public tests and other suites import from here."""

from ray._common.test_utils import *
from ray._common.test_utils import __all__  # noqa: F401 - the page lists it

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray._private.test_utils")
