"""`ray.data.exceptions`, of dualray: errors of users' functions are all that it raises."""

from dualray.as_ray.refusals import refusing
from dualray.exceptions import UserCodeException

RayDataUserCodeException = UserCodeException

__getattr__ = refusing("ray.data.exceptions")
