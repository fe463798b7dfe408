"""`ray.data.read_api`, of dualray: the functions that make a Dataset."""

import dualray.data
from dualray.as_ray.refusals import refusing

__all__ = [name for name in dualray.data.__all__ if name.startswith(("from_", "read_", "range"))]

globals().update({name: getattr(dualray.data, name) for name in __all__})

__getattr__ = refusing("ray.data.read_api")
