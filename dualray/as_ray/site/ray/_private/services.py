"""What Ray's own public tests import from here."""

from dualray.as_ray.private_helpers import get_node_ip_address
from dualray.as_ray.refusals import refusing

__all__ = ["get_node_ip_address"]

__getattr__ = refusing("ray._private.services")
