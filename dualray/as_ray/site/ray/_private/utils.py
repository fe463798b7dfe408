"""Small functions that Ray's own public tests and other suites import from here."""

from dualray.as_ray.error_words import doc_version
from dualray.as_ray.private_helpers import (
    binary_to_hex,
    decode,
    ensure_str,
    get_system_memory,
    hex_to_binary,
)
from dualray.as_ray.refusals import refusing

__all__ = ["binary_to_hex", "decode", "ensure_str", "get_ray_doc_version", "get_system_memory", "hex_to_binary"]


def get_ray_doc_version() -> str:
    """Which version of Ray's documentation a message names, such as "releases-2.60.0"."""
    return doc_version()


__getattr__ = refusing("ray._private.utils")
