"""The time that bytes take. Every message asks for it: the wheel compiles it."""

from __future__ import annotations


def time_ns(size_bytes: int, bytes_per_s: int) -> int:
    """Nanoseconds that `size_bytes` take at `bytes_per_s`, rounded up, in exact integers."""
    return -(-size_bytes * 1_000_000_000 // bytes_per_s)
