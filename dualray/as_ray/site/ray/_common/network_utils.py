"""Addresses, as Ray's own public tests read and write them."""

from dualray.as_ray.private_helpers import build_address, parse_address
from dualray.as_ray.refusals import refusing

__all__ = ["build_address", "parse_address"]

__getattr__ = refusing("ray._common.network_utils")
