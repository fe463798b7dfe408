"""Small functions that Ray's own public tests and other suites import from here."""

from dualray.as_ray.private_helpers import (
    binary_to_hex,
    decode,
    get_or_create_event_loop,
    get_system_memory,
    hex_to_binary,
)
from dualray.as_ray.refusals import refusing

__all__ = ["binary_to_hex", "decode", "get_or_create_event_loop", "get_system_memory", "hex_to_binary"]

__getattr__ = refusing("ray._common.utils")
